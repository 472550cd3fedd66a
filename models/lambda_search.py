"""Interpolation weights for word errors: the mixture of every word anew at each candidate.

The mixture is linear in the models' probabilities, not in their logs, so it is no line on the error surface and there
is no envelope to walk. Shares on a grid are tried instead, one model after another, the others keeping their ratios; at
each the best lm_scale is found exactly. This is done in turns with the search for all scales. It starts from the
weights that make the held-out text most likely, moves no further from them than fewer errors demand, and what it finds
is taken only if it makes fewer errors than they do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from models.base import FloatArray
from models.development_set import DevelopmentSet
from models.prefix_tree import IntArray
from models.score import interpolate
from models.scored_lists import ScoredLists
from models.weight_ranges import NO_REGULARISATION, Regularisation
from models.weight_search import FoundWeights, along_weight, improve, steady_search

LambdasFor = Literal["perplexity", "wer"]
_SHARES = np.linspace(0.0, 1.0, 21)
_MAX_ROUNDS = 3
_PAIR = 2


@dataclass(frozen=True, slots=True)
class MixtureScores:
    """What every model gives every word of the hypotheses, ready to be mixed anew.

    log_probs: (M, E) ln P of each model and event
    events:    (W,) the event of each word, </s> counted, one hypothesis after another
    lengths:   (hypotheses,) words of each, </s> counted
    """

    log_probs: FloatArray
    events: IntArray
    lengths: IntArray

    @classmethod
    def from_scores(cls, scored: Sequence[ScoredLists], models: Sequence[str]) -> "MixtureScores":
        """All batches of development lists, hypotheses in the order of a DevelopmentSet."""
        rows: list[IntArray] = []
        log_probs: list[FloatArray] = []
        before = 0
        for batch in scored:
            hypotheses = sum(len(prepared.ids) for prepared in batch.lists)
            rows += [before + np.asarray(row) for row in batch.tree.sentences[:hypotheses]]
            log_probs.append(np.stack([batch.by_model[name] for name in models]))
            before += log_probs[-1].shape[1]
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return cls(np.concatenate(log_probs, axis=1), np.concatenate(rows), lengths)

    def subset(self, hypotheses: NDArray[np.bool_]) -> "MixtureScores":
        """The hypotheses marked True."""
        events = self.events[np.repeat(hypotheses, self.lengths)]
        return MixtureScores(self.log_probs, events, self.lengths[hypotheses])

    def lm(self, lambdas: FloatArray) -> FloatArray:
        """(M,) interpolation weights -> (hypotheses,) ln P of each under the mixture."""
        begins = np.cumsum(self.lengths) - self.lengths
        sums: FloatArray = np.add.reduceat(interpolate(self.log_probs, lambdas)[self.events], begins)
        return sums


@dataclass(frozen=True, slots=True)
class FoundMixture:
    """Interpolation weights, (M,), and the scales and bonuses found with them."""

    lambdas: FloatArray
    weights: FoundWeights


def search_lambdas(
    development: DevelopmentSet,
    scores: MixtureScores,
    start: FloatArray,
    *,
    off: frozenset[str] = frozenset(),
    seed: int = 0,
    regularisation: Regularisation = NO_REGULARISATION,
) -> FoundMixture:
    """Interpolation weights, scales and bonuses together; never more errors than with the weights given.

    With a regularisation it is the errors and the penalty together that are never more.

    scores: of the hypotheses of the development set
    start:  (M,) such as EM finds
    off:    names of weights that are held at zero
    """
    begun = development.with_lm(scores.lm(start))
    found = steady_search(begun, off=off, seed=seed, regularisation=regularisation)
    if len(start) == 1 or "lm_scale" in off:
        return FoundMixture(start, found)
    lambdas, at = start, found
    for _ in range(_MAX_ROUNDS):
        moved = lambdas
        # Of two models, to move the one is to move the other.
        for model in range(len(start) if len(start) > _PAIR else 1):
            moved, at = _along_share(development, scores, moved, model, at, off, regularisation)
        if np.array_equal(moved, lambdas):
            break
        lambdas = moved
        at = improve(development.with_lm(scores.lm(lambdas)), at.values, off=off, regularisation=regularisation)
    if np.array_equal(lambdas, start):
        return FoundMixture(start, found)
    steady = steady_search(development.with_lm(scores.lm(lambdas)), off=off, seed=seed, regularisation=regularisation)
    return FoundMixture(lambdas, steady) if steady.objective < found.objective else FoundMixture(start, found)


def _along_share(
    development: DevelopmentSet,
    scores: MixtureScores,
    lambdas: FloatArray,
    model: int,
    at: FoundWeights,
    off: frozenset[str],
    regularisation: Regularisation,
) -> tuple[FloatArray, FoundWeights]:
    """Give one model the share with the fewest errors, the nearest of equals; stay where none is better."""
    best, best_found = lambdas, at
    for share in sorted(_SHARES, key=lambda share: abs(share - lambdas[model])):
        candidate = with_share(lambdas, model, float(share))
        mixed = development.with_lm(scores.lm(candidate))
        found = along_weight(mixed, at.values, "lm_scale", off=off, regularisation=regularisation)
        if found.objective < best_found.objective:
            best, best_found = candidate, found
    return best, best_found


def with_share(lambdas: FloatArray, model: int, share: float) -> FloatArray:
    """(M,) interpolation weights with that of one model set; the others keep their ratios, evenly where all are 0."""
    others = np.delete(lambdas, model)
    total = others.sum()
    others = others / total if total > 0 else np.full(len(others), 1 / len(others))
    return np.insert((1 - share) * others, model, share)
