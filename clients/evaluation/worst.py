"""The utterances that went worst, with their alignments; a bounded number of them."""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from .alignment import Alignment


@dataclass(frozen=True, slots=True)
class WorstUtterance:
    """One of the utterances with the most errors.

    alignments: of the first pass, of the system and of the oracle, by name
    """

    utterance_id: str
    speaker: str | None
    errors: int
    alignments: Mapping[str, Alignment]


class WorstTally:
    """Keeps the `most` utterances with the most errors, of equal ones those that came first; none without an error."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[tuple[int, int, WorstUtterance]] = []

    def wants(self, errors: int) -> bool:
        """Whether an utterance with so many errors would be kept."""
        return self._most > 0 and errors > 0 and (len(self._heap) < self._most or errors > self._heap[0][0])

    def add(self, row: int, utterance: WorstUtterance) -> None:
        """Keep an utterance, and forget the best of those kept when there are too many."""
        entry = (utterance.errors, -row, utterance)
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    def worst_first(self) -> tuple[WorstUtterance, ...]:
        """What was kept."""
        return tuple(utterance for _, _, utterance in sorted(self._heap, key=lambda entry: (-entry[0], -entry[1])))
