import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import InvalidWeightsError, UnknownModelError
from models.score import SCALES, Features, Weights, interpolate, posteriors, rank, totals

ONLY = {"lm": 1.0}
SCORES = st.floats(-1e4, 1e4)


def features(**parts: list[float]) -> Features:
    count = len(next(iter(parts.values())))
    zeros = np.zeros(count)
    return Features(
        **{name: np.array(parts.get(name, zeros)) for name in ("acoustic", "first_pass", "lm", "words", "oov")}
    )


HAND = features(acoustic=[-100.0], first_pass=[-20.0], lm=[-10.0], words=[3.0], oov=[1.0])


def test_the_total_is_the_sum_that_one_can_do_by_hand() -> None:
    # 2 * -100 + 0.5 * -20 + 4 * -10 + 1.5 * 3 + -7 * 1 = -200 - 10 - 40 + 4.5 - 7
    weights = Weights(ONLY, acoustic_scale=2, first_pass_scale=0.5, lm_scale=4, word_bonus=1.5, oov_bonus=-7)
    assert totals(HAND, weights) == pytest.approx([-252.5])


def test_the_contributions_are_the_summands_of_the_total() -> None:
    weights = Weights(ONLY, acoustic_scale=2, first_pass_scale=0.5, lm_scale=4, word_bonus=1.5, oov_bonus=-7)
    parts = {name: values.tolist() for name, values in HAND.contributions(weights).items()}
    assert parts == {
        "acoustic": [-200.0],
        "first_pass": [-10.0],
        "lm": [-40.0],
        "word_bonus": [4.5],
        "oov_bonus": [-7.0],
    }


@pytest.mark.parametrize("name", [name for name in SCALES if name != "posterior_scale"])
def test_a_weight_of_zero_switches_its_part_off(name: str) -> None:
    all_on = dict.fromkeys(SCALES, 1.0)
    part = {"acoustic_scale": -100, "first_pass_scale": -20, "lm_scale": -10, "word_bonus": 3, "oov_bonus": 1}[name]
    with_part, without = Weights(ONLY, **all_on), Weights(ONLY, **{**all_on, name: 0.0})
    assert totals(HAND, with_part) - totals(HAND, without) == pytest.approx([part])


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_scale_that_is_not_finite_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(InvalidWeightsError, match=name):
        Weights(ONLY, **{name: value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.25])
def test_an_interpolation_weight_that_is_no_share_is_refused_by_model(value: float) -> None:
    with pytest.raises(InvalidWeightsError, match="'rnn'"):
        Weights({"kn": 1.0, "rnn": value})


@pytest.mark.parametrize("shares", [{}, {"kn": 0.5}, {"kn": 0.7, "rnn": 0.4}, {"kn": 0.0}])
def test_interpolation_weights_that_do_not_sum_to_1_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(InvalidWeightsError, match="sum to"):
        Weights(shares)


def test_a_weight_for_a_model_that_is_not_there_is_refused_with_the_names_that_are() -> None:
    with pytest.raises(UnknownModelError, match="no model named 'lm'; the bundle has kn, rnn"):
        Weights(ONLY).check_models(["kn", "rnn"])


def test_interpolation_by_hand() -> None:
    # 1/4 * 1/2 + 3/4 * 1/8 = 7/32
    mixed = interpolate(np.log([[1 / 2], [1 / 8]]), np.array([1 / 4, 3 / 4]))
    assert mixed == pytest.approx([math.log(7 / 32)])


def test_three_models_mix_word_by_word() -> None:
    # word 1: (1/2 + 1/4 + 1/4) / 3 = 1/3; word 2: (1/8 + 1/2 + 1/8) / 3 = 1/4
    log_probs = np.log([[1 / 2, 1 / 8], [1 / 4, 1 / 2], [1 / 4, 1 / 8]])
    assert interpolate(log_probs, np.full(3, 1 / 3)) == pytest.approx(np.log([1 / 3, 1 / 4]))


LOG_PROBS = st.lists(st.tuples(st.floats(-700, 0), st.floats(-700, 0)), min_size=1, max_size=6)


@given(LOG_PROBS, st.floats(0, 1))
def test_a_mixture_lies_between_its_parts(pairs: list[tuple[float, float]], share: float) -> None:
    parts = np.array(pairs).T
    mixed = interpolate(parts, np.array([share, 1 - share]))
    assert np.all(mixed >= parts.min(axis=0) - 1e-12)
    assert np.all(mixed <= parts.max(axis=0) + 1e-12)


@given(LOG_PROBS, st.integers(0, 1))
def test_a_weight_of_1_is_that_model_alone(pairs: list[tuple[float, float]], model: int) -> None:
    parts = np.array(pairs).T
    assert interpolate(parts, np.eye(2)[model]) == pytest.approx(parts[model], abs=1e-12)


def test_probabilities_too_small_for_a_float_are_mixed_all_the_same() -> None:
    # exp(-1000) is 0 in float64, but (exp(-1000) + exp(-1001)) / 2 has a logarithm
    mixed = interpolate(np.array([[-1000.0], [-1001.0]]), np.array([0.5, 0.5]))
    assert mixed == pytest.approx([-1000 + math.log((1 + math.exp(-1)) / 2)])


def test_a_word_that_one_model_rules_out_has_the_share_of_the_other() -> None:
    assert interpolate(np.array([[-math.inf], [0.0]]), np.array([0.5, 0.5])) == pytest.approx([math.log(0.5)])


def test_a_model_of_weight_0_cannot_spoil_the_mixture() -> None:
    assert interpolate(np.array([[math.nan], [-1.0]]), np.array([0.0, 1.0])).tolist() == [-1.0]


def test_the_best_total_comes_first_and_ties_keep_the_input_order() -> None:
    assert rank(np.array([1.0, 3.0, 1.0, 3.0, 2.0])) == [1, 3, 4, 0, 2]


@given(st.lists(st.sampled_from([-1.0, 0.0, -0.0, 2.0]), min_size=1, max_size=12))
def test_ranking_is_a_stable_sort(values: list[float]) -> None:
    assert rank(np.array(values)) == sorted(range(len(values)), key=lambda i: -values[i])


def test_posteriors_by_hand() -> None:
    # exp(0.5 * 2 ln 3) = 3 against exp(0) = 1
    assert posteriors(np.array([2 * math.log(3), 0.0]), 0.5, "ab") == pytest.approx([3 / 4, 1 / 4])


def test_a_posterior_scale_of_0_makes_all_distinct_hypotheses_alike() -> None:
    assert posteriors(np.array([5.0, -3.0, 1.0]), 0.0, "abc") == pytest.approx([1 / 3] * 3)


LISTS = st.lists(st.tuples(SCORES, st.sampled_from("abc")), min_size=1, max_size=10)


@given(LISTS, st.floats(-2, 10))
def test_posteriors_are_shares_that_sum_to_1(pairs: list[tuple[float, str]], scale: float) -> None:
    shares = posteriors(np.array([total for total, _ in pairs]), scale, [words for _, words in pairs])
    assert np.all((shares >= 0) & (shares <= 1))
    assert shares.sum() == pytest.approx(1)


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0])
def test_posteriors_of_totals_at_the_ends_of_the_floats_are_numbers(scale: float) -> None:
    shares = posteriors(np.array([1.7e308, -1.7e308, -1.7e308]), scale, "abb")
    assert shares.sum() == pytest.approx(1)
    assert shares[1] == shares[2]


@given(st.lists(SCORES, min_size=1, max_size=6), st.integers(1, 4))
def test_a_hypothesis_repeated_does_not_gain(values: list[float], times: int) -> None:
    names = list(range(len(values)))
    once = posteriors(np.array(values), 0.1, names)
    often = posteriors(np.array(values + [values[0]] * times), 0.1, names + [0] * times)
    assert often[0] + often[len(values) :].sum() == pytest.approx(once[0])


def test_the_mass_of_repeated_words_is_that_of_the_best_of_them_shared_by_their_own() -> None:
    # a: 4 and 2, b: 4, so a has half of all, of which 4 / 6 and 2 / 6
    shares = posteriors(np.log([4.0, 4.0, 2.0]), 1.0, "aba")
    assert shares == pytest.approx([1 / 3, 1 / 2, 1 / 6])


@given(st.lists(SCORES, min_size=2, max_size=8, unique=True), st.sampled_from([0.001, 0.1, 1.0]))
def test_the_posterior_scale_never_changes_the_order(values: list[float], scale: float) -> None:
    total = np.array(values)
    shares: Any = posteriors(total, scale, range(len(values)))
    assert np.all(np.diff(shares[np.argsort(-total)]) <= 0)
