"""What the cells of the experiment come to: rates over the whole set, with paired bootstrap intervals.

Utterances are drawn with replacement, the same draws for every cell and measure (Bisani and Ney 2004; Koehn 2004). A
cell of several passes is their mean, utterance by utterance: its interval is that of the choice of utterances, and how
far the passes lie apart stands beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from models.base import FloatArray
from models.bootstrap import RESAMPLES, Measure, measure_against, resampled_sums
from models.evaluation_set import EvaluationSet
from models.prefix_tree import IntArray
from models.protocols import BASE, Cell, Pass


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
