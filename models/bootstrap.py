"""The paired bootstrap over utterances (Bisani and Ney 2004; Koehn 2004), on sums and seeded.

Utterances are drawn with replacement, the same draws for all that is compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.base import FloatArray
from models.prefix_tree import IntArray

RESAMPLES = 10_000
_DRAWS_AT_ONCE = 2_000_000
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Interval:
    """The middle 95 % of the resamples."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Measure:
    """A rate, and how it differs from that of a base on the same utterances.

    value:      of the mean over the passes that there are of what is measured
    difference: to the base's value; negative is better
    p_value:    two-sided: twice the share of resamples on the rarer side of no difference, ties on both sides
    by_pass:    the rate of each pass
    """

    value: float
    interval: Interval
    difference: float
    difference_interval: Interval
    p_value: float
    by_pass: tuple[float, ...]


def measure_against(observed: FloatArray, drawn: FloatArray, by_pass: Sequence[float]) -> Measure:
    """A rate against a base's.

    observed: (2,)   the rate and the base's
    drawn:    (2, R) the same of each resample
    by_pass:  the rate of each pass
    """
    differences, difference = _difference(*drawn), _difference(*observed)
    rarer = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    return Measure(
        value=float(observed[0]),
        interval=_middle(drawn[0]),
        difference=float(difference),
        difference_interval=_middle(differences),
        p_value=min(1.0, 2 * (rarer + 1) / (len(differences) + 1)),
        by_pass=tuple(by_pass),
    )


def _difference(rate: FloatArray, base: FloatArray) -> FloatArray:
    """Rate less base; a difference that is float rounding alone, as between a value and a mean of its copies, is 0."""
    difference = rate - base
    return np.where(np.abs(difference) > _ROUNDING * np.abs(base), difference, 0.0)


def _middle(values: FloatArray) -> Interval:
    low, high = np.percentile(values, [2.5, 97.5])
    return Interval(float(low), float(high))


def resampled_sums(rows: FloatArray, words: IntArray, resamples: int, seed: int) -> FloatArray:
    """(k, n) -> (k, resamples) the sum of each row over n utterances drawn with replacement.

    words: (n,) reference words; draws without any have no error rate and are drawn anew
    """
    rng = np.random.default_rng(seed)
    n = rows.shape[1]
    chunks: list[FloatArray] = []
    have = 0
    while have < resamples:
        count = min(resamples - have, max(1, _DRAWS_AT_ONCE // n))
        times = np.stack([np.bincount(drawn, minlength=n) for drawn in rng.integers(0, n, size=(count, n))])
        times = times[times @ words > 0]
        chunks.append(rows @ times.T)
        have += len(times)
    return np.concatenate(chunks, axis=1)
