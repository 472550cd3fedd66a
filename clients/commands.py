"""The subcommands `nbest rescore` and `nbest evaluate`. Importing this imports typer alone."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .evaluation import command

if TYPE_CHECKING:
    from .types import Settings

# What a command runs is imported inside its body: help stays fast, and extras stay optional.

_File = Annotated[str, typer.Argument(metavar="FILE", help="N-best lists, JSON Lines; .gz, .xz, or - for stdin.")]
_Url = Annotated[str | None, typer.Option(help="The service, such as http://localhost:8000.")]
_Bundle = Annotated[str | None, typer.Option(metavar="DIR", help="Rescore in this process, without a server.")]
_Output = Annotated[
    str,
    typer.Option("--output", "-o", help="The result file; it appears when all is done. - is standard output."),
]
_Resume = Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run left OUTPUT.part.")]
_BatchSize = Annotated[
    int,
    typer.Option(
        min=1,
        help="Utterances in one request. Of sessions, a request takes one; with --bundle, of so many utterances "
        "those of different sessions are scored together.",
    ),
]
_Concurrency = Annotated[int, typer.Option(min=1, help="Requests in flight at a time, each of another session.")]
_MaxRequest = Annotated[float, typer.Option(min=0.01, help="The largest request; the server's limit must be above.")]
_RetryFor = Annotated[
    float,
    typer.Option(min=0.0, metavar="SECONDS", help="How long to keep trying while the server is away or busy."),
]
_Options = Annotated[str | None, typer.Option(metavar="FILE.json", help="Weights that override the bundle's.")]
_Weight = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="One weight, such as lm_scale=9.5; may be repeated."),
]
_Interpolation = Annotated[
    str | None,
    typer.Option(metavar="MODEL=WEIGHT,...", help="Interpolation weights, such as kn5=0.5,rnn=0.5."),
]
_State = Annotated[
    Literal["reset", "carried"] | None,
    typer.Option(
        help="Whether hidden state is carried from each utterance to the next of its session. Left out: carried "
        "with --dynamic or --session-per, reset without."
    ),
]
_Dynamic = Annotated[
    bool,
    typer.Option("--dynamic", help="Score with networks that go on learning, each session with its own weights."),
]
_SessionPer = Annotated[
    Literal["speaker", "file", "utterance"] | None,
    typer.Option(
        help="What shares a session, in the order of FILE: a speaker (a line's session_id where it has one, its "
        "speaker where not), the whole file, or nothing. With --dynamic: speaker, when left out."
    ),
]
_LearnFrom = Annotated[
    Literal["winner", "confirmed", "nothing"] | None,
    typer.Option(
        help="With --dynamic: learn from the first-ranked hypothesis (the default), from each line's reference once "
        "the line is rescored (supervised adaptation: it uses the reference, as if a person had corrected every "
        "result), or from nothing."
    ),
]
_Rate = Annotated[
    float | None, typer.Option(min=0.0, help="With --dynamic: learning rate; as tuned for the bundle, else 0.1.")
]
_Tau = Annotated[
    int | None,
    typer.Option(
        min=1, help="With --dynamic: steps that an error is propagated back; as tuned for the bundle, else 1."
    ),
]
_Decay = Annotated[
    float | None,
    typer.Option(min=0.0, help="With --dynamic: how strongly weights return to the bundle's; 0 when left out."),
]
_KeepSessions = Annotated[
    bool, typer.Option("--keep-sessions", help="With --url: leave the sessions on the server when all is done.")
]
_LogBase = Annotated[Literal["e", "10"], typer.Option(help="The base of the logarithms in FILE.")]
_WordScores = Annotated[bool, typer.Option("--word-scores", help="Ask for the per-word values of each model.")]
_Decision = Annotated[
    Literal["total", "mbr", "consensus"] | None,
    typer.Option(
        help="How lists are decided on: by total (the default), by the expected number of word errors (mbr), or by "
        "total with the consensus of a confusion network beside it. Without sessions."
    ),
]
_WordConfidences = Annotated[
    bool,
    typer.Option(
        "--word-confidences", help="Ask for a confidence for each word of the best hypothesis. Without sessions."
    ),
]
_Compact = Annotated[bool, typer.Option("--compact", help="Ask for order, totals and posteriors alone.")]
_ApiKey = Annotated[
    str | None,
    typer.Option(envvar="NBEST_API_KEY", show_default=False, help="The key that the service asks for."),
]
_Device = Annotated[str | None, typer.Option(help="With --bundle: auto, cpu or cuda.")]
_Threads = Annotated[int | None, typer.Option(min=0, help="With --bundle: threads; 0 leaves the choice to torch.")]
_Precision = Annotated[
    Literal["float32", "bfloat16"] | None,
    typer.Option(help="With --bundle: bfloat16 is faster where the processor has it, and coarser."),
]
_ExactNormaliser = Annotated[
    bool,
    typer.Option(
        "--exact-normaliser", help="With --bundle: compute the normaliser even of networks trained to do without."
    ),
]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no summary.")]


def rescore(
    file: _File,
    *,
    url: _Url = None,
    bundle: _Bundle = None,
    output: _Output = "-",
    resume: _Resume = False,
    batch_size: _BatchSize = 16,
    concurrency: _Concurrency = 2,
    max_request_mib: _MaxRequest = 7.0,
    retry_for: _RetryFor = 120.0,
    options: _Options = None,
    weight: _Weight = None,
    interpolation: _Interpolation = None,
    state: _State = None,
    dynamic: _Dynamic = False,
    session_per: _SessionPer = None,
    learn_from: _LearnFrom = None,
    rate: _Rate = None,
    tau: _Tau = None,
    decay: _Decay = None,
    keep_sessions: _KeepSessions = False,
    decision: _Decision = None,
    log_base: _LogBase = "e",
    word_scores: _WordScores = False,
    word_confidences: _WordConfidences = False,
    compact: _Compact = False,
    api_key: _ApiKey = None,
    device: _Device = None,
    threads: _Threads = None,
    precision: _Precision = None,
    exact_normaliser: _ExactNormaliser = False,
    quiet: _Quiet = False,
) -> None:
    """Rescore N-best lists through a server, or in this process.

    Results are written in input order. An interrupted run leaves OUTPUT.part, and --resume goes on there, in the same
    sessions where there are some.
    """
    from .batches import Limits  # noqa: PLC0415 - a command imports what it runs
    from .errors import UsageError  # noqa: PLC0415 - a command imports what it runs
    from .options import read_options  # noqa: PLC0415 - a command imports what it runs
    from .rescore import Job, choose_course  # noqa: PLC0415 - a command imports what it runs
    from .session_plan import read_plan  # noqa: PLC0415 - a command imports what it runs
    from .targets import choose_target  # noqa: PLC0415 - a command imports what it runs

    settings: Settings = {"log_base": log_base, "word_scores": word_scores, "compact": compact}
    if word_confidences:
        settings["word_confidences"] = True
    if chosen := read_options(options, weight or [], interpolation, state, decision):
        settings["options"] = chosen
    target = choose_target(
        url, bundle, api_key, concurrency, retry_for, device, threads, precision, exact_normaliser=exact_normaliser
    )
    plan = read_plan(
        settings,
        dynamic=dynamic,
        per=session_per,
        learn_from=learn_from,
        rate=rate,
        tau=tau,
        decay=decay,
        keep=keep_sessions,
        served=bundle is None,
    )
    if plan is not None and (word_confidences or "decision" in settings.get("options", {})):
        raise UsageError("--decision and --word-confidences go with lists that are no part of a session")
    limits = Limits(batch_size, int(max_request_mib * 2**20) if bundle is None else None)
    Job(file, output, choose_course(target, settings, limits, plan), resume=resume, quiet=quiet).run()


evaluate = command.evaluate
