"""A bounded number of utterances that are worth a look, with their alignments."""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from ..alignment import Alignment


@dataclass(frozen=True, slots=True)
class Example:
    """One utterance.

    fewer:      word errors of the system less those of the first pass; negative where rescoring helped
    alignments: by the name of first pass, system or oracle
    """

    utterance_id: str
    speaker: str | None
    fewer: int
    alignments: Mapping[str, Alignment]


class Foremost:
    """Keeps the `most` examples with the smallest keys, of equal ones those that came first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[tuple[int, int, Example]] = []
        self._came = 0

    def wants(self, key: int) -> bool:
        """Whether an example with this key would be kept."""
        return len(self._heap) < self._most or (self._most > 0 and -key > self._heap[0][0])

    def add(self, key: int, example: Example) -> None:
        """Keep an example, and forget the one with the largest key when there are too many."""
        self._came += 1
        entry = (-key, -self._came, example)
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    def in_order(self) -> tuple[Example, ...]:
        """What was kept, the smallest key first."""
        return tuple(example for _, _, example in sorted(self._heap, key=lambda entry: (-entry[0], -entry[1])))
