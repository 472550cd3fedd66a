"""A hypothesis aligned with its reference, by jiwer: the fewest edits, each of cost 1."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import jiwer

from ..errors import EvaluationError
from .counts import ErrorCounts

Words: TypeAlias = Sequence[str]

# jiwer's default strips and collapses any white space; here words are words already, parted by one space.
_SPLIT = jiwer.ReduceToListOfListOfWords(" ")
_LETTERS = {"equal": "C", "substitute": "S", "delete": "D", "insert": "I"}


@dataclass(frozen=True, slots=True)
class Alignment:
    """Which word answers to which.

    operations: a letter per column, C correct, S substituted, D deleted, I inserted
    """

    reference: tuple[str, ...]
    hypothesis: tuple[str, ...]
    operations: str

    def columns(self) -> Iterator[tuple[str, str | None, str | None]]:
        """Letter, word of the reference, word of the hypothesis; None where a side has a gap."""
        reference, hypothesis = iter(self.reference), iter(self.hypothesis)
        for letter in self.operations:
            yield letter, None if letter == "I" else next(reference), None if letter == "D" else next(hypothesis)

    @property
    def counts(self) -> ErrorCounts:
        """The errors of this utterance."""
        S, D, I = (self.operations.count(letter) for letter in "SDI")  # noqa: E741 - the letters of the field
        return ErrorCounts(len(self.reference), S, D, I, 1, int(S + D + I > 0))

    def slots(self) -> "array[int]":
        """(2 T + 1,) where the errors lie, for a reference of T words.

        Slot 2 t + 1 is 1 where word t is substituted or deleted; slot 2 t counts the words inserted before word t,
        slot 2 T those after the last.
        """
        slots = array("i", bytes(4 * (2 * len(self.reference) + 1)))
        spot = 0
        for letter in self.operations:
            if letter == "I":
                slots[spot] += 1
                continue
            slots[spot + 1] = letter != "C"
            spot += 2
        return slots


def align(reference: Words, hypothesis: Words) -> Alignment:
    """Align a hypothesis with its reference. Against an empty reference each of its words is an insertion.

    reference, hypothesis: words without a space in them, none of them empty; else EvaluationError is raised
    """
    if reference == hypothesis:
        return Alignment(tuple(reference), tuple(hypothesis), "C" * len(reference))
    out = jiwer.process_words([" ".join(reference)], [" ".join(hypothesis)], _SPLIT, _SPLIT)
    if (len(out.references[0]), len(out.hypotheses[0])) != (len(reference), len(hypothesis)):
        raise EvaluationError("a word is empty or holds a space")
    operations = "".join(
        _LETTERS[part.type] * max(part.ref_end_idx - part.ref_start_idx, part.hyp_end_idx - part.hyp_start_idx)
        for part in out.alignments[0]
    )
    return Alignment(tuple(reference), tuple(hypothesis), operations)


def count_errors(reference: Words, hypothesis: Words) -> ErrorCounts:
    """The errors of one hypothesis."""
    return align(reference, hypothesis).counts
