import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.evaluation.bootstrap import Resampled, resample


def resampled(errors: list[list[int]], words: list[int], resamples: int = 200, seed: int = 1) -> Resampled:
    return resample(np.array(errors), np.array(words), resamples=resamples, seed=seed)


def test_of_one_utterance_every_resample_is_that_utterance() -> None:
    interval = resampled([[3]], [12]).interval(0)
    assert (interval.low, interval.high) == (25.0, 25.0)


def test_of_two_utterances_three_rates_are_drawn_in_the_proportion_1_2_1() -> None:
    # 0 of 10, 5 of 10: a resample holds the first twice (0%), both (25%), or the second twice (50%)
    rates = resampled([[0, 5]], [10, 10], resamples=40_000).rates[0]
    values, counts = np.unique(rates, return_counts=True)
    assert values.tolist() == [0.0, 25.0, 50.0]
    assert counts / 40_000 == pytest.approx([0.25, 0.5, 0.25], abs=0.01)


def test_rates_are_of_summed_counts() -> None:
    # 1 of 1 and 0 of 9: both once gives 1 / 10, not 1 / 2
    assert set(np.round(resampled([[1, 0]], [1, 9]).rates[0], 9)) == {0.0, 10.0, 100.0}


def test_the_same_seed_gives_the_same_resamples_and_another_does_not() -> None:
    rng = np.random.default_rng(7)
    errors, words = rng.integers(0, 5, (1, 50)).tolist(), [10] * 50
    first, again, other = (resampled(errors, words, seed=seed).rates for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_system_does_not_differ_from_its_equal() -> None:
    difference = resampled([[1, 0, 2], [1, 0, 2]], [5, 5, 5]).difference(1, 0)
    assert (difference.points, difference.interval.low, difference.interval.high) == (0.0, 0.0, 0.0)
    assert difference.p_value == 1.0


def test_a_system_that_is_better_on_every_utterance_has_the_smallest_p_value() -> None:
    difference = resampled([[2, 3, 4], [1, 1, 1]], [5, 5, 5], resamples=999).difference(1, 0)
    assert difference.points == pytest.approx(100 * (3 - 9) / 15)
    assert difference.p_value == pytest.approx(2 / 1000)
    assert difference.interval.high < 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_p_value_and_interval_tell_the_same_story(rows: list[tuple[int, int, int]]) -> None:
    first, second, words = zip(*rows, strict=True)
    outcome = resampled([list(first), list(second)], list(words))
    difference, mirrored = outcome.difference(1, 0), outcome.difference(0, 1)
    assert 0 < difference.p_value <= 1
    assert mirrored.p_value == difference.p_value
    assert mirrored.points == pytest.approx(-difference.points)
    if difference.p_value < 0.04:
        assert not difference.interval.low < 0 < difference.interval.high


def test_resamples_without_reference_words_are_drawn_anew() -> None:
    # three of four utterances have an empty reference: about a third of all draws hold no word
    outcome = resampled([[1, 0, 0, 0]], [4, 0, 0, 0], resamples=500)
    assert outcome.rates.shape == (1, 500)
    assert np.isfinite(outcome.rates).all()
