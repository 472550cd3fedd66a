"""Error counts of every utterance of a file, met by utterance id.

Words are those the server's normaliser made: `scored_text` and `scored_reference`, which only a space parts.
Where an N-best file is evaluated, or gives the texts, they are its texts split at white space, as they are.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import EvaluationError, UsageError
from .files import MADE_WITH, NBestLine, ResultLine, read_either, read_nbest
from .jsonl import JsonLines
from .wer import ErrorCounts, Words, count_errors, oracle

_NAMED = 10


@dataclass(frozen=True, slots=True)
class UtteranceCounts:
    """The sufficient statistics of one utterance.

    first_pass: the errors of the hypothesis with input index 0
    oracle:     the errors of the best one
    rescored:   the errors of each system's best; a plain N-best file has none
    depth:      the number of hypotheses
    digest:     of the reference and all texts: equal where two files hold the same list
    """

    first_pass: ErrorCounts
    oracle: ErrorCounts
    rescored: tuple[ErrorCounts, ...]
    depth: int
    digest: bytes


@dataclass
class Table:
    """What one file says.

    systems:           names of what is rescored in it
    made_with:         per system, "bundle", "weights" and "state", and "sessions" where there were some
    normalised:        whether its words are the server's
    counts:            utterance id -> counts
    without_reference: ids of utterances that have none
    """

    path: str
    systems: tuple[str, ...]
    made_with: tuple[Mapping[str, Any], ...]
    normalised: bool
    counts: dict[str, UtteranceCounts] = field(default_factory=dict)
    without_reference: list[str] = field(default_factory=list)


def read_table(path: str, name: str) -> Table:
    """Count the errors of a result file, as the system `name`, or of a plain N-best file, as no system."""
    with JsonLines(path) as lines:
        table: Table | None = None
        for line in read_either(lines):
            if isinstance(line, ResultLine):
                if table is None:
                    table = Table(path, (name,), (line.made_with,), normalised=True)
                _check_made_with(table.made_with[0], line, path)
                if line.texts is None:
                    raise EvaluationError(
                        f"{path}:{line.line}: compact results hold no texts; name the N-best file they come "
                        "from with --nbest"
                    )
                reference = None if line.reference is None else _spaced(line.reference)
                _enter(table, line.utterance_id, reference, [_spaced(t) for t in line.texts], [line.order[0]])
            else:
                if table is None:
                    table = Table(path, (), (), normalised=False)
                _enter(table, line.utterance_id, *_plain(line), [])
    assert table is not None  # read_either refuses a file without utterances
    return table


def read_with_nbest(paths: Sequence[str], names: Sequence[str], nbest: str) -> Table:
    """Texts and references from an N-best file, the order from results; each file is read once."""
    orders, made_with = [], []
    for path in paths:
        with JsonLines(path) as lines:
            order, made = _read_order(path, read_either(lines))
        orders.append(order)
        made_with.append(made)
    table = Table(nbest, tuple(names), tuple(made_with), normalised=False)
    met = set()
    with JsonLines(nbest) as lines:
        for line in read_nbest(lines):
            identifier = line.utterance_id
            met.add(identifier)
            best = []
            for path, order in zip(paths, orders, strict=True):
                if identifier not in order:
                    raise EvaluationError(f"{path}: no result for utterance {identifier!r} of {nbest}:{line.line}")
                winner, depth = order[identifier]
                if depth != len(line.utterance["hypotheses"]):
                    raise EvaluationError(
                        f"{path}: utterance {identifier!r} has {depth} hypotheses there, but "
                        f"{len(line.utterance['hypotheses'])} in {nbest}:{line.line}"
                    )
                best.append(winner)
            _enter(table, identifier, *_plain(line), best)
    for path, order in zip(paths, orders, strict=True):
        if alone := [identifier for identifier in order if identifier not in met]:
            raise EvaluationError(f"{nbest}: lacks utterances of {path}: {_listed(alone)}")
    return table


def _read_order(
    path: str, lines: Iterable[NBestLine] | Iterable[ResultLine]
) -> tuple[dict[str, tuple[int, int]], Mapping[str, Any]]:
    """Utterance id -> the index of the best hypothesis and the number of them; and what all was made with."""
    order: dict[str, tuple[int, int]] = {}
    made_with: Mapping[str, Any] = {}
    for line in lines:
        if not isinstance(line, ResultLine):
            raise UsageError(f"{path} is an N-best file; with --nbest, name result files")
        made_with = made_with or line.made_with
        _check_made_with(made_with, line, path)
        order[line.utterance_id] = (line.order[0], len(line.order))
    return order, made_with


def _check_made_with(made_with: Mapping[str, Any], line: ResultLine, path: str) -> None:
    for name in MADE_WITH:
        if line.made_with.get(name) != made_with.get(name):
            raise EvaluationError(f"{path}:{line.line}: {name}: differs from the lines before; a file is one system")


def _spaced(text: str) -> list[str]:
    return [word for word in text.split(" ") if word]


def _plain(line: NBestLine) -> tuple[list[str] | None, list[list[str]]]:
    reference = line.utterance.get("reference")
    return (
        None if reference is None else reference.split(),
        [hypothesis["text"].split() for hypothesis in line.utterance["hypotheses"]],
    )


def _enter(table: Table, identifier: str, reference: Words | None, texts: Sequence[Words], best: Sequence[int]) -> None:
    if reference is None:
        table.without_reference.append(identifier)
        return
    digest = hashlib.blake2b(digest_size=16)
    for words in (reference, *texts):
        digest.update("\x1f".join(words).encode() + b"\n")
    table.counts[identifier] = UtteranceCounts(
        first_pass=count_errors(reference, texts[0]),
        oracle=count_errors(reference, texts[oracle(reference, texts)]),
        rescored=tuple(count_errors(reference, texts[index]) for index in best),
        depth=len(texts),
        digest=digest.digest(),
    )


def check_references(tables: Sequence[Table], *, skip: bool) -> None:
    """Raise EvaluationError naming the utterances without a reference, unless they may be left out."""
    for table in tables:
        if table.without_reference and not skip:
            raise EvaluationError(
                f"{table.path}: no reference for {_listed(table.without_reference)}; "
                "--skip-missing-reference leaves these utterances out"
            )
        if not table.counts:
            raise EvaluationError(f"{table.path}: no utterance has a reference")


def check_same_lists(tables: Sequence[Table]) -> None:
    """Every file must hold the same utterances with the same lists and references, in whatever order."""
    first = tables[0]
    for other in tables[1:]:
        for one, two in ((first, other), (other, first)):
            if alone := [identifier for identifier in one.counts if identifier not in two.counts]:
                raise EvaluationError(
                    f"{two.path}: lacks utterances of {one.path}, or their references: {_listed(alone)}"
                )
        differing = [i for i, counts in first.counts.items() if other.counts[i].digest != counts.digest]
        if differing:
            raise EvaluationError(
                f"{first.path} and {other.path} hold other words for {_listed(differing)}: other lists, or "
                "another normaliser; --nbest FILE evaluates both on one file's texts"
            )


def _listed(ids: Sequence[str]) -> str:
    named = ", ".join(map(repr, ids[:_NAMED]))
    return named if len(ids) <= _NAMED else f"{named} and {len(ids) - _NAMED} more"
