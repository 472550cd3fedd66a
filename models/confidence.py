"""From the posterior of a word to the probability that the word is right: a monotone map fitted on known mistakes.

Posteriors from an N-best list are too sure of themselves: the list holds a small part of what could have been said, and
the scale of the softmax was not chosen for words. The map is logistic on the log odds,

    P(right) = 1 / (1 + exp(-(intercept + slope * ln(p / (1 - p))))),

with two numbers to find (Platt 1999), so a few hundred words suffice where a step function would learn their accidents.
They are found at the maximum of the posterior under a prior N(identity, 1): without evidence nothing is changed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.base import FloatArray
from models.errors import InvalidOptionError

# The log odds of a certainty are infinite, and a list on which all hypotheses agree is no proof.
_CLIP = 3e-3
_STEPS = 100
_CONVERGED = 1e-10


@dataclass(frozen=True, slots=True)
class ConfidenceMap:
    """P(right) = sigmoid(intercept + slope * log odds of the posterior), the posterior taken within [0.003, 0.997].

    Raises InvalidOptionError where a number is not finite, or the slope is negative: a word of a higher posterior may
    not be trusted less.
    """

    intercept: float
    slope: float

    def __post_init__(self) -> None:
        for name in ("intercept", "slope"):
            if not math.isfinite(getattr(self, name)):
                raise InvalidOptionError(f"confidence.{name} is {getattr(self, name)}; it must be finite")
        if self.slope < 0:
            raise InvalidOptionError(f"confidence.slope is {self.slope}; a negative one would turn confidences round")

    def __call__(self, posteriors: Sequence[float] | FloatArray) -> list[float]:
        """Confidences, in [0, 1] each."""
        confidences: list[float] = _sigmoid(self.intercept + self.slope * _log_odds(posteriors)).tolist()
        return confidences

    def to_json(self) -> dict[str, float]:
        """The map as it stands in bundle.json."""
        return {"intercept": self.intercept, "slope": self.slope}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "ConfidenceMap":
        """Read a map. Raises InvalidOptionError naming the field, KeyError where one is missing."""
        values = {name: document[name] for name in ("intercept", "slope")}
        for name, value in values.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidOptionError(f"confidence.{name} is {value!r}; it must be a number")
        return cls(**{name: float(value) for name, value in values.items()})


def fit_confidence(posteriors: FloatArray, right: NDArray[np.bool_]) -> ConfidenceMap:
    """The most probable map. posteriors: (n,) of words; right: (n,) whether each was said."""
    odds = _log_odds(posteriors)
    design = np.stack([np.ones_like(odds), odds], axis=1)
    intercept, slope = _most_probable(design, right, np.array([0.0, 1.0]))
    if slope < 0:
        # What is maximised is concave: where its maximum lies outside slope >= 0, the best inside lies on the border.
        (intercept,), slope = _most_probable(design[:, :1], right, np.zeros(1)), 0.0
    return ConfidenceMap(float(intercept), float(slope))


def _most_probable(design: FloatArray, right: NDArray[np.bool_], prior: FloatArray) -> FloatArray:
    """Logistic regression by Newton's method, the coefficients drawn to the (k,) prior. design: (n, k)."""

    def loss(values: FloatArray) -> float:
        logits = design @ values
        return float(np.logaddexp(0, np.where(right, -logits, logits)).sum() + ((values - prior) ** 2).sum() / 2)

    values = prior.copy()
    for _ in range(_STEPS):
        chances = _sigmoid(design @ values)
        gradient = design.T @ (chances - right) + values - prior
        curvature = (design * (chances * (1 - chances))[:, None]).T @ design + np.eye(len(prior))
        step = np.linalg.solve(curvature, gradient)
        before = loss(values)
        while loss(values - step) > before and np.abs(step).max() > _CONVERGED:
            step /= 2
        values = values - step
        if np.abs(step).max() <= _CONVERGED:
            break
    return values


def _log_odds(posteriors: Sequence[float] | FloatArray) -> FloatArray:
    clipped = np.clip(np.asarray(posteriors, np.float64), _CLIP, 1 - _CLIP)
    odds: FloatArray = np.log(clipped) - np.log1p(-clipped)
    return odds


def _sigmoid(logits: FloatArray) -> FloatArray:
    # Of minus the absolute value: exp cannot overflow.
    small = np.exp(-np.abs(logits))
    chances: FloatArray = np.where(logits >= 0, 1.0, small) / (1 + small)
    return chances
