"""The paired bootstrap over utterances (Bisani and Ney 2004; Koehn 2004), on counts and seeded."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_DRAWS_AT_ONCE = 2_000_000


@dataclass(frozen=True, slots=True)
class Interval:
    """The middle 95% of the resamples, in per cent."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """How one system differs from another: its rate less the other's; negative is better.

    points:  in points of per cent
    p_value: two-sided: twice the share of resamples on the rarer side of no difference, ties on both sides
    """

    points: float
    interval: Interval
    p_value: float


@dataclass(frozen=True, slots=True)
class Resampled:
    """The rates of S systems on R resamples of the utterances, the same resamples for all.

    rates:    (S, R) errors per reference word, in per cent
    observed: (S,)   the same of the utterances as they are
    """

    rates: FloatArray
    observed: FloatArray

    def interval(self, system: int) -> Interval:
        """The interval of a system's rate."""
        return middle(self.rates[system])

    def difference(self, system: int, base: int) -> Difference:
        """How `system` differs from `base`."""
        differences = self.rates[system] - self.rates[base]
        R = len(differences)
        rarer = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
        return Difference(
            points=float(self.observed[system] - self.observed[base]),
            interval=middle(differences),
            p_value=min(1.0, 2 * (rarer + 1) / (R + 1)),
        )


def resample(errors: IntArray, words: IntArray, *, resamples: int, seed: int) -> Resampled:
    """Draw n utterances with replacement, `resamples` times, and sum their counts.

    errors: (S, n) errors per system and utterance
    words:  (n,)   reference words; their sum is not 0
    """
    sums = resampled_sums(np.concatenate([errors, words[None, :]]), words, resamples=resamples, seed=seed)
    return Resampled(100 * sums[:-1] / sums[-1], 100 * errors.sum(axis=1) / words.sum())


def resampled_sums(counts: IntArray, words: IntArray, *, resamples: int, seed: int) -> FloatArray:
    """(k, n) counts -> (k, resamples) the sum of each over n utterances drawn with replacement.

    words: (n,) reference words; their sum is not 0

    A resample without any reference word has no rate and is drawn anew; few references are that empty.
    """
    rng = np.random.default_rng(seed)
    k, n = counts.shape
    rows = np.concatenate([counts, words[None, :]]).astype(np.float64)
    chunks: list[FloatArray] = []
    have = 0
    while have < resamples:
        sums = rows @ _times_drawn(rng, min(resamples - have, max(1, _DRAWS_AT_ONCE // n)), n).T  # (k + 1, draws)
        sums = sums[:k, sums[k] > 0]
        chunks.append(sums)
        have += sums.shape[1]
    return np.concatenate(chunks, axis=1)


def _times_drawn(rng: np.random.Generator, draws: int, n: int) -> FloatArray:
    """(draws, n) how often each of n utterances is among n drawn with replacement."""
    times = np.empty((draws, n))
    for row, drawn in zip(times, rng.integers(0, n, size=(draws, n)), strict=True):
        row[:] = np.bincount(drawn, minlength=n)
    return times


def middle(values: npt.NDArray[Any]) -> Interval:
    """The middle 95% of values in per cent."""
    low, high = np.percentile(values, [2.5, 97.5])
    return Interval(float(low), float(high))
