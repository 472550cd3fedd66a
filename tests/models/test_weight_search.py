from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.development_set import PARAMETERS, DevelopmentSet
from models.errors import TuningError
from models.grid_search import grid_search, middle_of_best
from models.rescoring import Rescorer
from models.weight_ranges import RANGES, Regularisation, SearchRange
from models.weight_search import likely_winners, search, steady_search

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=6)


def drawn(sizes: list[int], seed: int, values: int = 3) -> DevelopmentSet:
    """A development set of small whole numbers, so that ties are many."""
    draw = np.random.default_rng(seed)
    count = sum(sizes)
    features = draw.integers(-values, values + 1, (count, len(PARAMETERS))).astype(float)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return DevelopmentSet(features, draw.integers(0, 5, count), starts, np.full(len(sizes), 5))


def first_best(development: DevelopmentSet, weights: Any) -> list[int]:
    """Word errors of each list's winner, hypothesis by hypothesis; the first of equals wins."""
    out = []
    for first, last in zip(development.starts, development.starts[1:], strict=False):
        winner = first
        for row in range(first, last):
            total = sum(w * f for w, f in zip(weights, development.features[row], strict=True))
            best = sum(w * f for w, f in zip(weights, development.features[winner], strict=True))
            winner = row if total > best else winner
        out.append(int(development.errors[winner]))
    return out


@given(SIZES, st.integers(0, 1000), st.lists(st.integers(-2, 2), min_size=5, max_size=5))
def test_chosen_errors_are_those_of_each_lists_winner(sizes: list[int], seed: int, weights: list[int]) -> None:
    development = drawn(sizes, seed)
    columns = np.array([weights, [0] * 5], float).T
    chosen = development.chosen_errors(columns)
    assert chosen[:, 0].tolist() == first_best(development, weights)
    assert chosen[:, 1].tolist() == development.first_pass_errors.tolist()


@given(SIZES, st.integers(0, 1000))
def test_the_oracle_is_never_beaten(sizes: list[int], seed: int) -> None:
    development = drawn(sizes, seed)
    weights = np.random.default_rng(seed).normal(size=(5, 20))
    assert np.all(development.chosen_errors(weights) >= development.oracle_errors[:, None])


@given(SIZES, st.integers(0, 1000))
def test_a_subset_has_the_numbers_of_its_lists(sizes: list[int], seed: int) -> None:
    development = drawn(sizes, seed)
    chosen = np.random.default_rng(seed).random(len(sizes)) < 0.5
    if not chosen.any():
        chosen[0] = True
    part, weights = development.subset(chosen), np.ones((5, 1))
    assert part.lists == chosen.sum()
    assert part.chosen_errors(weights).tolist() == development.chosen_errors(weights)[chosen].tolist()


def test_zero_is_in_every_range() -> None:
    assert set(RANGES) == set(PARAMETERS)
    assert all(0.0 in spread.grid() for spread in RANGES.values())


def test_zero_is_tried_even_where_the_steps_miss_it() -> None:
    assert SearchRange(-1.0, 2.0, 3).grid().tolist() == [-1.0, 0.0, 0.5, 2.0]


@pytest.mark.parametrize("seed", range(8))
def test_the_search_is_never_worse_than_the_first_pass(seed: int) -> None:
    development = drawn([4] * 12, seed)
    development.errors[development.starts[:-1]] = 0
    assert search(development, seed=seed).errors <= development.first_pass_errors.sum()


@pytest.mark.parametrize("seed", range(4))
def test_the_errors_reported_are_those_of_the_weights_found(seed: int) -> None:
    development = drawn([4] * 12, seed)
    found = search(development, seed=seed)
    assert found.errors == development.chosen_errors(found.values[:, None]).sum()


@pytest.mark.slow
@given(
    st.lists(st.integers(2, 5), min_size=1, max_size=8),
    st.integers(0, 10_000),
    st.sampled_from([("lm_scale", "word_bonus"), ("acoustic_scale", "lm_scale"), ("first_pass_scale", "oov_bonus")]),
)
def test_the_search_is_never_worse_than_a_full_grid_over_two_weights(
    sizes: list[int], seed: int, pair: tuple[str, str]
) -> None:
    development = drawn(sizes, seed, values=9)
    off = frozenset(PARAMETERS) - {"acoustic_scale", *pair}
    tried = list(product([0.0, 1.0], *(np.linspace(RANGES[name].low, RANGES[name].high, 61) for name in pair)))
    grid = np.zeros((len(PARAMETERS), len(tried)))
    for name, values in zip(("acoustic_scale", *pair), np.transpose(tried), strict=True):
        grid[PARAMETERS.index(name)] = values
    assert search(development, off=off, starts=48).errors <= development.chosen_errors(grid).sum(axis=0).min()


@pytest.mark.parametrize("seed", range(4))
def test_the_search_finds_no_more_errors_than_the_search_over_grids(seed: int) -> None:
    development = noisy(30, seed)
    assert search(development, seed=seed).errors <= grid_search(development, seed=seed).errors


def test_hypotheses_that_win_under_no_weights_are_left_out_and_the_first_stays() -> None:
    # 40 copies of a hypothesis that is worse than another by every feature, whatever the weights are.
    features = np.zeros((42, len(PARAMETERS)))
    features[1:41, PARAMETERS.index("acoustic_scale")] = -1.0
    features[41, PARAMETERS.index("lm_scale")] = 1.0
    features[0, PARAMETERS.index("acoustic_scale")] = 1.0
    development = DevelopmentSet(features, np.arange(42), np.array([0, 42]), np.array([9]))
    assert likely_winners(development, np.random.default_rng(0)).errors.tolist() == [0, 41]


@pytest.mark.parametrize("seed", range(3))
def test_on_long_lists_too_the_errors_reported_are_those_of_all_hypotheses(seed: int) -> None:
    development = noisy(20, seed, longest=60)
    for one in (search, steady_search):
        found = one(development, seed=seed)
        assert found.errors == development.chosen_errors(found.values[:, None]).sum()
        assert found.errors <= development.first_pass_errors.sum()


def test_a_weight_far_from_its_default_costs_what_the_strength_says() -> None:
    # lm_scale = 10 + 22.5, half its range of 45 away: 2 points of 1000 words are 20 errors. Scaled by 3, the same.
    development = DevelopmentSet(np.zeros((1, 5)), np.array([0]), np.array([0, 1]), np.array([1000]))
    weights = np.array([[1.0, 0.0, 32.5, 0.0, 0.0], [3.0, 0.0, 97.5, 0.0, 0.0], [1.0, 0.0, 10.0, 0.0, 0.0]]).T
    penalty = Regularisation(2.0).penalty(development, frozenset())
    assert penalty is not None
    assert penalty(weights) == pytest.approx([20.0, 20.0, 0.0])


def test_a_weight_held_at_zero_costs_nothing_by_being_there() -> None:
    development = DevelopmentSet(np.zeros((1, 5)), np.array([0]), np.array([0, 1]), np.array([1000]))
    penalty = Regularisation(2.0).penalty(development, frozenset({"lm_scale"}))
    assert penalty is not None
    assert penalty(np.array([[1.0], [0.0], [0.0], [0.0], [0.0]])) == pytest.approx([0.0])


def test_the_stronger_the_pull_the_nearer_the_weights_are_to_their_defaults() -> None:
    off = frozenset({"first_pass_scale", "word_bonus", "oov_bonus"})
    development = noisy(60, seed=1, right=25.0)
    found = [
        steady_search(development, off=off, regularisation=Regularisation(strength)).by_name()["lm_scale"]
        for strength in (0.0, 20.0, 2000.0)
    ]
    assert found[0] > found[1] > found[2]
    assert found[2] == pytest.approx(10.0, abs=0.5)


@pytest.mark.parametrize("strength", [-1.0, float("nan"), float("inf")])
def test_a_strength_that_is_none_is_refused(strength: float) -> None:
    with pytest.raises(TuningError, match="strength of regularisation"):
        Regularisation(strength)


@pytest.mark.parametrize(
    ("value", "flagged"), [(40.0, True), (57.0, True), (39.8, True), (39.0, False), (-4.9, True), (0.0, False)]
)
def test_a_value_within_half_a_step_of_an_end_of_its_range_or_beyond_is_at_the_edge(
    value: float, flagged: bool
) -> None:
    # lm_scale: from -5 to 40 in steps of a half.
    assert RANGES["lm_scale"].at_edge(value) is flagged


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_weight_held_at_zero_stays_there(name: str) -> None:
    assert search(drawn([4] * 8, seed=1), off=frozenset({name})).by_name()[name] == 0


def test_only_ratios_matter_so_the_acoustic_scale_is_1_unless_it_is_0() -> None:
    for seed in range(5):
        assert search(drawn([4] * 8, seed)).by_name()["acoustic_scale"] in (0.0, 1.0)


def test_the_search_repeats_itself_with_its_seed() -> None:
    development = drawn([4] * 12, seed=3)
    assert search(development, seed=5).values.tolist() == search(development, seed=5).values.tolist()


@pytest.mark.parametrize(
    ("counts", "place"),
    [([1, 1, 0, 1, 1], 2), ([0, 0, 0, 9, 9], 2), ([0, 0, 0, 0, 0], 2), ([0, 9, 9, 0, 0], 3), ([0, 9, 9, 9, 9], 0)],
)
def test_of_equally_good_values_zero_is_taken_else_the_middle_of_the_widest_run(counts: list[int], place: int) -> None:
    assert middle_of_best(np.array([-2.0, -1.0, 0.0, 1.0, 2.0]), np.array(counts)) == place


def test_features_and_errors_of_real_lists(rescorer: Rescorer, make: Any) -> None:
    lists = [
        make.nbest("1", ("Good evening", -3.0, -1.0), ("good", -4.0, -2.0), reference="good day"),
        make.nbest("2", ("", -5.0, -3.0), reference=""),
    ]
    scored = rescorer.score([rescorer.prepare(nbest) for nbest in lists])
    development = DevelopmentSet.from_scores([scored], {"ngram": 1.0})
    assert development.errors.tolist() == [1, 1, 0]
    assert (development.starts.tolist(), development.words.tolist()) == ([0, 2, 3], [2, 0])
    columns = dict(zip(PARAMETERS, development.features.T.tolist(), strict=True))
    assert (columns["acoustic_scale"], columns["first_pass_scale"]) == ([-3.0, -4.0, -5.0], [-1.0, -2.0, -3.0])
    assert (columns["word_bonus"], columns["oov_bonus"]) == ([2.0, 1.0, 0.0], [1.0, 0.0, 0.0])
    # good: -0.5, </s> after it: back-offs of "<s> good" and "good" + p(</s>) = -0.1 - 0.25 - 1.0
    assert columns["lm_scale"][1] == pytest.approx((-0.5 - 1.35) * np.log(10), abs=1e-5)


def test_a_list_without_a_reference_cannot_be_tuned_on_and_is_named(rescorer: Rescorer, make: Any) -> None:
    scored = rescorer.score([rescorer.prepare(make.nbest("utt-7", ("good", -1.0)))])
    with pytest.raises(TuningError, match="'utt-7' has no reference"):
        DevelopmentSet.from_scores([scored], {"ngram": 1.0})


def noisy(lists: int, seed: int, *, longest: int = 20, right: float = 8.0) -> DevelopmentSet:
    """Lists whose errors fall with acoustic + 8 * lm, with noise: weights near (1, 8) are right everywhere."""
    draw = np.random.default_rng(seed)
    count = lists * longest
    features = np.zeros((count, len(PARAMETERS)))
    features[:, PARAMETERS.index("acoustic_scale")] = draw.normal(0, 8, count)
    features[:, PARAMETERS.index("lm_scale")] = draw.normal(0, 8 / right, count)
    good = features @ np.array([1.0, 0, right, 0, 0]) + draw.normal(0, 8, count)
    errors = np.clip(5 - np.round(good / 6), 0, 10).astype(np.int64)
    return DevelopmentSet(features, errors, np.arange(lists + 1) * longest, np.full(lists, 10))


@pytest.mark.slow
def test_weights_averaged_over_halves_move_less_from_one_set_to_the_next_than_the_best_ones() -> None:
    off = frozenset({"first_pass_scale", "word_bonus", "oov_bonus"})
    sets = [noisy(60, seed) for seed in range(8)]
    best, steady = ([found(one, off=off).by_name()["lm_scale"] for one in sets] for found in (search, steady_search))
    assert np.std(steady) < np.std(best)
    assert np.mean(steady) == pytest.approx(8, abs=1)


@pytest.mark.parametrize("seed", range(4))
def test_averaged_weights_are_never_worse_than_the_first_pass_and_report_their_errors(seed: int) -> None:
    development = drawn([4] * 12, seed)
    found = steady_search(development, seed=seed)
    assert found.errors <= development.first_pass_errors.sum()
    assert found.errors == development.chosen_errors(found.values[:, None]).sum()


def test_what_every_half_agrees_on_is_found() -> None:
    # Every list is won by lm_scale / acoustic_scale above 11.5.
    features = np.zeros((40, len(PARAMETERS)))
    features[1::2, PARAMETERS.index("lm_scale")] = 1.0
    features[0::2, PARAMETERS.index("acoustic_scale")] = 11.5
    errors = np.tile([1, 0], 20)
    development = DevelopmentSet(features, errors, np.arange(21) * 2, np.full(20, 5))
    assert steady_search(development).errors == 0
