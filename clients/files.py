"""N-best files and result files: what their lines must hold, checked field by field."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from .errors import InputFileError
from .jsonl import JsonLines, kind, text_fault
from .types import Hypothesis, Utterance

# What a result says of its making: all of one file must say the same. Older results know nothing of some of it.
MADE_WITH = ("bundle", "weights", "state", "decision", "sessions")
_NOT_ALWAYS = ("decision", "sessions")


@dataclass(frozen=True, slots=True)
class NBestLine:
    """One utterance of an N-best file.

    line: the number of its line, from 1
    """

    line: int
    utterance: Utterance

    @property
    def utterance_id(self) -> str:
        """The utterance's id."""
        return self.utterance["id"]


@dataclass(frozen=True, slots=True)
class ResultLine:
    """One utterance of a result file.

    line:      the number of its line, from 1
    order:     input indices, best first: a permutation of 0..N-1
    texts:     per input index, the text as it was scored; None in compact results
    reference: the reference as it was normalised; None where there was none
    made_with: "bundle", "weights" and "state", and "sessions" where it was made in one
    shape:     the fields of a ranked hypothesis: they tell compact results from full ones
    speaker, session: as the N-best line gave them; None where it gave none
    consensus: the answer, in the normaliser's words, where it is the consensus of the list and no hypothesis of it
    """

    line: int
    utterance_id: str
    order: tuple[int, ...]
    texts: tuple[str, ...] | None
    reference: str | None
    made_with: Mapping[str, Any]
    shape: frozenset[str]
    speaker: str | None = None
    session: str | None = None
    consensus: str | None = None


Line = TypeVar("Line", NBestLine, ResultLine)


def read_nbest(lines: JsonLines) -> Iterator[NBestLine]:
    """The utterances of an N-best file, in order, each checked before the next is read.

    Fields that are not ours are dropped. Raises InputFileError naming file, line and field; an id that is
    given twice is named with both lines.
    """
    return _unique_ids(lines.name, lines, nbest_line)


def read_results(lines: JsonLines) -> Iterator[ResultLine]:
    """The utterances of a result file, checked as `read_nbest` checks."""
    return _unique_ids(lines.name, lines, result_line)


def read_either(lines: JsonLines) -> Iterator[NBestLine] | Iterator[ResultLine]:
    """The utterances of an N-best or a result file: the first line says which, and the others must agree."""
    documents = iter(lines)
    first = next(documents, None)
    if first is None:
        raise InputFileError(f"{lines.name}: holds no utterance")
    every = itertools.chain([first], documents)
    if "ranking" in first[1]:
        return _unique_ids(lines.name, every, result_line)
    if "hypotheses" in first[1]:
        return _unique_ids(lines.name, every, nbest_line)
    raise InputFileError(
        f"{lines.name}:{first[0]}: neither a result, with a ranking, nor an N-best list, with hypotheses"
    )


def _unique_ids(
    name: str,
    documents: Iterable[tuple[int, dict[str, Any]]],
    check: Callable[[dict[str, Any], int, str], Line],
) -> Iterator[Line]:
    seen: dict[str, int] = {}
    for number, document in documents:
        entry = check(document, number, f"{name}:{number}")
        before = seen.setdefault(entry.utterance_id, number)
        if before != number:
            raise InputFileError(f"{name}:{number}: id: {entry.utterance_id!r} stands in line {before} already")
        yield entry


def nbest_line(document: dict[str, Any], line: int, where: str) -> NBestLine:
    """Check a line of an N-best file. Raises InputFileError beginning with `where` and naming the field."""
    utterance: Utterance = {
        "id": _identifier(document, where),
        "hypotheses": [
            _hypothesis(entry, f"{where}: hypotheses[{index}]")
            for index, entry in enumerate(_array(document, "hypotheses", where))
        ],
    }
    given = ["lm_score" in hypothesis for hypothesis in utterance["hypotheses"]]
    if any(given) and not all(given):
        raise InputFileError(
            f"{where}: hypotheses[{given.index(False)}].lm_score: missing, though other hypotheses have one"
        )
    if (reference := _optional_text(document, "reference", where)) is not None:
        utterance["reference"] = reference
    if (session := _optional_text(document, "session_id", where)) is not None:
        utterance["session_id"] = session
    if (speaker := _optional_text(document, "speaker", where)) is not None:
        utterance["speaker"] = speaker
    return NBestLine(line, utterance)


def result_line(document: dict[str, Any], line: int, where: str) -> ResultLine:
    """Check a line of a result file. Raises InputFileError beginning with `where` and naming the field."""
    identifier = _identifier(document, where)
    ranking = _array(document, "ranking", where)
    order = []
    for rank, entry in enumerate(ranking):
        index = entry.get("index") if isinstance(entry, dict) else None
        if not isinstance(index, int) or isinstance(index, bool):
            raise InputFileError(f"{where}: ranking[{rank}].index: must be a whole number")
        order.append(index)
    if sorted(order) != list(range(len(order))):
        raise InputFileError(f"{where}: ranking: the indices must be 0 to {len(order) - 1}, each once")
    texts = None
    if "scored_text" in ranking[0]:
        texts = [""] * len(order)
        for rank, entry in enumerate(ranking):
            texts[entry["index"]] = _text(entry, "scored_text", f"{where}: ranking[{rank}]")
    return ResultLine(
        line=line,
        utterance_id=identifier,
        order=tuple(order),
        texts=None if texts is None else tuple(texts),
        reference=_optional_text(document, "scored_reference", where),
        made_with={name: document.get(name) for name in MADE_WITH if name not in _NOT_ALWAYS or name in document},
        shape=frozenset(ranking[0]),
        speaker=_optional_text(document, "speaker", where),
        session=_optional_text(document, "session_id", where),
        consensus=_consensus(document, where),
    )


def _consensus(document: dict[str, Any], where: str) -> str | None:
    """The text of a result's consensus; None where it has none."""
    consensus = document.get("consensus")
    if consensus is None:
        return None
    if not isinstance(consensus, dict) or "text" not in consensus:
        raise InputFileError(f"{where}: consensus: must be an object with a text")
    return _optional_text(consensus, "text", f"{where}: consensus")


def _hypothesis(entry: Any, where: str) -> Hypothesis:
    if not isinstance(entry, dict):
        raise InputFileError(f"{where}: must be an object, not {kind(entry)}")
    hypothesis: Hypothesis = {
        "text": _text(entry, "text", where),
        "acoustic_score": _number(entry, "acoustic_score", where),
    }
    if entry.get("lm_score") is not None:
        hypothesis["lm_score"] = _number(entry, "lm_score", where)
    return hypothesis


def _field(where: str, name: str) -> str:
    """`FILE:LINE: field`, or `FILE:LINE: hypotheses[3].field`."""
    return f"{where}.{name}" if where.endswith("]") else f"{where}: {name}"


def _identifier(document: dict[str, Any], where: str) -> str:
    identifier = _text(document, "id", where)
    if not identifier:
        raise InputFileError(f"{where}: id: must not be empty")
    return identifier


def _text(document: dict[str, Any], name: str, where: str) -> str:
    spot = _field(where, name)
    if name not in document:
        raise InputFileError(f"{spot}: missing")
    value = document[name]
    if not isinstance(value, str):
        raise InputFileError(f"{spot}: must be a string, not {kind(value)}")
    if fault := text_fault(value):
        raise InputFileError(f"{spot}: {fault}")
    return value


def _optional_text(document: dict[str, Any], name: str, where: str) -> str | None:
    return None if document.get(name) is None else _text(document, name, where)


def _number(document: dict[str, Any], name: str, where: str) -> float:
    spot = _field(where, name)
    if name not in document:
        raise InputFileError(f"{spot}: missing")
    value = document[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputFileError(f"{spot}: must be a number, not {kind(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InputFileError(f"{spot}: is too large; scores must be finite")
    return number


def _array(document: dict[str, Any], name: str, where: str) -> list[Any]:
    spot = _field(where, name)
    if name not in document:
        raise InputFileError(f"{spot}: missing")
    value = document[name]
    if not isinstance(value, list):
        raise InputFileError(f"{spot}: must be an array, not {kind(value)}")
    if not value:
        raise InputFileError(f"{spot}: must hold at least one entry; the list is empty")
    return value
