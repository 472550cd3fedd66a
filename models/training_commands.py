"""What `nbest train` does: bundle, text, progress bar, Ctrl-C."""

import hashlib
import json
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from models.bundle import (
    MANIFEST,
    Manifest,
    add_elman,
    add_kenlm,
    choose_device,
    create_bundle,
    load_vocabulary,
    set_threads,
)
from models.corpus import sentences, word_counts
from models.distributed import Group, joined
from models.errors import BundleError, TrainingError
from models.kn_training import KneserNeyOptions, find_program, train_kneser_ney
from models.normaliser import Normaliser
from models.recipe_fast import FastOptions
from models.recipe_mikolov2010 import Mikolov2010Options
from models.rnn_training import Options, TrainingText, train_elman
from models.rnn_training import Progress as TrainingProgress
from models.rnnlm import WordClasses
from models.training_text import ClassStream
from models.vocabulary import Vocabulary

_CONSOLE = Console(stderr=True)
Corpus = list[tuple[str, ...]]


def _open_bundle(
    folder: Path, text: Sequence[Path], normaliser: Path | None = None
) -> tuple[Manifest, Vocabulary, Corpus]:
    """The bundle and the training text; a bundle that is not there yet has the text's vocabulary."""
    if (folder / MANIFEST).exists():
        if normaliser is not None:
            raise BundleError(f"{folder}: the bundle has its normaliser already; it cannot be changed")
        manifest = Manifest.read(folder)
        return manifest, load_vocabulary(folder, manifest), list(sentences(text, manifest.normaliser))
    chosen = Normaliser()
    if normaliser is not None:
        try:
            chosen = Normaliser.from_json(json.loads(normaliser.read_bytes()))
        except (ValueError, BundleError) as error:
            raise BundleError(f"{normaliser}: {error}") from error
    corpus = list(sentences(text, chosen))
    vocabulary = Vocabulary.from_counts(word_counts(corpus))
    return Manifest(chosen, vocabulary.sha256), vocabulary, corpus


def _begin_bundle(folder: Path, manifest: Manifest, vocabulary: Vocabulary) -> None:
    """Write what a new bundle begins with; not before a model can be trained: its vocabulary binds the next one."""
    if not (folder / MANIFEST).exists():
        create_bundle(folder, manifest.normaliser, vocabulary)


def _describe_text(paths: Sequence[Path], corpus: Corpus) -> dict[str, Any]:
    digest = hashlib.sha256()
    for words in corpus:
        digest.update(" ".join(words).encode() + b"\n")
    return {
        "text": [path.name for path in paths],
        "sentences": len(corpus),
        "words": sum(map(len, corpus)),
        "text_sha256": digest.hexdigest(),
    }


def run_train_kn(
    bundle: Path,
    text: Sequence[Path],
    *,
    name: str,
    order: int,
    discount_fallback: bool,
    memory: str,
    normaliser: Path | None,
) -> None:
    """Train the n-gram into the bundle."""
    find_program("lmplz")
    manifest, vocabulary, corpus = _open_bundle(bundle, text, normaliser)
    options = KneserNeyOptions(order=order, discount_fallback=discount_fallback, memory=memory)
    with _CONSOLE.status(f"lmplz: {order}-gram over {sum(map(len, corpus)):,} words"):
        train_kneser_ney(corpus, vocabulary, bundle / f"{name}.kenlm", options)
    _begin_bundle(bundle, manifest, vocabulary)
    add_kenlm(bundle, manifest, name, {"order": order, **_describe_text(text, corpus)})
    _CONSOLE.print(f"{name}: {order}-gram over {len(vocabulary.words):,} words of vocabulary, in {bundle}")


@dataclass(frozen=True, slots=True)
class RnnSettings:
    """The command's options. given: settings of the recipe that the user named; the recipe has defaults."""

    name: str
    recipe: Literal["fast", "mikolov2010"]
    hidden_size: int
    rare_threshold: int
    given: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (1,)
    device: str = "auto"
    bf16: bool = False
    threads: int = 0
    tensorboard: Path | None = None

    def options(self) -> Options:
        """The recipe's options. Raises TrainingError for one that the recipe does not have."""
        if self.recipe == "fast":
            return FastOptions(**self.given, bf16=self.bf16)
        translated = {{"epochs": "max_epochs"}.get(key, key): value for key, value in self.given.items()}
        strange = translated.keys() - {"tau", "rate", "max_epochs"}
        if strange or self.bf16:
            raise TrainingError(
                f"recipe mikolov2010 has no option --{min(strange).replace('_', '-') if strange else 'bf16'}"
            )
        return Mikolov2010Options(**translated)


def _training_text(
    manifest: Manifest, vocabulary: Vocabulary, corpus: Corpus, valid: Sequence[Path], rare_threshold: int
) -> TrainingText:
    classes = WordClasses.from_counts(vocabulary, word_counts(corpus), rare_threshold)
    validation = ClassStream.from_sentences(list(sentences(valid, manifest.normaliser)), vocabulary, classes)
    if not len(validation):
        raise TrainingError(f"{valid[0]}: the validation text is empty")
    training = ClassStream.from_sentences(corpus, vocabulary, classes)
    return TrainingText(training, validation, classes, vocabulary.sha256)


def run_train_rnn(
    bundle: Path, text: Sequence[Path], valid: Sequence[Path], settings: RnnSettings, *, resume: bool
) -> None:
    """Train one network a seed into the bundle; processes that torchrun started train each together."""
    options = settings.options()
    device = choose_device(settings.device)
    if settings.recipe == "mikolov2010":
        device = torch.device("cpu")  # one word at a time leaves an accelerator idle
    if settings.threads:
        set_threads(settings.threads)
    with joined(device) as (group, device):
        _train_rnn(bundle, text, valid, settings, options, device=device, group=group, resume=resume)


def _train_rnn(
    bundle: Path,
    text: Sequence[Path],
    valid: Sequence[Path],
    settings: RnnSettings,
    options: Options,
    *,
    device: torch.device,
    group: Group,
    resume: bool,
) -> None:
    manifest, vocabulary, corpus = _open_bundle(bundle, text)
    training_text = _training_text(manifest, vocabulary, corpus, valid, settings.rare_threshold)
    provenance = {"rare_threshold": settings.rare_threshold, **_describe_text(text, corpus)}
    group.wait()  # until all have seen whether there was a bundle
    if group.leads:
        _begin_bundle(bundle, manifest, vocabulary)
    for seed in settings.seeds:
        name = settings.name if len(settings.seeds) == 1 else f"{settings.name}-{seed}"
        folder = bundle / f".training-{name}"
        begun = (folder / "checkpoint.safetensors").exists() or len(settings.seeds) == 1
        if resume and not begun and name in manifest.models:
            continue  # an earlier run finished this one before it was stopped at another
        quiet = not group.leads
        with (
            _stop_on_interrupt() as stop,
            _show_progress(name, quiet) as report,
            _log(name, settings.tensorboard, quiet) as log,
        ):
            model = train_elman(
                training_text,
                options,
                folder,
                hidden_size=settings.hidden_size,
                seed=seed,
                device=device,
                resume=resume and begun,
                report=report,
                stop=stop,
                log=log,
                group=group,
            )
        if group.leads:
            model.training = {**model.training, **provenance}
            add_elman(bundle, manifest, name, model)
            (folder / "log.jsonl").replace(bundle / name / "training-log.jsonl")
            shutil.rmtree(folder)
            found = f"validation perplexity {model.training['valid_perplexity']:.2f}"
            _CONSOLE.print(f"{name}: {found}, in {bundle / name}")


@contextmanager
def _stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C asks the training to save and stop; a second one interrupts at once."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _show_progress(name: str, quiet: bool) -> Iterator[Callable[[TrainingProgress], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[speed]:,.0f} words/s, valid ppl {task.fields[valid]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_CONSOLE, transient=True, disable=quiet) as bar:
        task = bar.add_task(name, total=None, speed=0.0, valid="-")

        def report(p: TrainingProgress) -> None:
            epochs = p.epochs or p.epoch
            bar.update(
                task,
                description=f"{name}: epoch {p.epoch}" + (f"/{p.epochs}" if p.epochs else ""),
                completed=(p.epoch - 1) * p.words_in_epoch + p.words,
                total=epochs * p.words_in_epoch,
                speed=p.words_per_second,
                valid="-" if p.valid_perplexity is None else f"{p.valid_perplexity:.1f}",
            )

        yield report


@contextmanager
def _log(name: str, tensorboard: Path | None, quiet: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A line an epoch, and event files in the folder `tensorboard`, if any."""

    def say(entry: Mapping[str, Any]) -> None:
        _CONSOLE.print(
            f"{name}: epoch {entry['epoch']}: validation perplexity {entry['valid_perplexity']:.1f}, "
            f"{entry['words_per_second']:,.0f} words/s"
        )

    if tensorboard is None or quiet:
        yield say
        return
    from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra that few install

    with SummaryWriter(str(tensorboard)) as writer:

        def log(entry: Mapping[str, Any]) -> None:
            say(entry)
            for key in ("train_perplexity", "valid_perplexity", "rate", "words_per_second"):
                writer.add_scalar(key, entry[key], entry["epoch"])

        yield log
