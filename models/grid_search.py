"""The search for weights over grids of values: slow and coarse, and too plain to be wrong.

It is what the exact search is held against, in tests and in the benchmark; nothing is tuned with it.
"""

import numpy as np

from models.base import FloatArray
from models.development_set import PARAMETERS, DevelopmentSet
from models.prefix_tree import IntArray
from models.weight_ranges import RANGES
from models.weight_search import FoundWeights, best_of_starts

_MAX_SWEEPS = 12
_STARTS = 16


def grid_search(
    development: DevelopmentSet, *, off: frozenset[str] = frozenset(), seed: int = 0, starts: int = _STARTS
) -> FoundWeights:
    """The weights with the fewest errors that moving one weight after another over its grid finds.

    off: names of weights that are held at zero
    """
    generator = np.random.default_rng(seed)
    return best_of_starts(lambda values: _descend(development, values, off), off, generator, starts)


def grid_line(
    development: DevelopmentSet, origin: FloatArray, direction: FloatArray, grid: FloatArray
) -> tuple[float, int]:
    """The best t of a grid on origin + t * direction, as `middle_of_best` has it, and its word errors.

    grid: (G,) ascending, zero among them
    """
    counts = development.chosen_errors(origin[:, None] + grid * direction[:, None]).sum(axis=0)
    best = middle_of_best(grid, counts)
    return float(grid[best]), int(counts[best])


def _descend(development: DevelopmentSet, values: FloatArray, off: frozenset[str]) -> FoundWeights:
    errors = int(development.chosen_errors(values[:, None]).sum())
    for _ in range(_MAX_SWEEPS):
        before = errors
        for number, name in enumerate(PARAMETERS):
            if name in off:
                continue
            grid = np.unique(np.append(RANGES[name].grid(), values[number]))
            direction = np.zeros(len(PARAMETERS))
            direction[number] = 1.0
            origin = np.where(direction, 0.0, values)
            best, fewest = grid_line(development, origin, direction, grid)
            if fewest < errors or (fewest == errors and name != "acoustic_scale"):
                values = origin + best * direction
                errors = fewest
            if name == "acoustic_scale" and values[number] > 0:
                values = values / values[number]
                errors = int(development.chosen_errors(values[:, None]).sum())
        if errors >= before:
            break
    return FoundWeights(values, errors, float(errors))


def middle_of_best(grid: FloatArray, counts: IntArray) -> int:
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
