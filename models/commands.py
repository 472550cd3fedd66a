"""The subcommands of `nbest` that train and tune. Light: a command imports what it runs."""
# ruff: noqa: PLC0415 - a command imports what it runs: help stays fast, extras stay optional

import json
import re
from pathlib import Path
from typing import Annotated, Literal

import typer

train = typer.Typer(name="train", help="Train a language model into a bundle.", no_args_is_help=True)

BundleArgument = Annotated[Path, typer.Argument(metavar="BUNDLE", help="The bundle's folder; made if it is missing.")]
TextOption = Annotated[
    list[Path], typer.Option("--text", help="Training text, one sentence a line; .gz and .xz are read too. Repeatable.")
]
NAME_HELP = "The model's name in the bundle: letters, digits, '.', '_' and '-'."
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _model_name(name: str) -> str:
    if name == "mixture":
        raise typer.BadParameter("'mixture' is what reports call the models together")
    if not _NAME.fullmatch(name):
        raise typer.BadParameter(
            "a model's name is made of letters, digits, '.', '_' and '-', and begins with one of the first two"
        )
    return name


@train.command("kn")
def train_kn(
    bundle: BundleArgument,
    text: TextOption,
    *,
    name: Annotated[str, typer.Option(help=NAME_HELP, callback=_model_name)] = "kn5",
    order: Annotated[int, typer.Option(min=2, max=6, help="n of the n-gram.")] = 5,
    discount_fallback: Annotated[
        bool, typer.Option("--discount-fallback", help="Use fixed discounts where the text is too small.")
    ] = False,
    memory: Annotated[str, typer.Option(help="Sorting memory of lmplz, such as 500M.")] = "1G",
    normaliser: Annotated[
        Path | None, typer.Option(help="JSON file of normaliser settings, for a new bundle.", exists=True)
    ] = None,
) -> None:
    """Train a modified Kneser-Ney n-gram with KenLM. A new bundle's vocabulary is that of the text."""
    from models.training_commands import run_train_kn

    run_train_kn(
        bundle, text, name=name, order=order, discount_fallback=discount_fallback, memory=memory, normaliser=normaliser
    )


@train.command("rnn")
def train_rnn(
    bundle: BundleArgument,
    text: TextOption,
    valid: Annotated[list[Path], typer.Option("--valid", help="Validation text; never part of the training text.")],
    *,
    name: Annotated[str, typer.Option(help=f"{NAME_HELP} Several seeds make NAME-SEED.", callback=_model_name)] = "rnn",
    recipe: Annotated[Literal["fast", "mikolov2010"], typer.Option(help="How to train.")] = "fast",
    hidden: Annotated[int, typer.Option(min=2, help="Hidden units.")] = 200,
    rare: Annotated[int, typer.Option(min=0, help="Words that occur at most this often share one class.")] = 3,
    tau: Annotated[int | None, typer.Option(min=1, help="Steps an error is propagated back.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs (mikolov2010: at most).")] = None,
    rate: Annotated[float | None, typer.Option(min=0, help="Initial learning rate.")] = None,
    dropout: Annotated[float | None, typer.Option(min=0, max=0.9, help="Recipe fast: share of units dropped.")] = None,
    vector_dropout: Annotated[
        float | None, typer.Option(min=0, max=0.9, help="Recipe fast: share of word vectors' components dropped.")
    ] = None,
    input_dropout: Annotated[
        float | None, typer.Option(min=0, max=0.9, help="Recipe fast: share of input words dropped.")
    ] = None,
    reset_share: Annotated[
        float | None, typer.Option(min=0, max=1, help="Recipe fast: share of sentences begun from the initial state.")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=0, help="Recipe fast: classes drawn a step; 0: all.")] = None,
    output: Annotated[
        Literal["softmax", "class-factored"] | None,
        typer.Option(help="Recipe fast: output layer; class-factored is exact too, and scored many times faster."),
    ] = None,
    groups: Annotated[
        int | None, typer.Option(min=0, help="Groups of a class-factored output; 0: about the classes' square root.")
    ] = None,
    normaliser_penalty: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Recipe fast: penalty on (ln Z)^2, such as 0.1. Scoring then leaves the normaliser out: scores are "
            "approximate and do not sum to 1.",
        ),
    ] = None,
    streams: Annotated[int | None, typer.Option(min=1, help="Recipe fast: parallel streams.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seed; repeat it to train several models.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    bf16: Annotated[bool, typer.Option("--bf16", help="Recipe fast: the output layer's products in bfloat16.")] = False,
    threads: Annotated[int, typer.Option(min=0, help="Threads; 0 leaves the choice to torch.")] = 0,
    tensorboard: Annotated[Path | None, typer.Option(help="Folder for TensorBoard event files.")] = None,
) -> None:
    """Train the recurrent network of Mikolov et al. 2010. Ctrl-C saves a checkpoint; --resume goes on from it.

    Several processes train together when torchrun starts them:
    torchrun --standalone --nproc-per-node=2 --no-python nbest train rnn ...
    """
    from models.training_commands import RnnSettings, run_train_rnn

    given = {
        "epochs": epochs,
        "rate": rate,
        "tau": tau,
        "streams": streams,
        "samples": samples,
        "dropout": dropout,
        "vector_dropout": vector_dropout,
        "input_dropout": input_dropout,
        "reset_share": reset_share,
        "output": output,
        "groups": groups,
        "normaliser_penalty": normaliser_penalty,
    }
    settings = RnnSettings(
        name=name,
        recipe=recipe,
        hidden_size=hidden,
        rare_threshold=rare,
        given={key: value for key, value in given.items() if value is not None},
        seeds=tuple(seed or [1]),
        device=device,
        bf16=bf16,
        threads=threads,
        tensorboard=tensorboard,
    )
    run_train_rnn(bundle, text, valid, settings, resume=resume)


def tune(
    bundle: BundleArgument,
    development: Annotated[Path, typer.Argument(metavar="NBEST", help="N-best lists with references, JSONL.")],
    *,
    models: Annotated[str | None, typer.Option(help="Models to mix, such as kn5,rnn; all when left out.")] = None,
    held_out: Annotated[
        list[Path] | None,
        typer.Option("--held-out", help="Text for the interpolation weights; the references when left out."),
    ] = None,
    lambdas: Annotated[
        Literal["perplexity", "wer"],
        typer.Option(help="Interpolation weights for the text's perplexity, or from there on for word errors."),
    ] = "perplexity",
    regularise: Annotated[
        float,
        typer.Option(
            min=0, metavar="STRENGTH", help="Points of WER that a weight half its range from its default must be worth."
        ),
    ] = 0.0,
    without: Annotated[
        list[str] | None, typer.Option(help="Hold a weight at 0, such as first_pass_scale. Repeatable.")
    ] = None,
    log_base: Annotated[Literal["e", "10"], typer.Option(help="Base of the scores in the file.")] = "e",
    folds: Annotated[int, typer.Option(min=2, help="Folds of the cross-validation.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the search's starts.")] = 0,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Tune for sessions that learn: score the lists in such sessions.")
    ] = False,
    session_per: Annotated[
        Literal["file", "speaker"] | None,
        typer.Option(
            help="Tune for sessions: all lists are one, or each speaker's. With --dynamic: file, if left out."
        ),
    ] = None,
    state: Annotated[
        Literal["carried", "reset"] | None, typer.Option(help="Of the sessions: hidden state between utterances.")
    ] = None,
    rate: Annotated[
        list[float] | None, typer.Option(min=0, help="Learning rate to choose from; some when left out. Repeatable.")
    ] = None,
    tau: Annotated[int | None, typer.Option(min=1, help="With --dynamic: steps an error is propagated back.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the weights to this file and leave the bundle as it is.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Tune interpolation weights, scales, bonuses and sessions' learning rate, and store them in the bundle.

    The rate is the one with the lowest perplexity of the winners, as a session accepts them; no reference takes part.
    """
    from models.learning import LearningOptions
    from models.learning_search import RATES
    from models.session import SessionOptions
    from models.tuning_command import TuneSettings, run_tune

    sessions = None
    if dynamic or session_per:
        learning = LearningOptions(tau=tau or 1)
        sessions = SessionOptions(state or "carried", "dynamic" if dynamic else "static", learning=learning)
    elif state:
        raise typer.BadParameter("--state goes with --session-per or --dynamic")
    if tau and not dynamic:
        raise typer.BadParameter("--tau goes with --dynamic")
    settings = TuneSettings(
        models=tuple(models.split(",")) if models else None,
        held_out=tuple(held_out or []),
        lambdas=lambdas,
        regularise=regularise,
        without=frozenset(without or []),
        folds=folds,
        seed=seed,
        sessions=sessions,
        per=session_per or "file",
        rates=tuple(rate or RATES),
    )
    run_tune(bundle, development, settings, log_base=log_base, output=output, device=device)


def perplexity(
    bundle: BundleArgument,
    text: TextOption,
    *,
    state: Annotated[
        Literal["reset", "carried"], typer.Option(help="Hidden state at each sentence: reset, or carried over.")
    ] = "reset",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    sentences: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write each sentence's ln P and perplexity, as lines of JSON.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Perplexity of each model and of the bundle's mixture, with and without words outside the vocabulary."""
    from models.perplexity_command import text_perplexities

    found = text_perplexities(bundle, text, carry_state=state == "carried", device=device)
    if sentences:
        found.write_sentences(sentences)
    rows = found.rows()
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        typer.echo(
            f"{row['model']}: perplexity {row['perplexity']:.2f} over {row['events']} words and sentence ends; "
            f"without the {row['oov']} OOV words {row['perplexity_without_oov']:.2f}; "
            f"ln P {row['log_likelihood']:.2f} of {row['sentences']} sentences"
        )


def protocols(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The bundle's folder.")],
    lists: Annotated[Path, typer.Argument(metavar="NBEST", help="N-best lists with references, JSONL.")],
    *,
    options: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Weights that override the bundle's.")
    ] = None,
    shuffles: Annotated[int, typer.Option(min=1, help="How many shuffled orders.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the shuffles and of the bootstrap.")] = 1,
    rate: Annotated[
        float | None, typer.Option(min=0, help="Learning rate of the dynamic cells; the bundle's when left out.")
    ] = None,
    tau: Annotated[
        int | None, typer.Option(min=1, help="Steps an error is propagated back; the bundle's when left out.")
    ] = None,
    learn_from: Annotated[
        Literal["winner", "reference"],
        typer.Option(help="The text a session goes on from after each utterance, and learns in dynamic cells."),
    ] = "winner",
    session_per: Annotated[
        Literal["file", "speaker"], typer.Option(help="Whether all utterances are one session, or each speaker's.")
    ] = "file",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write settings, rates and every utterance's errors.")
    ] = None,
    svg_file: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Write the figure.")] = None,
    log_base: Annotated[Literal["e", "10"], typer.Option(help="Base of the scores in the file.")] = "e",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Compare sessions on one set: {original order, shuffled} x {state reset, carried} x {weights static, dynamic}.

    All else is equal in the eight cells. Word error rates come with paired bootstrap intervals.
    """
    from models.protocols import ProtocolSettings
    from models.protocols_command import run_protocols

    run_protocols(
        bundle,
        lists,
        ProtocolSettings(accepted=learn_from, session_per=session_per, shuffles=shuffles, seed=seed),
        rate=rate,
        tau=tau,
        options=options,
        log_base=log_base,
        device=device,
        json_file=json_file,
        svg_file=svg_file,
    )
