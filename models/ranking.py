"""The ranking of one list under given weights, and everything a caller may ask about it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from models.base import FloatArray
from models.decision import Consensus, WordConfidences, decide
from models.errors import InvalidNBestError
from models.nbest import NBest
from models.score import Weights, posteriors, totals
from models.scored_lists import ListWords, PreparedList, ScoredLists, list_features
from models.vocabulary import EOS


@dataclass(frozen=True, slots=True)
class WordScores:
    """Per-word values of one hypothesis, each of length T + 1, the last for </s>.

    words:    the words scored, </s> included
    mixture:  ln P(w_t | h_t) of the mixture; their sum is the hypothesis's lm
    by_model: the same of each model alone
    """

    words: tuple[str, ...]
    mixture: tuple[float, ...]
    by_model: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class RescoredHypothesis:
    """One hypothesis after rescoring; every score is a natural log.

    index:         its place in the input list, from 0
    text:          as it came
    words:         as it was scored: the normaliser's words
    oov:           how many of them are outside the vocabulary
    total:         what the ranking is by, unless by expected errors
    posterior:     its share of the list, in [0, 1]
    acoustic, first_pass, lm: the unscaled parts; first_pass is None where the recogniser gave none
    contributions: the scaled parts by name; they sum to `total`
    lm_by_model:   ln p(words) of each model that has weight, alone; of every model with word_scores
    word_scores:   per-word values, when asked for
    expected_errors:  word errors to be expected under the posteriors, when decided by them
    word_confidences: of the first-ranked hypothesis, when asked for
    """

    index: int
    text: str
    words: tuple[str, ...]
    oov: int
    total: float
    posterior: float
    acoustic: float
    first_pass: float | None
    lm: float
    contributions: Mapping[str, float]
    lm_by_model: Mapping[str, float]
    word_scores: WordScores | None = None
    expected_errors: float | None = None
    word_confidences: WordConfidences | None = None


@dataclass(frozen=True, slots=True)
class RescoredList:
    """The list of one utterance, best first: N hypotheses in, N out.

    consensus: the consensus hypothesis, when asked for
    """

    nbest: NBest
    ranking: tuple[RescoredHypothesis, ...]
    reference_words: tuple[str, ...] | None = None
    consensus: Consensus | None = None

    @property
    def best(self) -> RescoredHypothesis:
        """The first-ranked hypothesis: the one with the highest total, or the least expected errors."""
        return self.ranking[0]


def rank_list(
    scored: ScoredLists, prepared: PreparedList, first: int, weights: Weights, *, word_scores: bool
) -> RescoredList:
    """Weigh, rank and describe one list.

    first: the number of the list's first hypothesis among the sentences of the tree

    Raises InvalidNBestError when a total is no finite number.
    """
    nbest = prepared.nbest
    features, words = list_features(scored, prepared, first, weights.interpolation)
    with np.errstate(over="ignore", invalid="ignore"):
        total = totals(features, weights)
        finite = np.isfinite(total) & np.isfinite(weights.posterior_scale * total)
    if not finite.all():
        raise InvalidNBestError(
            f"utterance {nbest.utterance_id!r}, hypothesis {int(np.argmin(finite))}: "
            "the total is too large to be a number; look at the scores and scales"
        )
    posterior = posteriors(total, weights.posterior_scale, prepared.words)
    # What other lists of the batch needed is none of this list's business.
    names = [name for name in scored.by_model if word_scores or weights.interpolation.get(name, 0) > 0]
    by_model = {name: scored.by_model[name][words.events] for name in names}
    # Columns of numbers become Python's all at once, not hypothesis by hypothesis.
    oov, lm = features.oov.astype(np.int64).tolist(), features.lm.tolist()
    ranked_by, shares = total.tolist(), posterior.tolist()
    contributions = _rows(features.contributions(weights))
    lm_by_model = _rows({name: words.sums(values) for name, values in by_model.items()})
    details = _word_scores(prepared, words, by_model) if word_scores else None
    verdict = decide(prepared.words, total, weights.posterior_scale, prepared.decision)
    expected = verdict.expected_errors
    ranking = tuple(
        RescoredHypothesis(
            index=index,
            text=(hypothesis := nbest.hypotheses[index]).text,
            words=prepared.words[index],
            oov=oov[index],
            total=ranked_by[index],
            posterior=shares[index],
            acoustic=hypothesis.acoustic,
            first_pass=hypothesis.first_pass,
            lm=lm[index],
            contributions=contributions[index],
            lm_by_model=lm_by_model[index],
            word_scores=details[index] if details else None,
            expected_errors=expected[index] if expected else None,
            word_confidences=None if place else verdict.word_confidences,
        )
        for place, index in enumerate(verdict.order)
    )
    return RescoredList(nbest, ranking, prepared.reference_words, verdict.consensus)


def _rows(columns: Mapping[str, FloatArray]) -> list[dict[str, float]]:
    """Columns of equal length, by name, as one mapping a row."""
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]


def _word_scores(prepared: PreparedList, words: ListWords, by_model: Mapping[str, FloatArray]) -> list[WordScores]:
    rows = {name: words.rows(values) for name, values in by_model.items()}
    return [
        WordScores(
            words=(*prepared.words[index], EOS),
            mixture=tuple(mixture.tolist()),
            by_model={name: tuple(values[index].tolist()) for name, values in rows.items()},
        )
        for index, mixture in enumerate(words.rows(words.mixture))
    ]
