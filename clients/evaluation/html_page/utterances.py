"""Utterances with their alignments, as the page shows them; bounded in number and in length."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..alignment import Alignment
from ..evaluator import ORACLE
from ..result import Evaluation
from .extremes import Example
from .notes import Notes

_MOST_WORST = 50
_MOST_COLUMNS = 250
_LONGEST_WORD, _LONGEST_NAME = 60, 200


@dataclass(frozen=True, slots=True)
class Column:
    """What was said, what was recognised. letter: C, S, D or I; a side that has a gap is empty."""

    letter: str
    said: str
    recognised: str


@dataclass(frozen=True, slots=True)
class Row:
    """The words of one system. left_out: columns that are not shown."""

    system: str
    errors: int
    columns: tuple[Column, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class Shown:
    """One utterance."""

    name: str
    speaker: str | None
    summary: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Utterances with something in common, behind one heading."""

    title: str
    utterances: tuple[Shown, ...]


def groups(evaluation: Evaluation, notes: Notes | None) -> list[Group]:
    """The worst of each system; with notes, where rescoring helped and hurt most, and a sample."""
    chosen = evaluation.rescored or evaluation.systems[:1]
    out = []
    for system in chosen:
        worst = system.worst[:_MOST_WORST]
        shown = (_shown(w.utterance_id, w.speaker, w.alignments) for w in worst)
        out.append(Group(f"Most errors of {_clipped(system.name, _LONGEST_NAME)}", tuple(shown)))
    for system in evaluation.rescored if notes else ():
        assert notes is not None
        found = notes.shown(system.name)
        name = _clipped(system.name, _LONGEST_NAME)
        out.append(Group(f"Where {name} removed most errors", _examples(found.helped)))
        out.append(Group(f"Where {name} added most errors", _examples(found.hurt)))
    out += [_sample(notes, [system.name for system in chosen])] if notes else []
    return [group for group in out if group.utterances]


def _sample(notes: Notes, systems: Sequence[str]) -> Group:
    """Utterances that were drawn, which are the same for every system, with the alignments of all."""
    merged = []
    for same in zip(*(notes.shown(system).sample for system in systems), strict=True):
        alignments: dict[str, Alignment] = {}
        for example in same:
            alignments |= example.alignments
        # The oracle comes last, as it does in the tables.
        alignments[ORACLE] = alignments.pop(ORACLE)
        merged.append(_shown(same[0].utterance_id, same[0].speaker, alignments))
    return Group("A sample of all utterances, drawn by their ids", tuple(merged))


def _examples(examples: Iterable[Example]) -> tuple[Shown, ...]:
    return tuple(_shown(e.utterance_id, e.speaker, e.alignments) for e in examples)


def _shown(utterance_id: str, speaker: str | None, alignments: Mapping[str, Alignment]) -> Shown:
    rows = tuple(_row(name, alignment) for name, alignment in alignments.items())
    summary = "errors: " + ", ".join(f"{row.system} {row.errors}" for row in rows)
    who = None if speaker is None else _clipped(speaker, _LONGEST_NAME)
    return Shown(_clipped(utterance_id, _LONGEST_NAME), who, summary, rows)


def _row(name: str, alignment: Alignment) -> Row:
    columns = []
    for letter, said, recognised in alignment.columns():
        columns.append(Column(letter, _clipped(said or "", _LONGEST_WORD), _clipped(recognised or "", _LONGEST_WORD)))
        if len(columns) == _MOST_COLUMNS:
            break
    left_out = len(alignment.operations) - len(columns)
    return Row(_clipped(name, _LONGEST_NAME), alignment.counts.errors, tuple(columns), left_out)


def _clipped(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
