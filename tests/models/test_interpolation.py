from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import interpolation
from models.errors import TuningError
from models.interpolation import fit_lambdas
from models.score import interpolate


def drawn(models: int, words: int, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.log(np.random.default_rng(seed).uniform(1e-4, 1, (models, words)))


@given(st.integers(1, 4), st.integers(1, 30), st.integers(0, 1000))
def test_weights_are_shares_that_sum_to_1(models: int, words: int, seed: int) -> None:
    lambdas = fit_lambdas(drawn(models, words, seed)).lambdas
    assert np.all(lambdas >= 0)
    assert lambdas.sum() == pytest.approx(1)


@given(st.integers(2, 4), st.integers(0, 1000))
def test_the_likelihood_never_falls_from_round_to_round(models: int, seed: int) -> None:
    log_probs = drawn(models, 40, seed)
    likelihoods = []
    for rounds in (1, 2, 3, 5, 8, 13):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(interpolation, "_MAX_ROUNDS", rounds)
            likelihoods.append(fit_lambdas(log_probs).log_likelihood)
    assert np.all(np.diff(likelihoods) >= -1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_two_models_get_the_weights_that_trying_them_all_finds(seed: int) -> None:
    log_probs = drawn(2, 60, seed)
    grid = np.linspace(0, 1, 2001)
    likelihoods = [interpolate(log_probs, np.array([share, 1 - share])).sum() for share in grid]
    fit = fit_lambdas(log_probs)
    assert fit.lambdas[0] == pytest.approx(grid[int(np.argmax(likelihoods))], abs=2e-3)
    assert fit.log_likelihood >= max(likelihoods) - 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_no_other_mixture_of_three_models_is_more_likely(seed: int) -> None:
    log_probs = drawn(3, 80, seed)
    found = fit_lambdas(log_probs).log_likelihood
    others = np.random.default_rng(seed).dirichlet(np.ones(3), 500)
    assert all(interpolate(log_probs, lambdas).sum() <= found + 1e-6 for lambdas in others)


def test_a_model_that_is_always_better_gets_all() -> None:
    log_probs = drawn(2, 50, seed=1)
    log_probs[1] = log_probs[0] - 1.0
    assert fit_lambdas(log_probs).lambdas[0] == pytest.approx(1, abs=1e-4)


def test_equal_models_share_evenly() -> None:
    log_probs = np.repeat(drawn(1, 20, seed=2), 3, axis=0)
    assert fit_lambdas(log_probs).lambdas == pytest.approx([1 / 3] * 3)


def test_by_hand() -> None:
    # Model A explains 3 of 4 words alone, B the fourth: the shares are 3/4 and 1/4.
    sure, never = 0.0, -np.inf
    fit = fit_lambdas(np.array([[sure, sure, sure, never], [never, never, never, sure]]))
    assert fit.lambdas == pytest.approx([3 / 4, 1 / 4])
    assert fit.log_likelihood == pytest.approx(3 * np.log(3 / 4) + np.log(1 / 4))
    assert fit.perplexity == pytest.approx((27 / 256) ** (-1 / 4))


def test_probabilities_too_small_for_a_float_have_weights_all_the_same() -> None:
    log_probs = drawn(2, 30, seed=3)
    assert fit_lambdas(log_probs - 2000).lambdas == pytest.approx(fit_lambdas(log_probs).lambdas)


def test_an_empty_text_is_an_error() -> None:
    with pytest.raises(TuningError, match="empty"):
        fit_lambdas(np.zeros((2, 0)))


@pytest.mark.parametrize("value", [-np.inf, np.nan])
def test_a_word_that_no_model_gives_a_probability_is_named(value: float) -> None:
    log_probs = drawn(2, 5, seed=4)
    log_probs[:, 3] = value
    with pytest.raises(TuningError, match="word 3"):
        fit_lambdas(log_probs)
