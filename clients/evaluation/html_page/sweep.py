"""WER by lm_scale, computed exactly from the parts of the totals in a result file."""

from dataclasses import dataclass

import numpy as np

from ..bootstrap import FloatArray, IntArray

# Multiples of the scale that the file was made with; without one, scales as they are.
_STEPS = np.arange(21, dtype=np.float64)
_AT_OWN = 10


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """WER in per cent, and errors, of the best totals at one lm_scale."""

    lm_scale: float
    errors: int
    wer: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """WER of one system by lm_scale. own: the scale that its file was made with."""

    system: str
    own: float
    points: tuple[SweepPoint, ...]


class SweepTally:
    """Sums errors over lists, at 21 values of lm_scale: from 0 to twice its own; from 0 to 20 where that is 0.

    At each value x a list's answer is the hypothesis with the highest total - lm_scale * lm + x * lm, the first of
    equal ones: all other weights, and the mixture behind lm, stay as they are.
    """

    def __init__(self, system: str, own: float) -> None:
        self._system, self._own = system, own
        # The tenth step is own / 10 * 10, which may differ from own in the last place.
        self._scales: FloatArray = _STEPS * (own / _AT_OWN if own else 1.0)
        self._scales[_AT_OWN if own else 0] = own
        self._errors = np.zeros(len(_STEPS), np.int64)
        self._words = 0

    def add(self, total: FloatArray, lm: FloatArray, errors: IntArray, words: int) -> None:
        """A list: total, lm and errors of its N hypotheses, each (N,) in input order; words of its reference."""
        totals = total + (self._scales - self._own)[:, None] * lm  # (21, N)
        self._errors += errors[totals.argmax(axis=1)]
        self._words += words

    def result(self) -> Sweep | None:
        """The curve; None where the references held no word."""
        if not self._words:
            return None
        pairs = zip(self._scales.tolist(), self._errors.tolist(), strict=True)
        points = tuple(SweepPoint(scale, count, 100 * count / self._words) for scale, count in pairs)
        return Sweep(self._system, self._own, points)
