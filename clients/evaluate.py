"""Word error rates: the first pass, what was rescored, and the oracle, compared on the same utterances."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np

from .bootstrap import Resampled, resample
from .errors import EvaluationError, UsageError
from .tables import Table, check_references, check_same_lists, read_table, read_with_nbest
from .wer import ErrorCounts

FIRST_PASS, ORACLE = "first pass", "oracle"


@dataclass(frozen=True, slots=True)
class System:
    """One row of the report.

    counts:    summed over the utterances
    made_with: "bundle", "weights", "state" and "sessions" of what was rescored; empty for first pass and oracle
    """

    name: str
    counts: ErrorCounts
    made_with: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Systems compared on the same utterances: the first pass, then what was rescored, then the oracle.

    skipped: utterances left out for want of a reference
    depth:   hypotheses of the longest list
    """

    set_name: str
    systems: tuple[System, ...]
    resampled: Resampled
    utterances: int
    skipped: int
    depth: int
    normalised: bool
    resamples: int
    seed: int


@dataclass(frozen=True, slots=True)
class Settings:
    """How to evaluate.

    nbest:                  an N-best file that gives texts and references; without it, results give their own
    set_name:               what the utterances are called; the first file's name when left out
    skip_missing_reference: leave out utterances without a reference, instead of refusing
    """

    nbest: str | None = None
    set_name: str | None = None
    skip_missing_reference: bool = False
    resamples: int = 10_000
    seed: int = 1


def evaluate(paths: Sequence[str], settings: Settings) -> Evaluation:
    """Evaluate files together. Raises InputFileError or EvaluationError, the latter naming ids."""
    names = _names(paths)
    if settings.nbest is None:
        tables = [read_table(path, name) for path, name in zip(paths, names, strict=True)]
    else:
        tables = [read_with_nbest(paths, names, settings.nbest)]
    check_references(tables, skip=settings.skip_missing_reference)
    check_same_lists(tables)
    first = tables[0]
    ids = list(first.counts)
    rows = [
        [first.counts[i].first_pass for i in ids],
        *([t.counts[i].rescored[s] for i in ids] for t in tables for s in range(len(t.systems))),
        [first.counts[i].oracle for i in ids],
    ]
    systems = _systems(tables, rows)
    if not systems[0].counts.words:
        raise EvaluationError("the references hold no word, so there is no word error rate")
    resampled = resample(
        np.array([[counts.errors for counts in row] for row in rows]),
        np.array([counts.words for counts in rows[0]]),
        resamples=settings.resamples,
        seed=settings.seed,
    )
    return Evaluation(
        set_name=settings.set_name or _stem(settings.nbest or paths[0]),
        systems=systems,
        resampled=resampled,
        utterances=len(ids),
        skipped=len(first.without_reference),
        depth=max(counts.depth for counts in first.counts.values()),
        normalised=first.normalised,
        resamples=settings.resamples,
        seed=settings.seed,
    )


def _systems(tables: Sequence[Table], rows: Sequence[Sequence[ErrorCounts]]) -> tuple[System, ...]:
    """The rows of the report, from the counts of each utterance."""
    labels = [FIRST_PASS, *(name for table in tables for name in table.systems), ORACLE]
    made_with = [{}, *(made for table in tables for made in table.made_with), {}]
    return tuple(
        System(label, reduce(add, row, ErrorCounts()), made)
        for label, row, made in zip(labels, rows, made_with, strict=True)
    )


def _stem(path: str) -> str:
    name = "stdin" if path == "-" else Path(path).name
    for suffix in (".gz", ".xz", ".jsonl", ".json", ".nbest"):
        name = name.removesuffix(suffix)
    return name


def _names(paths: Sequence[str]) -> list[str]:
    """A name for each file: short where that tells them apart."""
    if len(set(paths)) < len(paths):
        raise UsageError("a file is named twice")
    short = [_stem(path) for path in paths]
    taken = {FIRST_PASS, ORACLE}
    return short if len(set(short)) == len(paths) and not taken & set(short) else list(paths)
