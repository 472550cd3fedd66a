"""The search for scales and bonuses with the fewest word errors on a development set.

The number of errors is a step function of the weights, so there is no gradient to follow. Along a line, though, it is
known exactly (`models/line_search.py`): one weight after another, then some random directions, are searched from
several starts until none helps. Only ratios of weights matter to a ranking, so the result is scaled to
acoustic_scale = 1 unless the acoustic score is best left out.

The very best weights of one set are partly luck: a handful of errors decides between places far apart. `steady_search`
therefore averages what is found on random halves of the set (bagging, Breiman 1996).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from models.base import FloatArray
from models.development_set import PARAMETERS, DevelopmentSet
from models.line_search import Penalty, search_line
from models.weight_ranges import DEFAULTS, HALF_RANGES, NO_REGULARISATION, RANGES, Regularisation

_ACOUSTIC = PARAMETERS.index("acoustic_scale")
_MAX_SWEEPS = 12
_STARTS = 16
_DIRECTIONS = 4
_HALVES = 20
_STARTS_A_HALF = 4
# Most hypotheses of a long list win under no weights at all.
_LONG_LIST = 32
_TRIED_FOR_WINNERS = 1024
_TRIED_AT_ONCE = 64
# As a share of the first pass's errors; on the demo's development set the mean makes 1 to 2 per cent more.
_CLEARLY_MORE = 0.05


@dataclass(frozen=True, slots=True)
class FoundWeights:
    """The best weights found: values in the order of PARAMETERS, and word errors on the set searched.

    objective: what was made small: the word errors, and the penalty of a regularised search
    """

    values: FloatArray
    errors: int
    objective: float

    def by_name(self) -> dict[str, float]:
        """The weights by name."""
        return dict(zip(PARAMETERS, self.values.tolist(), strict=True))


def search(
    development: DevelopmentSet,
    *,
    off: frozenset[str] = frozenset(),
    seed: int = 0,
    starts: int = _STARTS,
    regularisation: Regularisation = NO_REGULARISATION,
) -> FoundWeights:
    """The weights with the fewest errors, from seeded random starts; never worse than the first pass.

    off: names of weights that are held at zero
    """
    generator = np.random.default_rng(seed)
    likely = likely_winners(development, generator, off)
    found = _multi_start(likely, off, generator, starts, regularisation)
    if likely is development:
        return found
    first_pass = np.zeros(len(PARAMETERS))
    penalty = regularisation.penalty(development, off)
    finished = [_descend(development, values, off, generator, penalty) for values in (first_pass, found.values)]
    return min(finished, key=lambda end: end.objective)


def _multi_start(
    development: DevelopmentSet,
    off: frozenset[str],
    generator: np.random.Generator,
    starts: int,
    regularisation: Regularisation,
    *,
    directions: int = _DIRECTIONS,
) -> FoundWeights:
    penalty = regularisation.penalty(development, off)
    return best_of_starts(
        lambda values: _descend(development, values, off, generator, penalty, directions), off, generator, starts
    )


def likely_winners(
    development: DevelopmentSet, generator: np.random.Generator, off: frozenset[str] = frozenset()
) -> DevelopmentSet:
    """The hypotheses that come first under some of many weights drawn from the ranges; short lists stay as they are.

    On it a search sees nearly the errors of the whole set, some times faster. Its result must be counted anew.

    off: names of weights that are held at zero
    """
    if len(development.padded_errors[0]) < _LONG_LIST:
        return development
    kept = np.zeros(len(development.errors), bool)
    kept[development.starts[:-1]] = True
    held = [PARAMETERS.index(name) for name in off]
    low, high = (np.array([getattr(RANGES[name], end) for name in PARAMETERS]) for end in ("low", "high"))
    for _ in range(_TRIED_FOR_WINNERS // _TRIED_AT_ONCE):
        # Nearer to the default as often as far from it.
        share = generator.uniform(size=(_TRIED_AT_ONCE, 1)) ** 2
        drawn = DEFAULTS + share * (generator.uniform(low, high, (_TRIED_AT_ONCE, len(low))) - DEFAULTS)
        # Without the acoustic score is another place to look.
        drawn[::8, _ACOUSTIC] = 0.0
        drawn[:, held] = 0.0
        kept[(development.starts[:-1, None] + development.winners(drawn.T)).ravel()] = True
    return development.thinned(kept)


def best_of_starts(
    descend: Callable[[FloatArray], FoundWeights], off: frozenset[str], generator: np.random.Generator, starts: int
) -> FoundWeights:
    """The best of what a descent reaches from the recogniser's own order and from random starts."""
    # All weights zero leave the recogniser's own order.
    best = descend(np.zeros(len(PARAMETERS)))
    for start in range(starts):
        found = descend(_start(start, off, generator))
        if found.objective < best.objective:
            best = found
    return best


def steady_search(
    development: DevelopmentSet,
    *,
    off: frozenset[str] = frozenset(),
    seed: int = 0,
    regularisation: Regularisation = NO_REGULARISATION,
) -> FoundWeights:
    """The mean of the weights found on random halves of the set.

    Where the mean makes clearly more errors than what `search` finds on the whole set, as between two optima far
    apart, or most halves leave the acoustic score out, so that the weights have no common measure, it is the latter.

    off: names of weights that are held at zero
    """
    generator = np.random.default_rng(seed)
    whole = search(development, off=off, seed=seed, regularisation=regularisation)
    likely = likely_winners(development, generator, off)
    penalty = regularisation.penalty(development, off)
    halves = []
    for _ in range(_HALVES):
        part = likely.subset(generator.permutation(development.lists) < max(1, development.lists // 2))
        halves.append(_multi_start(part, off, generator, _STARTS_A_HALF, regularisation, directions=0).values)
    measured = [values for values in halves if values[_ACOUSTIC]]
    if 2 * len(measured) <= len(halves):
        return whole
    mean = _counted(development, np.mean(measured, axis=0), penalty)
    first_pass = int(development.first_pass_errors.sum())
    if mean.errors > min(whole.errors + _CLEARLY_MORE * first_pass, first_pass):
        return whole
    return mean


def improve(
    development: DevelopmentSet,
    values: FloatArray,
    *,
    off: frozenset[str] = frozenset(),
    seed: int = 0,
    regularisation: Regularisation = NO_REGULARISATION,
) -> FoundWeights:
    """What is found from given weights alone; never worse than they are. values: (5,)."""
    penalty = regularisation.penalty(development, off)
    return _descend(development, values, off, np.random.default_rng(seed), penalty)


def along_weight(
    development: DevelopmentSet,
    values: FloatArray,
    name: str,
    *,
    off: frozenset[str] = frozenset(),
    regularisation: Regularisation = NO_REGULARISATION,
) -> FoundWeights:
    """The best that moving a single weight can do, the others held. values: (5,)."""
    penalty = regularisation.penalty(development, off)
    return _along_weight(development, _counted(development, values, penalty), PARAMETERS.index(name), penalty)


def _start(start: int, off: frozenset[str], generator: np.random.Generator) -> FloatArray:
    """(5,) the default weights, then random ones."""
    halves = [(RANGES[name].low / 2, RANGES[name].high / 2) for name in PARAMETERS]
    drawn = DEFAULTS if start == 0 else np.array([generator.uniform(*half) for half in halves])
    fixed = np.array([name in {"acoustic_scale", "oov_bonus"} for name in PARAMETERS])
    return np.where([name in off for name in PARAMETERS], 0.0, np.where(fixed, DEFAULTS, drawn))


def _counted(development: DevelopmentSet, values: FloatArray, penalty: Penalty | None) -> FoundWeights:
    errors = int(development.chosen_errors(values[:, None]).sum())
    return FoundWeights(values, errors, errors + (float(penalty(values[:, None])[0]) if penalty else 0.0))


def _descend(
    development: DevelopmentSet,
    values: FloatArray,
    off: frozenset[str],
    generator: np.random.Generator,
    penalty: Penalty | None,
    directions: int = _DIRECTIONS,
) -> FoundWeights:
    found = _counted(development, values, penalty)
    for _ in range(_MAX_SWEEPS):
        before = found.objective
        for number, name in enumerate(PARAMETERS):
            if name not in off:
                found = _along_weight(development, found, number, penalty)
        if found.objective < before:
            continue
        # No single weight helps any more; some together may.
        for _ in range(directions if len(PARAMETERS) - len(off | {"acoustic_scale"}) > 1 else 0):
            found = _along_random_line(development, found, off, generator, penalty)
        if found.objective >= before:
            break
    return found


def _along_weight(
    development: DevelopmentSet, found: FoundWeights, number: int, penalty: Penalty | None
) -> FoundWeights:
    """Move one weight to the best place in its range; to an equally good one, too, unless that rescales all others."""
    name = PARAMETERS[number]
    direction = np.zeros(len(PARAMETERS))
    direction[number] = 1.0
    origin = np.where(direction, 0.0, found.values)
    place = search_line(development, origin, direction, RANGES[name].low, RANGES[name].high, penalty)
    if place.objective < found.objective or (place.objective == found.objective and name != "acoustic_scale"):
        found = FoundWeights(origin + place.t * direction, place.errors, place.objective)
    if name == "acoustic_scale" and found.values[number] > 0:
        found = _counted(development, found.values / found.values[number], penalty)
    return found


def _along_random_line(
    development: DevelopmentSet,
    found: FoundWeights,
    off: frozenset[str],
    generator: np.random.Generator,
    penalty: Penalty | None,
) -> FoundWeights:
    """Move all weights but the acoustic scale together, as far as their ranges go, where that is better."""
    free = np.array([name not in off | {"acoustic_scale"} for name in PARAMETERS])
    direction = np.where(free, generator.normal(size=len(PARAMETERS)) * HALF_RANGES, 0.0)
    bounds = np.array([(RANGES[name].low, RANGES[name].high) for name in PARAMETERS])[free]
    ends = (bounds - found.values[free, None]) / direction[free, None]
    # A weight may lie outside its range since all were rescaled: then it may stay there.
    low, high = min(ends.min(axis=1).max(), 0.0), max(ends.max(axis=1).min(), 0.0)
    place = search_line(development, found.values, direction, float(low), float(high), penalty)
    if place.objective < found.objective:
        return FoundWeights(found.values + place.t * direction, place.errors, place.objective)
    return found
