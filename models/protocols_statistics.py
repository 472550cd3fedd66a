"""What the cells of the experiment come to: rates over the whole set, with paired bootstrap intervals.

Utterances are drawn with replacement, the same draws for every cell and measure (Bisani and Ney 2004; Koehn 2004). A
cell of several passes is their mean, utterance by utterance: its interval is that of the choice of utterances, and how
far the passes lie apart stands beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from models.base import FloatArray
from models.evaluation_set import EvaluationSet
from models.prefix_tree import IntArray
from models.protocols import BASE, Cell, Pass

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
    """One rate of one cell, and how it differs from that of the cell in original order, reset and static.

    value:      of the mean over the cell's passes
    difference: of the values; negative is better
    p_value:    two-sided: twice the share of resamples on the rarer side of no difference, ties on both sides
    by_pass:    the rate of each pass
    """

    value: float
    interval: Interval
    difference: float
    difference_interval: Interval
    p_value: float
    by_pass: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CellSummary:
    """One cell; perplexities by what the reference was scored with, "mixture" or a network's name.

    wer:          errors per reference word, in per cent
    perplexities: of the references, </s> counted; without_oov leaves out the words outside the vocabulary
    """

    wer: Measure
    perplexities: Mapping[str, Measure]
    without_oov: Mapping[str, Measure]


@dataclass(frozen=True, slots=True)
class _Rate:
    """A rate of sums over utterances.

    kind:   "wer", "perplexity" or "without_oov"
    source: what the reference was scored with; empty for the word error rate
    """

    kind: str
    source: str = ""

    def parts(self, one: Pass) -> FloatArray:
        """(n,) what each utterance of a pass adds to the numerator."""
        if self.kind == "wer":
            return one.errors.astype(np.float64)
        log_likelihoods = one.log_likelihoods[self.source]
        return log_likelihoods - one.oov_log_likelihoods[self.source] if self.kind == "without_oov" else log_likelihoods

    def over(self, evaluated: EvaluationSet) -> IntArray:
        """(n,) what each utterance adds to the denominator."""
        if self.kind == "wer":
            return evaluated.words
        events = evaluated.words + 1
        return events - evaluated.oov if self.kind == "without_oov" else events

    def of(self, ratio: FloatArray) -> FloatArray:
        """The rate, from the ratio of the sums."""
        return np.asarray(100 * ratio if self.kind == "wer" else np.exp(-ratio))


def summarise(
    passes: Mapping[Cell, Sequence[Pass]], evaluated: EvaluationSet, *, seed: int, resamples: int = RESAMPLES
) -> dict[Cell, CellSummary]:
    """Sum up every cell.

    passes: each cell's, all of the same utterances, the base cell among them
    """
    sources = list(passes[BASE][0].log_likelihoods)
    rates = [_Rate("wer"), *(_Rate(kind, source) for kind in ("perplexity", "without_oov") for source in sources)]
    means = [np.mean([rate.parts(one) for one in passes[cell]], axis=0) for rate in rates for cell in passes]
    table = np.stack([*means, *(rate.over(evaluated) for rate in rates)])
    sums = resampled_sums(table, evaluated.words, resamples, seed)
    base = list(passes).index(BASE)
    measures: dict[_Rate, dict[Cell, Measure]] = {}
    for number, rate in enumerate(rates):
        rows, over = slice(number * len(passes), (number + 1) * len(passes)), len(means) + number
        observed = rate.of(table[rows].sum(axis=1) / table[over].sum())
        drawn = rate.of(sums[rows] / sums[over])
        measures[rate] = {
            cell: measure_against(
                observed[[index, base]],
                drawn[[index, base]],
                [float(rate.of(rate.parts(one).sum() / table[over].sum())) for one in passes[cell]],
            )
            for index, cell in enumerate(passes)
        }
    return {
        cell: CellSummary(
            measures[_Rate("wer")][cell],
            {source: measures[_Rate("perplexity", source)][cell] for source in sources},
            {source: measures[_Rate("without_oov", source)][cell] for source in sources},
        )
        for cell in passes
    }


def measure_against(observed: FloatArray, drawn: FloatArray, by_pass: Sequence[float]) -> Measure:
    """One cell's rate against the base's.

    observed: (2,)   the rates of the cell and of the base
    drawn:    (2, R) the same of each resample
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
