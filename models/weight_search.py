"""The search for scales and bonuses with the fewest word errors on a development set.

The number of errors is a step function of the weights, so there is no gradient to follow. One weight after another
is moved over a grid, from several starts, until none helps (coordinate descent). Only ratios of weights matter to a
ranking, so the result is scaled to acoustic_scale = 1 unless the acoustic score is best left out.

The very best weights of one set are partly luck: a handful of errors decides between places far apart. `steady_search`
therefore averages what is found on random halves of the set (bagging, Breiman 1996).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from models.base import FloatArray
from models.development_set import PARAMETERS, DevelopmentSet
from models.prefix_tree import IntArray

_MAX_SWEEPS = 12


@dataclass(frozen=True, slots=True)
class SearchRange:
    """Values tried for one weight: evenly spaced, both ends included, zero always among them."""

    low: float
    high: float
    steps: int

    def grid(self) -> FloatArray:
        """The values, ascending."""
        return np.unique(np.append(np.linspace(self.low, self.high, self.steps), 0.0))


# With acoustic_scale 1. A negative LM scale is allowed, so that a model that does harm is seen to.
RANGES: Mapping[str, SearchRange] = {
    "acoustic_scale": SearchRange(0.0, 4.0, 41),
    "first_pass_scale": SearchRange(-10.0, 30.0, 81),
    "lm_scale": SearchRange(-5.0, 40.0, 91),
    "word_bonus": SearchRange(-60.0, 60.0, 121),
    "oov_bonus": SearchRange(-200.0, 100.0, 61),
}
_STARTS = 16
_HALVES = 20
_STARTS_A_HALF = 4
# As a share of the first pass's errors; on the demo's development set the mean makes 1 to 2 per cent more.
_CLEARLY_MORE = 0.05


@dataclass(frozen=True, slots=True)
class FoundWeights:
    """The best weights found: values in the order of PARAMETERS, and word errors on the set searched."""

    values: FloatArray
    errors: int

    def by_name(self) -> dict[str, float]:
        """The weights by name."""
        return dict(zip(PARAMETERS, self.values.tolist(), strict=True))


def search(
    development: DevelopmentSet, *, off: frozenset[str] = frozenset(), seed: int = 0, starts: int = _STARTS
) -> FoundWeights:
    """The weights with the fewest errors, from seeded random starts; never worse than the first pass.

    off: names of weights that are held at zero
    """
    generator = np.random.default_rng(seed)
    # All weights zero leave the recogniser's own order.
    best = _descend(development, np.zeros(len(PARAMETERS)), off)
    for start in range(starts):
        values = np.array([0.0 if name in off else _start_value(name, start, generator) for name in PARAMETERS])
        found = _descend(development, values, off)
        if found.errors < best.errors:
            best = found
    return best


def steady_search(development: DevelopmentSet, *, off: frozenset[str] = frozenset(), seed: int = 0) -> FoundWeights:
    """The mean of the weights found on random halves of the set.

    Where the mean makes clearly more errors than what `search` finds on the whole set, as between two optima far
    apart, or most halves leave the acoustic score out, so that the weights have no common measure, it is the latter.

    off: names of weights that are held at zero
    """
    generator = np.random.default_rng(seed)
    whole = search(development, off=off, seed=seed)
    halves = []
    for half in range(_HALVES):
        chosen = generator.permutation(development.lists) < max(1, development.lists // 2)
        halves.append(search(development.subset(chosen), off=off, seed=seed + half, starts=_STARTS_A_HALF).values)
    measured = [values for values in halves if values[PARAMETERS.index("acoustic_scale")]]
    if 2 * len(measured) <= len(halves):
        return whole
    mean = np.mean(measured, axis=0)
    errors = int(development.chosen_errors(mean[:, None]).sum())
    first_pass = int(development.first_pass_errors.sum())
    if errors > min(whole.errors + _CLEARLY_MORE * first_pass, first_pass):
        return whole
    return FoundWeights(mean, errors)


def _start_value(name: str, start: int, generator: np.random.Generator) -> float:
    if name == "acoustic_scale":
        return 1.0
    if start == 0:
        return 10.0 if name == "lm_scale" else 0.0
    if name == "oov_bonus":
        return 0.0
    spread = RANGES[name]
    return float(generator.uniform(spread.low / 2, spread.high / 2))


def _descend(development: DevelopmentSet, values: FloatArray, off: frozenset[str]) -> FoundWeights:
    errors = int(development.chosen_errors(values[:, None]).sum())
    for _ in range(_MAX_SWEEPS):
        before = errors
        for number, name in enumerate(PARAMETERS):
            if name in off:
                continue
            grid = np.unique(np.append(RANGES[name].grid(), values[number]))
            candidates = np.repeat(values[:, None], len(grid), axis=1)
            candidates[number] = grid
            counts = development.chosen_errors(candidates).sum(axis=0)
            if counts.min() < errors or (counts.min() == errors and name != "acoustic_scale"):
                values = candidates[:, _middle_of_best(grid, counts)]
                errors = int(counts.min())
            if name == "acoustic_scale" and values[number] > 0:
                values = values / values[number]
                errors = int(development.chosen_errors(values[:, None]).sum())
        if errors >= before:
            break
    return FoundWeights(values, errors)


def _middle_of_best(grid: FloatArray, counts: IntArray) -> int:
    """The grid index to take: zero where it is among the best, else the middle of the longest run of best values.

    The middle of a plateau is where a small change of the data does the least harm.
    """
    best = counts == counts.min()
    zero = int(np.flatnonzero(grid == 0.0)[0])
    if best[zero]:
        return zero
    edges = np.flatnonzero(np.diff(np.concatenate([[False], best, [False]]).astype(np.int8)))
    begins, ends = edges[::2], edges[1::2]
    longest = int(np.argmax(grid[ends - 1] - grid[begins]))
    return int((begins[longest] + ends[longest] - 1) // 2)
