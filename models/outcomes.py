"""The distinct word sequences of a list and their posteriors: what every decision rule starts from.

Masses are whole numbers of 2^-40. Sums over a list are then exact: equal risks are equal and not nearly so, and
neither the order of a list nor the machine that adds them up decides between two hypotheses.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

from models.base import FloatArray
from models.prefix_tree import IntArray

_UNIT = 2**40
# So many rows of distances are held at a time: with 2,000 outcomes, two megabytes.
_ROWS = 256


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The M distinct word sequences among N hypotheses, most probable first, whatever order these came in.

    words: the sequences
    codes: the same as numbers, one a distinct word
    spelling: the word that each number is
    mass:  (M,) posteriors in units of 2^-40
    of:    (N,) the outcome that each hypothesis is
    """

    words: tuple[tuple[str, ...], ...]
    codes: tuple[list[int], ...]
    spelling: tuple[str, ...]
    mass: IntArray
    of: IntArray

    @classmethod
    def merged(cls, hypotheses: Sequence[tuple[str, ...]], total: FloatArray, posterior_scale: float) -> "Outcomes":
        """Merge hypotheses of the same words: together they have the mass of the best of them, as in models/score.py.

        hypotheses: the words of each
        total:      (N,) totals; posterior_scale times each is finite
        """
        best: dict[tuple[str, ...], tuple[float, float]] = {}
        for words, value in zip(hypotheses, total.tolist(), strict=True):
            key = (posterior_scale * value, value)
            best[words] = max(best.get(words, key), key)
        ordered = sorted(best, key=lambda words: (-best[words][0], -best[words][1], words))
        top = best[ordered[0]][0]
        shares = [math.exp(best[words][0] - top) for words in ordered]
        whole = math.fsum(shares)
        number = {words: place for place, words in enumerate(ordered)}
        code: dict[str, int] = {}
        codes = tuple([code.setdefault(word, len(code)) for word in words] for words in ordered)
        return cls(
            words=tuple(ordered),
            codes=codes,
            spelling=tuple(code),
            mass=np.array([round(_UNIT * share / whole) for share in shares], np.int64),
            of=np.array([number[words] for words in hypotheses], np.int64),
        )

    @property
    def posteriors(self) -> FloatArray:
        """(M,) posteriors, summing to 1."""
        shares: FloatArray = self.mass / self.mass.sum()
        return shares

    def risks(self, candidates: Sequence[Sequence[int]]) -> IntArray:
        """(C,) expected word errors of candidates, in units of the whole mass: sum_j mass_j * d(candidate, outcome_j).

        d is the Levenshtein distance of words: the fewest substitutions, insertions and deletions.

        candidates: codes of words
        """
        weighty = np.flatnonzero(self.mass)
        against = [self.codes[j] for j in weighty.tolist()]
        parts = [
            cdist(candidates[first : first + _ROWS], against, scorer=Levenshtein.distance, dtype=np.int32)
            for first in range(0, len(candidates), _ROWS)
        ]
        return np.concatenate([part.astype(np.int64) @ self.mass[weighty] for part in parts])

    def expected_errors(self, risks: IntArray) -> FloatArray:
        """Risks as expected word errors."""
        expected: FloatArray = risks / self.mass.sum()
        return expected
