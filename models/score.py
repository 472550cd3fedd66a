"""The score of a hypothesis: the one formula everything here serves.

    ln P(w_t | h_t) = ln sum_m lambda_m P_m(w_t | h_t)        linear, word by word; t = 1..T+1, w_{T+1} = </s>
    lm              = sum_t ln P(w_t | h_t)
    total           = acoustic_scale * acoustic + first_pass_scale * first_pass
                      + lm_scale * lm + word_bonus * T + oov_bonus * (number of OOV words)
    posterior_i     = softmax over the list of posterior_scale * total_i

Linear interpolation of models, word by word: Jelinek and Mercer 1980; with recurrent networks: Mikolov et al. 2010.
Every score is a natural logarithm.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from models.base import FloatArray
from models.errors import InvalidWeightsError, UnknownModelError

_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Weights:
    """How the parts of a total are weighed. Zero is a value: it switches its part off.

    interpolation:    model name -> lambda; non-negative, summing to 1; a model not named has weight 0
    acoustic_scale:   on ln p(audio | words)
    first_pass_scale: on the recogniser's own ln p(words)
    lm_scale:         on the mixture's ln p(words)
    word_bonus:       added per word, </s> not counted; positive favours longer hypotheses
    oov_bonus:        added per word outside the vocabulary
    posterior_scale:  on the totals inside the softmax; it changes posteriors, and of rankings only those by
                      expected errors

    Raises InvalidWeightsError when a value is not finite or the lambdas are no distribution.
    """

    interpolation: Mapping[str, float]
    acoustic_scale: float = 1.0
    first_pass_scale: float = 0.0
    lm_scale: float = 10.0
    word_bonus: float = 0.0
    oov_bonus: float = 0.0
    posterior_scale: float = 0.1

    def __post_init__(self) -> None:
        for name in SCALES:
            if not math.isfinite(getattr(self, name)):
                raise InvalidWeightsError(f"{name} is {getattr(self, name)}; it must be finite")
        for model, value in self.interpolation.items():
            if not (math.isfinite(value) and value >= 0):
                raise InvalidWeightsError(f"interpolation weight of {model!r} is {value}; it must be >= 0")
        total = math.fsum(self.interpolation.values())
        if abs(total - 1) > _SUM_TOLERANCE:
            raise InvalidWeightsError(f"the interpolation weights sum to {total:g}; they must sum to 1")

    def check_models(self, names: Sequence[str]) -> None:
        """Raise UnknownModelError when a weight is given to a model not among `names`."""
        for model in self.interpolation:
            if model not in names:
                raise UnknownModelError(f"no model named {model!r}; the bundle has {', '.join(names)}")


SCALES = tuple(f.name for f in fields(Weights) if f.name != "interpolation")


@dataclass(frozen=True, slots=True)
class Features:
    """What a list's hypotheses bring to the total, one entry a hypothesis, each of shape (N,).

    acoustic, first_pass, lm: natural logs, unscaled; first_pass is 0 throughout where the recogniser gave none
    words, oov:               counts of words, and of words outside the vocabulary
    """

    acoustic: FloatArray
    first_pass: FloatArray
    lm: FloatArray
    words: FloatArray
    oov: FloatArray

    def contributions(self, weights: Weights) -> dict[str, FloatArray]:
        """The summands of the total, by name, each of shape (N,)."""
        return {
            "acoustic": weights.acoustic_scale * self.acoustic,
            "first_pass": weights.first_pass_scale * self.first_pass,
            "lm": weights.lm_scale * self.lm,
            "word_bonus": weights.word_bonus * self.words,
            "oov_bonus": weights.oov_bonus * self.oov,
        }


def interpolate(log_probs: FloatArray, lambdas: FloatArray) -> FloatArray:
    """Linear interpolation of M models: ln sum_m lambda_m P_m(w_t | h_t).

    log_probs: (M, T) natural logs, <= 0; -inf where a model rules the word out
    lambdas:   (M,)   non-negative, summing to 1
    returns:   (T,)   natural logs
    """
    used = lambdas > 0
    out: FloatArray
    weighted = log_probs[used] + np.log(lambdas[used])[:, None]
    peak = weighted.max(axis=0)
    peak[~np.isfinite(peak)] = 0.0
    with np.errstate(divide="ignore"):
        out = np.minimum(peak + np.log(np.exp(weighted - peak).sum(axis=0)), 0.0)
    return out


def totals(features: Features, weights: Weights) -> FloatArray:
    """The total of each hypothesis, (N,)."""
    total: FloatArray = np.sum(list(features.contributions(weights).values()), axis=0)
    return total


def rank(total: FloatArray) -> list[int]:
    """Input indices, best total first; ties keep the input order."""
    order: list[int] = np.argsort(-total, kind="stable").tolist()
    return order


def posteriors(total: FloatArray, posterior_scale: float, identities: Sequence[Hashable]) -> FloatArray:
    """Softmax over the list of posterior_scale * total, (N,), in [0, 1] and summing to 1.

    Hypotheses of the same words are one outcome: together they have the mass of the best of them, shared in
    proportion to their own exp(posterior_scale * total), so a repeated line does not gain by being repeated.

    identities: per hypothesis, what it says; equal entries are the same words
    """
    number: dict[Hashable, int] = {}
    group = np.array([number.setdefault(key, len(number)) for key in identities])
    scaled = posterior_scale * total
    with np.errstate(over="ignore"):
        # Finite even where the difference is not: no share may become a NaN.
        scaled = np.maximum(scaled - scaled.max(), -np.finfo(np.float64).max)
    best = np.full(len(number), -np.inf)
    np.maximum.at(best, group, scaled)
    own = np.exp(scaled - best[group])
    mass = np.exp(best)
    mass /= mass.sum()
    shared: FloatArray = mass[group] * own / np.bincount(group, own)[group]
    return shared
