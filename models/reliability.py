"""How far confidences tell the truth: calibration error, normalised cross entropy and a table to look at."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.base import FloatArray

BINS = 10
# One mistake of a word that was certain would make the cross entropy infinite.
_NEAREST = 1e-6


@dataclass(frozen=True, slots=True)
class Bin:
    """Words whose confidence lies in [low, high), the last bin's in [low, high].

    confidence: their mean confidence
    right:      the share of them that is right
    """

    low: float
    high: float
    words: int
    confidence: float
    right: float


@dataclass(frozen=True, slots=True)
class Reliability:
    """What confidences were worth on words of which it is known whether they are right.

    words, right:               counts
    calibration_error:          expected calibration error: the mean over words of |confidence - share right| of their
                                bins (Naeini, Cooper and Hauskrecht 2015)
    normalised_cross_entropy:   NCE as NIST defines it (Siu, Gish and Richardson 1997): with H = -(c log2(c/n) +
                                (n - c) log2(1 - c/n)) for c right words of n, (H + sum over right words of log2 p + sum
                                over wrong words of log2(1 - p)) / H. 1 is perfect; 0 is worth no more than knowing the
                                share of right words, and less than 0 is misleading. p is taken within [1e-6, 1 - 1e-6].
                                None where all words are right, or all wrong.
    bins:                       those that hold a word
    """

    words: int
    right: int
    calibration_error: float
    normalised_cross_entropy: float | None
    bins: tuple[Bin, ...]

    @classmethod
    def measured(cls, confidences: FloatArray, right: NDArray[np.bool_]) -> "Reliability":
        """Measure n words, at least one.

        confidences: (n,) in [0, 1]
        right:       (n,) whether each was said
        """
        count, correct = len(right), int(right.sum())
        number = np.minimum((confidences * BINS).astype(np.int64), BINS - 1)
        bins = tuple(
            Bin(
                low=place / BINS,
                high=(place + 1) / BINS,
                words=int(inside.sum()),
                confidence=float(confidences[inside].mean()),
                right=float(right[inside].mean()),
            )
            for place in range(BINS)
            if (inside := number == place).any()
        )
        error = math.fsum(part.words * abs(part.confidence - part.right) for part in bins) / count
        return cls(count, correct, error, _normalised_cross_entropy(confidences, right), bins)

    def to_json(self) -> Mapping[str, Any]:
        """Every number, by name."""
        return asdict(self)


def _normalised_cross_entropy(confidences: FloatArray, right: NDArray[np.bool_]) -> float | None:
    count, correct = len(right), int(right.sum())
    if correct in {0, count}:
        return None
    share = correct / count
    most = -(correct * math.log2(share) + (count - correct) * math.log2(1 - share))
    chance = np.clip(confidences, _NEAREST, 1 - _NEAREST)
    told = float(np.log2(np.where(right, chance, 1 - chance)).sum())
    return (most + told) / most
