"""What a step costs, learnt from the steps there were.

    seconds = overhead + per_list * lists + per_token * tokens,   each coefficient >= 0

fitted by least squares on relative errors, so that a step of a millisecond counts as much as one of a second. Older
steps are forgotten exponentially (recursive least squares as sums of products: Ljung, System Identification, 1999,
section 11.2). A step that took many times longer or shorter than foreseen is believed only in part, and more with each
that follows it: one that was held up by something else hardly moves the estimate, a lasting change does within some
steps.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

# A step before this many others counts for 1/e of a new one.
_MEMORY_STEPS = 60
# Before this many steps nothing is foretold: the first ones load libraries and warm caches.
_ENOUGH_STEPS = 8
# Once that many were seen, coefficients are found anew after so many steps, or after a surprise.
_FIT_EVERY = 8
# A step of more than this many times what was foreseen, or of less than its part, is a surprise. So many of them in a
# row are a change: with each, what was before counts for so much less.
_SURPRISE = 2.0
_CHANGE = 3
_KEPT_AT_A_CHANGE = 0.1
# Pulls coefficients to zero where the steps seen cannot tell them apart: what could be due to lists or to tokens is
# then put down to tokens.
_PULL = np.array([1e-3, 1e-3, 1e-5])
_TOKENS_UNIT = 1000.0
_LEAST_S = 1e-5
# Kinds of work that are told apart; beyond it, the one that was longest not seen is forgotten.
_MOST_KINDS = 32
# A step may take this many times its fixed part, however short steps shall be: less would give capacity away.
_OVERHEADS = 8.0

_SUBSETS = np.array(list(product((False, True), repeat=3))[1:])

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Load:
    """Work for the scoring thread.

    lists:  N-best lists
    tokens: words and sentence ends in them
    """

    lists: int
    tokens: int

    def __add__(self, other: "Load") -> "Load":
        return Load(self.lists + other.lists, self.tokens + other.tokens)

    def __sub__(self, other: "Load") -> "Load":
        return Load(self.lists - other.lists, self.tokens - other.tokens)


class CostModel:
    """The cost of steps of one kind."""

    def __init__(self) -> None:
        self._squares: Floats = np.zeros((3, 3))
        self._products: Floats = np.zeros(3)
        self._coefficients: Floats = np.zeros(3)
        self._steps = 0
        self._surprises = 0

    @property
    def known(self) -> bool:
        """Whether enough steps were seen to foretell others."""
        return self._steps >= _ENOUGH_STEPS

    @property
    def overhead_s(self) -> float:
        """What a step costs whatever is in it, in seconds."""
        return float(self._coefficients[0])

    def seconds(self, load: Load) -> float:
        """What a step of this load will take, in seconds; 0 while nothing is known."""
        return float(self._coefficients @ _row(load)) if self.known else 0.0

    def observe(self, load: Load, seconds: float) -> None:
        """Learn from a step. Durations that are no finite number above 0 are passed over."""
        if not (math.isfinite(seconds) and seconds > 0):
            return
        foreseen = took = max(seconds, _LEAST_S)
        fit = not self.known or self._steps % _FIT_EVERY == 0
        if self.known:
            foreseen = max(self.seconds(load), _LEAST_S)
            believed = _SURPRISE ** (1 + min(self._surprises, _CHANGE))
            surprise = not foreseen / _SURPRISE <= took <= foreseen * _SURPRISE
            self._surprises = self._surprises + 1 if surprise else 0
            fit = fit or surprise
            took = min(max(took, foreseen / believed), foreseen * believed)
        keep = math.exp(-1 / _MEMORY_STEPS) if self._surprises < _CHANGE else _KEPT_AT_A_CHANGE
        row = _row(load) / foreseen
        self._squares = keep * self._squares + np.outer(row, row)
        self._products = keep * self._products + row * (took / foreseen)
        if fit:
            self._coefficients = _fit(self._squares, self._products)
        self._steps += 1


def _row(load: Load) -> Floats:
    return np.array([1.0, load.lists, load.tokens / _TOKENS_UNIT])


def _fit(squares: Floats, products: Floats) -> Floats:
    """The coefficients >= 0 of least squared error, (3,): of the fits with some of them 0, the best without a negative.

    squares:  (3, 3) sum of the outer products of rows
    products: (3,)   sum of rows times what they shall give
    """
    pulled = squares + np.diag(_PULL * np.diag(squares)) + 1e-12 * np.eye(3)
    both = _SUBSETS[:, :, None] & _SUBSETS[:, None, :]
    fits = np.linalg.solve(np.where(both, pulled, np.eye(3)), np.where(_SUBSETS, products, 0.0)[:, :, None])[:, :, 0]
    errors = np.einsum("si,ij,sj->s", fits, pulled, fits) - 2 * fits @ products
    errors[(fits < 0).any(axis=1)] = np.inf
    best: Floats = fits[int(np.argmin(errors))]
    return best


class Costs:
    """The cost models of all kinds of work; those long not seen are forgotten. Not for several threads at once."""

    def __init__(self) -> None:
        self._models: OrderedDict[Hashable, CostModel] = OrderedDict()

    def observe(self, kind: Hashable, load: Load, seconds: float) -> None:
        """Learn from a step of a kind."""
        self._models.setdefault(kind, CostModel()).observe(load, seconds)
        self._models.move_to_end(kind)
        if len(self._models) > _MOST_KINDS:
            self._models.popitem(last=False)

    def seconds(self, kind: Hashable, load: Load) -> float:
        """What one step will take, in seconds; 0 while nothing is known of its kind."""
        model = self._models.get(kind)
        return model.seconds(load) if model else 0.0

    def step_limit_s(self, kind: Hashable, target_s: float) -> float:
        """How long a step of a kind may take when it shall take no more than target_s, in seconds."""
        model = self._models.get(kind)
        return max(target_s, _OVERHEADS * model.overhead_s) if model and model.known else math.inf

    def backlog_s(self, waiting: Iterable[tuple[Hashable, Load]], target_s: float) -> float:
        """How long all that waits will take, in steps of at most target_s, in seconds."""
        return sum(self._in_steps(kind, load, target_s) for kind, load in waiting)

    def _in_steps(self, kind: Hashable, load: Load, target_s: float) -> float:
        model = self._models.get(kind)
        if model is None or not model.known or not load.lists:
            return 0.0
        whole = model.seconds(load)
        steps = math.ceil(whole / self.step_limit_s(kind, target_s))
        return whole + (min(steps, load.lists) - 1) * model.overhead_s
