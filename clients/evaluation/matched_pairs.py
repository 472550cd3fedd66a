"""The matched-pairs sentence-segment word error test (Gillick and Cox 1989), as NIST's sc_stats applies it.

A segment is a stretch of an utterance in which at least one of two systems errs. Two errors belong to one segment
unless at least `boundary_words` words lie between them that both systems recognised, with nothing inserted between
those; the ends of an utterance bound segments, too. Errors of different segments are taken to be independent, and so

    Z = mean / (s / sqrt(n)),   s^2 = sum_i (d_i - mean)^2 / (n - 1)

of the differences d_i, errors of one system less errors of the other in segment i, is compared with the normal
distribution. That is sound for many segments, some fifty or more.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .bootstrap import IntArray

SlotArray = npt.NDArray[np.signedinteger]


@dataclass(frozen=True, slots=True)
class MatchedPairs:
    """The outcome of the test.

    segments: n
    mean:     errors of the one system less errors of the other, a segment; 0 where there is no segment
    z:        the statistic, negative where the one system errs less; None where it is not defined, as where all of
              few segments differ alike
    p_value:  two-sided; None where z is
    """

    segments: int
    mean: float
    z: float | None
    p_value: float | None


def matched_pairs(one: SlotArray, other: SlotArray, words: IntArray, *, boundary_words: int = 2) -> MatchedPairs:
    """Test whether two systems err equally often.

    one, other: (sum of 2 words + 1,) errors by slot, as `Alignment.slots` gives them, utterance after utterance
    words:      (n,) reference words of each utterance
    """
    differences = segment_differences(one, other, words, boundary_words=boundary_words)
    n = len(differences)
    mean = float(differences.mean()) if n else 0.0
    if not differences.any():
        return MatchedPairs(n, 0.0, 0.0, 1.0)
    deviation = float(differences.std(ddof=1)) if n > 1 else 0.0
    if not deviation:
        return MatchedPairs(n, mean, None, None)
    z = mean / (deviation / math.sqrt(n))
    return MatchedPairs(n, mean, z, math.erfc(abs(z) / math.sqrt(2)))


def segment_differences(one: SlotArray, other: SlotArray, words: IntArray, *, boundary_words: int) -> IntArray:
    """(segments,) errors of `one` less errors of `other` in each segment, in order."""
    spots = np.flatnonzero((one > 0) | (other > 0))
    if not len(spots):
        return np.zeros(0, np.int64)
    ends = np.cumsum(2 * words + 1)
    utterance = np.searchsorted(ends, spots, side="right")
    within = spots - (ends - (2 * words + 1))[utterance]
    # Words are the odd slots. Those strictly between two neighbouring errors are correct in both.
    between = within[1:] // 2 - (within[:-1] + 1) // 2
    begins = (utterance[1:] != utterance[:-1]) | (between >= boundary_words)
    first = np.flatnonzero(np.concatenate([[True], begins]))
    return np.add.reduceat(one[spots].astype(np.int64) - other[spots], first)
