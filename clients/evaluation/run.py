"""`nbest evaluate`: files in, the result out, alignments exported on the way."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UsageError
from .alignment import Alignment
from .evaluator import FIRST_PASS, ORACLE, AlignmentSink, Choices, Evaluator
from .exports import Exporter
from .kinds import ExportFormat
from .reading import Reading
from .result import Evaluation
from .summary import summarise
from .utterance import Utterance


@dataclass(frozen=True, slots=True)
class Settings:
    """What to evaluate, and how.

    nbest:                  an N-best file that gives texts and references; without it, results give their own
    set_name:               what the utterances are called; the first file's name when left out
    skip_missing_reference: leave out utterances without a reference, instead of refusing
    export:                 a folder to write every alignment to
    export_formats:         the formats to write there
    """

    nbest: str | None = None
    set_name: str | None = None
    skip_missing_reference: bool = False
    choices: Choices = field(default_factory=Choices)
    export: str | None = None
    export_formats: Sequence[ExportFormat] = tuple(ExportFormat)


def evaluate(paths: Sequence[str], settings: Settings, notes: AlignmentSink | None = None) -> Evaluation:
    """Evaluate files together. Raises InputFileError, OutputFileError or EvaluationError, the last naming ids.

    notes: takes every alignment, too
    """
    names = system_names(paths)
    exporter = None
    if settings.export is not None:
        exporter = Exporter(Path(settings.export), [FIRST_PASS, *names, ORACLE], settings.export_formats)
    with exporter or nullcontext():
        sinks = [sink for sink in (exporter, notes) if sink is not None]
        evaluator = Evaluator(settings.choices, _Sinks(sinks) if sinks else None)
        reading = Reading(evaluator, several=len(paths) > 1, skip=settings.skip_missing_reference)
        if settings.nbest is not None:
            reading.read_with_nbest(paths, names, settings.nbest)
        else:
            for path, name in zip(paths, names, strict=True):
                reading.read(path, name)
        return summarise(
            evaluator,
            set_name=settings.set_name or stem(settings.nbest or paths[0]),
            normalised=reading.normalised,
            skipped=reading.skipped,
            made_with=reading.made_with,
        )


@dataclass(frozen=True, slots=True)
class _Sinks:
    """Several sinks as one."""

    sinks: Sequence[AlignmentSink]

    def take(self, system: str, utterance: Utterance, alignment: Alignment) -> None:
        for sink in self.sinks:
            sink.take(system, utterance, alignment)


def stem(path: str) -> str:
    """What a file is called in a report."""
    name = "stdin" if path == "-" else Path(path).name
    for suffix in (".gz", ".xz", ".jsonl", ".json", ".nbest"):
        name = name.removesuffix(suffix)
    return name


def system_names(paths: Sequence[str]) -> list[str]:
    """A name for each file: short where that tells them apart."""
    if len(set(paths)) < len(paths):
        raise UsageError("a file is named twice")
    short = [stem(path) for path in paths]
    taken = {FIRST_PASS, ORACLE}
    return short if len(set(short)) == len(paths) and not taken & set(short) else list(paths)
