"""What is kept of every utterance: a few numbers in arrays, one place an utterance, in the order in which they came."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .alignment import Alignment
from .bootstrap import IntArray
from .confusions import ConfusionTally
from .worst import WorstTally

# List sizes at which the oracle's errors are summed: 1, 2, 3, 5, 10, 20, 50, ... up to two million.
DEPTHS = np.array([1, 2, 3, *(m * 10**e for e in range(6) for m in (5, 10, 20))], np.int64)

_NOT_ENTERED = -1


def _numbers() -> "array[int]":
    return array("i")


@dataclass(slots=True)
class Place:
    """What one system did to one utterance.

    character_errors: as `CharacterCounts` counts them
    changed:          whether the words are others than the first pass's
    """

    alignment: Alignment
    character_errors: int
    changed: bool


@dataclass(slots=True)
class SystemTally:
    """The numbers of one system. Of an utterance that has not been entered they are -1.

    slots:         where errors lie (`Alignment.slots`), in the order in which utterances came; not of the oracle
    offsets:       per utterance, where its slots begin
    best_rank:     per utterance, the rank from 1 of the oracle in the system's ranking; not of the oracle
    depth_errors:  summed over utterances, the errors of the best of the first DEPTHS hypotheses of its ranking
    errors_before: summed, the errors before the normalisation that was chosen
    """

    name: str
    confusions: ConfusionTally
    worst: WorstTally
    substitutions: "array[int]" = field(default_factory=_numbers)
    deletions: "array[int]" = field(default_factory=_numbers)
    insertions: "array[int]" = field(default_factory=_numbers)
    character_errors: "array[int]" = field(default_factory=_numbers)
    changed: "array[int]" = field(default_factory=_numbers)
    best_rank: "array[int]" = field(default_factory=_numbers)
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    slots: "array[int]" = field(default_factory=_numbers)
    depth_errors: IntArray = field(default_factory=lambda: np.zeros(len(DEPTHS), np.int64))
    errors_before: int = 0

    def open(self, rows: int = 1) -> None:
        """Make room for utterances that are yet to be entered."""
        for column in self._columns():
            column.extend([_NOT_ENTERED] * rows)

    def entered(self, row: int) -> bool:
        """Whether an utterance has been entered."""
        return self.substitutions[row] != _NOT_ENTERED

    def missing(self) -> IntArray:
        """The rows of utterances that have not been entered."""
        return np.flatnonzero(view(self.substitutions) == _NOT_ENTERED)

    def enter(self, row: int, place: Place) -> None:
        """Enter what the system did to an utterance."""
        counts = place.alignment.counts
        self.substitutions[row] = counts.substitutions
        self.deletions[row] = counts.deletions
        self.insertions[row] = counts.insertions
        self.character_errors[row] = place.character_errors
        self.changed[row] = place.changed
        if counts.errors:
            self.confusions.add(place.alignment)

    def enter_slots(self, row: int, alignment: Alignment) -> None:
        """Enter where the errors lie."""
        self.offsets[row] = len(self.slots)
        self.slots.extend(alignment.slots())

    def enter_ranking(self, row: int, errors: IntArray, ranking: Sequence[int] | None) -> None:
        """Enter how good the first hypotheses of a ranking are.

        errors:  (N,) of the hypotheses, in input order
        ranking: input indices, best first; None for the input order
        """
        ranked = errors if ranking is None else errors[np.asarray(ranking)]
        self.best_rank[row] = int(ranked.argmin()) + 1
        self.depth_errors += np.minimum.accumulate(ranked)[np.minimum(DEPTHS, len(ranked)) - 1]

    def slots_in_order(self, words: IntArray) -> npt.NDArray[np.signedinteger]:
        """(sum of 2 words + 1,) the slots of all utterances, in the order of rows. words: (n,) of the references."""
        lengths = 2 * words + 1
        begins = np.cumsum(lengths) - lengths
        offsets = view(self.offsets)
        flat = view(self.slots)
        if np.array_equal(begins, offsets):
            return flat
        return np.asarray(flat[np.arange(lengths.sum()) + np.repeat(offsets - begins, lengths)])

    def _columns(self) -> "list[array[int]]":
        return [
            self.substitutions,
            self.deletions,
            self.insertions,
            self.character_errors,
            self.changed,
            self.best_rank,
            self.offsets,
        ]


def view(numbers: "array[int]") -> npt.NDArray[np.signedinteger]:
    """The numbers of an array, not copied."""
    return np.frombuffer(numbers, dtype=np.dtype(f"i{numbers.itemsize}"))
