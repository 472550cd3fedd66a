"""Interpolation weights by expectation maximisation on held-out text."""

from dataclasses import dataclass

import numpy as np

from models.base import FloatArray
from models.errors import TuningError
from models.score import interpolate

_MAX_ROUNDS = 1000


@dataclass(frozen=True, slots=True)
class FittedMixture:
    """The outcome of EM.

    lambdas:       (M,) interpolation weights, summing to 1
    log_likelihood: sum over words of ln sum_m lambda_m P_m
    words:         the number of events, </s> counted
    rounds:        how many rounds were needed
    """

    lambdas: FloatArray
    log_likelihood: float
    words: int
    rounds: int

    @property
    def perplexity(self) -> float:
        """Exp of the mean negative log-likelihood a word."""
        return float(np.exp(-self.log_likelihood / self.words))


def fit_lambdas(log_probs: FloatArray, *, tolerance: float = 1e-9) -> FittedMixture:
    """The interpolation weights that make held-out words most likely (Jelinek and Mercer 1980).

    Each round gives every model the share of the words that it explains: lambda_m <- mean_t lambda_m P_m(t) / P(t).
    The log-likelihood is concave in lambda and never falls from round to round.

    log_probs: (M, T) ln P_m(w_t | h_t) of each model on the held-out words
    tolerance: stop when no weight moves by more

    Raises TuningError when there are no words, or a word that no model gives a probability.
    """
    models, words = log_probs.shape
    if words == 0:
        raise TuningError("the held-out text is empty")
    peak = log_probs.max(axis=0)
    if not np.all(np.isfinite(peak)):
        raise TuningError(f"no model gives word {int(np.argmin(np.isfinite(peak)))} of the held-out text a probability")
    likelihood = np.exp(log_probs - peak)
    lambdas = np.full(models, 1 / models)
    rounds = 0
    for rounds in range(1, _MAX_ROUNDS + 1):  # noqa: B007 - reported
        joint = lambdas[:, None] * likelihood
        updated = (joint / joint.sum(axis=0)).mean(axis=1)
        moved = np.abs(updated - lambdas).max()
        lambdas = updated
        if moved <= tolerance:
            break
    lambdas = lambdas / lambdas.sum()
    total = float(interpolate(log_probs, lambdas).sum())
    return FittedMixture(lambdas, total, words, rounds)
