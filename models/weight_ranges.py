"""Where weights are looked for, and what they cost far from their defaults."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from models.base import FloatArray
from models.development_set import PARAMETERS, DevelopmentSet
from models.errors import TuningError
from models.line_search import Penalty
from models.score import Weights


@dataclass(frozen=True, slots=True)
class SearchRange:
    """Where one weight is looked for: both ends included, zero always inside.

    steps: how many evenly spaced values a search over a grid tries
    """

    low: float
    high: float
    steps: int

    def grid(self) -> FloatArray:
        """The values of a grid, ascending, zero always among them."""
        return np.unique(np.append(np.linspace(self.low, self.high, self.steps), 0.0))

    def at_edge(self, value: float) -> bool:
        """Whether a value lies within half a step of an end, or beyond it."""
        margin = (self.high - self.low) / (self.steps - 1) / 2
        return not self.low + margin < value < self.high - margin


# With acoustic_scale 1. A negative LM scale is allowed, so that a model that does harm is seen to.
RANGES: Mapping[str, SearchRange] = {
    "acoustic_scale": SearchRange(0.0, 4.0, 41),
    "first_pass_scale": SearchRange(-10.0, 30.0, 81),
    "lm_scale": SearchRange(-5.0, 40.0, 91),
    "word_bonus": SearchRange(-60.0, 60.0, 121),
    "oov_bonus": SearchRange(-200.0, 100.0, 61),
}
_ACOUSTIC = PARAMETERS.index("acoustic_scale")
DEFAULTS = np.array([{f.name: f.default for f in fields(Weights)}[name] for name in PARAMETERS], np.float64)
HALF_RANGES = np.array([(RANGES[name].high - RANGES[name].low) / 2 for name in PARAMETERS])


@dataclass(frozen=True, slots=True)
class Regularisation:
    """A pull towards the weights that a bundle has before it is tuned.

    A weight that lies half its range away from its default, with acoustic_scale 1, must make the word error rate lower
    by `strength` points to be worth it; the penalty grows with the square of the distance, summed over the weights
    (a ridge, Hoerl and Kennard 1970). An acoustic score left out counts as one such distance.

    Raises TuningError for a strength that is negative or not finite.
    """

    strength: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.strength) and self.strength >= 0):
            raise TuningError(f"the strength of regularisation is {self.strength:g}; it must be 0 or more")

    def penalty(self, development: DevelopmentSet, off: frozenset[str]) -> Penalty | None:
        """What is added to a set's word errors; None where that is nothing. off: weights that cannot move."""
        if not self.strength:
            return None
        worth = self.strength / 100 * float(development.words.sum())
        free = np.array([name not in off for name in PARAMETERS])

        def added(weights: FloatArray) -> FloatArray:
            """(5, C) -> (C,)."""
            acoustic = weights[_ACOUSTIC]
            used = acoustic > 0
            distance = (weights / np.where(used, acoustic, 1.0) - DEFAULTS[:, None]) / HALF_RANGES[:, None]
            distance[_ACOUSTIC] = ~used
            return np.asarray(worth * (distance[free] ** 2).sum(axis=0))

        return added


NO_REGULARISATION = Regularisation()
