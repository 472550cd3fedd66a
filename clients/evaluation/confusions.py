"""Which words are mistaken for which, how often; in bounded memory."""

import heapq
from collections import Counter
from dataclasses import dataclass
from typing import TypeAlias

from .alignment import Alignment

# What was said and what was recognised; None on the side that has a gap.
Pair: TypeAlias = tuple[str | None, str | None]

_KINDS = {"S": "substitutions", "D": "deletions", "I": "insertions"}


@dataclass(frozen=True, slots=True)
class Confusion:
    """A word taken for another, deleted (hypothesis None) or inserted (reference None), so many times."""

    reference: str | None
    hypothesis: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Confusions:
    """The most frequent ones of one system, most frequent first.

    short_by_at_most: how far below the truth a count may lie; 0 unless there were too many different ones to keep
    """

    substitutions: tuple[Confusion, ...]
    deletions: tuple[Confusion, ...]
    insertions: tuple[Confusion, ...]
    short_by_at_most: int


class ConfusionTally:
    """Counts confusions; when there are more than `most` different ones, the rarest are forgotten.

    What is forgotten has been counted `least` times at most: the sum of these bounds how far a count can be short
    (lossy counting, Manku and Motwani 2002).
    """

    def __init__(self, most: int = 500_000) -> None:
        self._most = most
        self._counts: Counter[Pair] = Counter()
        self._short = 0

    def add(self, alignment: Alignment) -> None:
        """Count what is wrong in an alignment."""
        for letter, reference, hypothesis in alignment.columns():
            if letter != "C":
                self._counts[reference, hypothesis] += 1
        if len(self._counts) > self._most:
            self._forget()

    def most_frequent(self, number: int) -> Confusions:
        """The `number` most frequent of each kind; equally frequent ones in the order of their words."""
        kinds: dict[str, list[Confusion]] = {kind: [] for kind in _KINDS.values()}
        for (reference, hypothesis), count in self._counts.items():
            letter = "I" if reference is None else "D" if hypothesis is None else "S"
            kinds[_KINDS[letter]].append(Confusion(reference, hypothesis, count))
        best = {kind: tuple(heapq.nsmallest(number, found, key=_order)) for kind, found in kinds.items()}
        return Confusions(**best, short_by_at_most=self._short)

    def _forget(self) -> None:
        least = 0
        while len(self._counts) > self._most // 2:
            least = min(self._counts.values())
            self._counts = Counter({pair: count for pair, count in self._counts.items() if count > least})
        self._short += least


def _order(confusion: Confusion) -> tuple[int, str, str]:
    return -confusion.count, confusion.reference or "", confusion.hypothesis or ""
