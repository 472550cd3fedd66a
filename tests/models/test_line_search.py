"""The exact search along a line, against trying values and against envelopes drawn by hand."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.base import FloatArray
from models.development_set import PARAMETERS, DevelopmentSet
from models.grid_search import grid_line
from models.line_search import profile, search_line

LM = PARAMETERS.index("lm_scale")
ACOUSTIC = PARAMETERS.index("acoustic_scale")
SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=8)


def along_lm(*lists: Sequence[tuple[float, float, int]]) -> tuple[DevelopmentSet, FloatArray, FloatArray]:
    """Lists of (value at t = 0, slope, word errors), and the line on which these are the totals."""
    rows = [hypothesis for one in lists for hypothesis in one]
    features = np.zeros((len(rows), len(PARAMETERS)))
    features[:, ACOUSTIC] = [row[0] for row in rows]
    features[:, LM] = [row[1] for row in rows]
    starts = np.cumsum([0, *map(len, lists)])
    errors = np.array([row[2] for row in rows])
    origin, direction = np.zeros(len(PARAMETERS)), np.zeros(len(PARAMETERS))
    origin[ACOUSTIC] = direction[LM] = 1.0
    return DevelopmentSet(features, errors, starts, np.full(len(lists), 9)), origin, direction


def drawn(sizes: list[int], seed: int, *, whole: bool) -> tuple[DevelopmentSet, FloatArray, FloatArray]:
    """A random set and line; of whole numbers, so that ties are many, or not."""
    draw = np.random.default_rng(seed)
    features = draw.normal(0, 3, (sum(sizes), len(PARAMETERS)))
    origin, direction = draw.normal(size=(2, len(PARAMETERS)))
    if whole:
        features, origin, direction = np.round(features), np.round(origin), np.round(2 * direction)
    errors = draw.integers(0, 5, sum(sizes))
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return DevelopmentSet(features, errors, starts, np.full(len(sizes), 5)), origin, direction


def counted(development: DevelopmentSet, origin: FloatArray, direction: FloatArray, t: float) -> int:
    return int(development.chosen_errors((origin + t * direction)[:, None]).sum())


def first_of_best(development: DevelopmentSet, origin: FloatArray, direction: FloatArray, t: Fraction) -> int:
    """Word errors at a place, in fractions: exact where all numbers are whole."""
    errors = 0
    for first, last in zip(development.starts, development.starts[1:], strict=False):
        totals = [
            sum(
                (Fraction(o) + t * Fraction(d)) * Fraction(f)
                for o, d, f in zip(origin, direction, development.features[row], strict=True)
            )
            for row in range(first, last)
        ]
        errors += int(development.errors[first + totals.index(max(totals))])
    return errors


def test_the_envelope_of_three_lines_is_walked_as_one_draws_it() -> None:
    # 0, t - 1 and 3t - 7 cross at t = 1 and t = 3; each wins on one interval, and the earlier line at each crossing.
    development, origin, direction = along_lm([(0, 0, 5), (-1, 1, 2), (-7, 3, 7)])
    found = profile(development, origin, direction, 0.0, 5.0)
    assert found.begins.tolist() == [0, 0, 1, 1, 3, 3, 5]
    assert found.ends.tolist() == [0, 1, 1, 3, 3, 5, 5]
    assert found.errors.tolist() == [5, 5, 5, 2, 2, 7, 7]


def test_a_line_below_the_envelope_changes_nothing() -> None:
    # 0.5 t - 1.1 stays below the larger of 0 and t - 1.
    above = along_lm([(0, 0, 5), (-1, 1, 2)])
    more = along_lm([(0, 0, 5), (-1.1, 0.5, 0), (-1, 1, 2)])
    one, same = (profile(*case, -5.0, 5.0) for case in (above, more))
    assert (one.begins.tolist(), one.errors.tolist()) == (same.begins.tolist(), same.errors.tolist())


def test_where_three_lines_meet_the_first_of_the_list_wins_the_point_and_the_steepest_what_follows() -> None:
    development, origin, direction = along_lm([(-2, 2, 3), (0, 0, 1), (-1, 1, 0)])
    found = profile(development, origin, direction, 0.0, 2.0)
    assert found.errors.tolist() == [1, 1, 3, 3, 3]
    # With the line in the middle first, it wins at the point alone.
    development, origin, direction = along_lm([(-1, 1, 0), (-2, 2, 3), (0, 0, 1)])
    assert profile(development, origin, direction, 0.0, 2.0).errors.tolist() == [1, 1, 0, 3, 3]


def test_of_two_equal_lines_the_first_counts() -> None:
    development, origin, direction = along_lm([(0, 1, 4), (0, 1, 0)])
    assert profile(development, origin, direction, -1.0, 1.0).errors.tolist() == [4, 4, 4]


def test_the_errors_of_several_lists_add_up() -> None:
    # The first list changes at t = 1 from 5 errors to 2, the second at t = 2 from 0 to 4.
    development, origin, direction = along_lm([(0, 0, 5), (-1, 1, 2)], [(0, 0, 0), (-2, 1, 4)])
    assert profile(development, origin, direction, 0.0, 3.0).errors[1::2].tolist() == [5, 2, 6]


def test_the_middle_of_the_best_interval_is_taken() -> None:
    development, origin, direction = along_lm([(0, 0, 5), (-1, 1, 2), (-7, 3, 7)])
    place = search_line(development, origin, direction, 0.0, 5.0)
    assert (place.t, place.errors) == (2.0, 2)


def test_the_wider_of_two_equally_good_intervals_is_taken() -> None:
    # Best on (1, 2) and on (3, 7).
    development, origin, direction = along_lm([(0, 0, 5), (-1, 1, 2), (-3, 2, 7), (-6, 3, 2), (-13, 4, 7)])
    assert search_line(development, origin, direction, 0.0, 9.0).t == 5.0


def test_zero_is_taken_where_it_is_among_the_best() -> None:
    development, origin, direction = along_lm([(0, 0, 2), (-9, 1, 5), (-9, -1, 5)])
    assert search_line(development, origin, direction, -30.0, 30.0).t == 0.0


def test_a_tie_that_is_best_at_zero_alone_is_found() -> None:
    # Only where all totals are equal does the first hypothesis win, the right one.
    development, origin, direction = along_lm([(0, 0, 0), (0, 1, 3), (0, -1, 3)])
    place = search_line(development, origin, direction, -5.0, 5.0)
    assert (place.t, place.errors) == (0.0, 0)


@given(SIZES, st.integers(0, 10_000))
def test_the_profile_has_the_errors_that_counting_finds_everywhere_between_its_points(
    sizes: list[int], seed: int
) -> None:
    development, origin, direction = drawn(sizes, seed, whole=False)
    found = profile(development, origin, direction, -3.0, 3.0)
    wide = np.flatnonzero(found.ends - found.begins > 1e-6)
    for begin, end, errors in zip(found.begins[wide], found.ends[wide], found.errors[wide], strict=True):
        for share in (0.1, 0.5, 0.9):
            assert counted(development, origin, direction, begin + share * (end - begin)) == errors


@given(SIZES, st.integers(0, 10_000))
def test_every_place_where_the_errors_change_is_a_point_of_the_profile(sizes: list[int], seed: int) -> None:
    development, origin, direction = drawn(sizes, seed, whole=False)
    found = profile(development, origin, direction, -3.0, 3.0)
    grid = np.linspace(-3, 3, 401)
    counts = np.array([counted(development, origin, direction, t) for t in grid])
    for left, right, changed in zip(grid, grid[1:], np.diff(counts) != 0, strict=False):
        assert not changed or np.any((left <= found.begins) & (found.begins <= right))


@given(SIZES, st.integers(0, 10_000))
def test_points_and_intervals_are_those_of_exact_arithmetic(sizes: list[int], seed: int) -> None:
    development, origin, direction = drawn(sizes, seed, whole=True)
    found = profile(development, origin, direction, -3.0, 3.0)
    for begin, end, errors in zip(found.begins, found.ends, found.errors, strict=True):
        # Whole numbers cross at fractions of small denominators, which the float nearest to one gives back.
        places = [Fraction(float(t)).limit_denominator(10_000) for t in (begin, end)]
        assert errors == first_of_best(development, origin, direction, sum(places, Fraction(0)) / 2)


@given(SIZES, st.integers(0, 10_000), st.booleans(), st.integers(2, 60))
def test_the_line_search_is_never_worse_than_a_grid_over_the_same_range(
    sizes: list[int], seed: int, whole: bool, steps: int
) -> None:
    development, origin, direction = drawn(sizes, seed, whole=whole)
    grid = np.unique(np.append(np.linspace(-4, 4, steps), 0.0))
    _, fewest = grid_line(development, origin, direction, grid)
    place = search_line(development, origin, direction, -4.0, 4.0)
    assert place.errors <= fewest
    assert -4 <= place.t <= 4


@given(SIZES, st.integers(0, 10_000), st.booleans())
def test_the_errors_reported_are_counted_where_they_are_said_to_be(sizes: list[int], seed: int, whole: bool) -> None:
    development, origin, direction = drawn(sizes, seed, whole=whole)
    place = search_line(development, origin, direction, -4.0, 4.0)
    assert place.errors == place.objective == counted(development, origin, direction, place.t)


@given(SIZES, st.integers(0, 10_000))
def test_a_penalty_moves_the_place_to_where_errors_and_penalty_together_are_least(sizes: list[int], seed: int) -> None:
    development, origin, direction = drawn(sizes, seed, whole=False)

    def penalty(weights: FloatArray) -> FloatArray:
        return np.asarray(0.2 * (weights**2).sum(axis=0))

    place = search_line(development, origin, direction, -4.0, 4.0, penalty)
    at = origin + place.t * direction
    assert place.objective == pytest.approx(place.errors + 0.2 * (at**2).sum())
    for t in np.linspace(-4, 4, 65):
        there = origin + t * direction
        assert place.objective <= counted(development, origin, direction, t) + 0.2 * (there**2).sum() + 1e-9


def test_a_line_that_moves_nothing_has_the_errors_of_its_origin() -> None:
    development, origin, direction = along_lm([(0, 0, 5), (-1, 0, 2)], [(3, 0, 1)])
    place = search_line(development, origin, direction, -5.0, 5.0)
    assert (place.t, place.errors) == (0.0, 6)
