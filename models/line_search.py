"""Exact line search on the error surface of N-best lists (Och 2003).

Along a line of weights, origin + t * direction, the total of each hypothesis is a straight line in t, and the winner of
a list is its upper envelope: a few hypotheses, each on an interval. So the word errors of a whole development set are a
step function of t, found without trying values: the envelopes of all lists are walked together from left to right, and
their changes of winner merged.

Where totals are equal the first hypothesis wins, so a single point, such as a weight of exactly zero, may have a count
of its own: points are kept beside the intervals. Crossings are computed in floating point; what is returned is
therefore counted anew, by the rule that ranks.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from models.base import FloatArray
from models.development_set import DevelopmentSet
from models.prefix_tree import IntArray

_COUNTED_AT_ONCE = 2, 32
# Where places of one interval are not worth the same: how many are looked at beside the middles.
_EVENLY_SPACED = 65

Penalty = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, slots=True)
class ErrorProfile:
    """The word errors of a set along a line: intervals and the points between them, by turns, S of them.

    Even entries are points (begins == ends): the two ends of the line and each place where a winner changes. Odd
    entries are the open intervals between them.

    begins, ends: (S,) ascending
    errors:       (S,) word errors on each
    """

    begins: FloatArray
    ends: FloatArray
    errors: IntArray

    def at(self, places: FloatArray) -> IntArray:
        """(P,) places within the line -> (P,) word errors."""
        points = self.begins[::2]
        after = np.clip(np.searchsorted(points, places, side="right") - 1, 0, len(points) - 1)
        return self.errors[
            np.where(points[after] == places, 2 * after, np.minimum(2 * after + 1, len(self.errors) - 1))
        ]

    def runs(self) -> "ErrorProfile":
        """Neighbours of equal errors joined; here entries alternate no more."""
        first = np.flatnonzero(np.concatenate([[True], np.diff(self.errors) != 0]))
        last = np.concatenate([first[1:], [len(self.errors)]]) - 1
        return ErrorProfile(self.begins[first], self.ends[last], self.errors[first])


@dataclass(frozen=True, slots=True)
class Place:
    """A place on a line: t, the word errors counted there, and the objective, errors plus penalty."""

    t: float
    errors: int
    objective: float


def profile(
    development: DevelopmentSet, origin: FloatArray, direction: FloatArray, low: float, high: float
) -> ErrorProfile:
    """The word errors of the weights origin + t * direction, for low <= t <= high.

    origin, direction: (5,) in the order of PARAMETERS
    """
    at_zero, slopes = development.totals(np.stack([origin, direction], axis=1))
    errors = development.padded_errors
    lists = np.arange(development.lists)
    begin, end = (errors[lists, (at_zero + t * slopes).argmax(axis=1)].sum() for t in (low, high))
    changes = _changes(at_zero, slopes, errors, low, high)
    places, number = np.unique(changes.places, return_inverse=True)
    between = changes.first + np.concatenate([[0], np.cumsum(_sums(number, changes.after, len(places)))])
    at = between[:-1] + _sums(number, changes.at, len(places))
    points = np.concatenate([[low], places, [high]])
    counts = np.empty(2 * len(points) - 1, np.int64)
    counts[0], counts[-1] = begin, end
    counts[1::2], counts[2:-1:2] = between, at
    return ErrorProfile(np.repeat(points, 2)[:-1], np.repeat(points, 2)[1:], counts)


@dataclass(frozen=True, slots=True)
class _Changes:
    """Where winners change, all lists together.

    first:     word errors just after the line's beginning
    places:    (C,)
    at, after: (C,) by how much the list's errors differ, at the place and after it, from those before it
    """

    first: int
    places: FloatArray
    at: IntArray
    after: IntArray


def _changes(at_zero: FloatArray, slopes: FloatArray, errors: IntArray, low: float, high: float) -> _Changes:
    """Walk along the upper envelopes, every list one change of winner a round, until the last list is through.

    at_zero, slopes, errors: (lists, longest)
    """
    lists = np.arange(len(errors))
    winner = _steepest_of(at_zero + low * slopes, slopes)
    t = np.full(len(lists), low)
    first = int(errors[lists, winner].sum())
    parts: list[tuple[FloatArray, IntArray, IntArray]] = [(np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64))]
    while len(lists):
        rows = np.arange(len(lists))
        steeper = slopes - slopes[rows, winner][:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = (at_zero[rows, winner][:, None] - at_zero) / steeper
        # The winner is overtaken by steeper lines alone.
        crossing[~(steeper > 0)] = np.inf
        place = crossing.min(axis=1)
        on = np.flatnonzero(place < high)
        tied = crossing[on] == place[on, None]
        at_zero, slopes, errors, lists, before = at_zero[on], slopes[on], errors[on], lists[on], winner[on]
        rows = rows[: len(on)]
        winner = np.where(tied, slopes, -np.inf).argmax(axis=1)
        # Rounding may put a crossing before the last one.
        t = np.maximum(place[on], t[on])
        at = np.minimum(tied.argmax(axis=1), before)
        was = errors[rows, before]
        parts.append((t, errors[rows, at] - was, errors[rows, winner] - was))
    places, at_place, after = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _Changes(first, places, at_place, after)


def _steepest_of(totals: FloatArray, slopes: FloatArray) -> IntArray:
    """(lists,) of the best hypotheses the steepest: the winner just after; of equal lines the first."""
    steepest: IntArray = np.where(totals == totals.max(axis=1)[:, None], slopes, -np.inf).argmax(axis=1)
    return steepest


def _sums(number: IntArray, values: IntArray, count: int) -> IntArray:
    """(count,) the sum of the values of each number. Whole numbers this small are exact as floats."""
    return np.bincount(number, values, minlength=count).astype(np.int64)


def search_line(
    development: DevelopmentSet,
    origin: FloatArray,
    direction: FloatArray,
    low: float,
    high: float,
    penalty: Penalty | None = None,
) -> Place:
    """The best place on origin + t * direction, low <= t <= high: zero if it is among the best, else a middle.

    It is the middle of the widest run of best intervals, where a small change of the data does the least harm.

    penalty: (5, C) weights -> (C,) what is added to their word errors; none when None
    """
    found = profile(development, origin, direction, low, high)
    runs = found.runs()
    widths = runs.ends - runs.begins
    places = (runs.begins + runs.ends) / 2
    if low <= 0 <= high:
        places, widths = np.append(places, 0.0), np.append(widths, np.inf)
    if penalty:
        evenly = np.linspace(low, high, _EVENLY_SPACED)
        places, widths = np.append(places, evenly), np.append(widths, np.zeros(len(evenly)))

    def weights(t: FloatArray) -> FloatArray:
        return np.asarray(origin[:, None] + t * direction[:, None])

    extra = penalty(weights(places)) if penalty else np.zeros(len(places))
    expected = found.at(places) + extra
    best: Place | None = None
    order = np.lexsort((-widths, expected))
    done = 0
    # Most often the first is what it was expected to be, and the search is over.
    while done < len(order) and (best is None or expected[order[done]] < best.objective):
        chosen = order[done : done + _COUNTED_AT_ONCE[done > 0]]
        done += len(chosen)
        counts = development.chosen_errors(weights(places[chosen])).sum(axis=0)
        objectives = counts + extra[chosen]
        index = int(objectives.argmin())
        if best is None or objectives[index] < best.objective:
            best = Place(float(places[chosen[index]]), int(counts[index]), float(objectives[index]))
    assert best is not None
    return best
