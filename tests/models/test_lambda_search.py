"""Interpolation weights chosen for word errors."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.development_set import PARAMETERS, DevelopmentSet
from models.lambda_search import LambdasFor, MixtureScores, search_lambdas, with_share
from models.nbest import Hypothesis, NBest
from models.normaliser import Normaliser
from models.rescoring import Rescorer
from models.tuning import TuningResult, mix, score_lists, tune
from models.vocabulary import Vocabulary
from models.weight_search import steady_search

VOCABULARY = Vocabulary(tuple(f"w{i}" for i in range(12)))
OFF = frozenset(PARAMETERS) - {"acoustic_scale", "lm_scale"}


def lists(count: int, seed: int) -> list[NBest]:
    """Five texts of one to four words a list, one of them the reference."""
    draw = np.random.default_rng(seed)
    out = []
    for number in range(count):
        texts = [" ".join(draw.choice(VOCABULARY.words, draw.integers(1, 5))) for _ in range(5)]
        hypotheses = tuple(Hypothesis(text, float(draw.normal())) for text in texts)
        out.append(NBest(str(number), hypotheses, reference=texts[int(draw.integers(5))]))
    return out


def two_models(make: Any, seed: int = 1) -> Rescorer:
    models = {name: make.Unigram.drawn(VOCABULARY.size, seed=seed + i) for i, name in enumerate(("a", "b"))}
    return Rescorer(VOCABULARY, Normaliser(), models)


def right_and_wrong_words() -> list[NBest]:
    """The audio prefers the wrong word by 1, of w1 and w2 as of w3 and w4, and a model must know better."""
    return [
        NBest(f"{right}-{i}", (Hypothesis(wrong, 0.0), Hypothesis(right, -1.0)), reference=right)
        for i in range(12)
        for right, wrong in (("w1", "w2"), ("w3", "w4"))
    ]


def knowing_and_misled(make: Any) -> Rescorer:
    """Both models prefer w3 to w4; one knows that w1 is the likelier, too, the other thinks that of w2."""
    shares = np.full((2, VOCABULARY.size), 0.23 / (VOCABULARY.size - 4))
    words = VOCABULARY.ids(("w1", "w2", "w3", "w4"))
    shares[0, words] = 0.5, 0.05, 0.2, 0.02
    shares[1, words] = 0.05, 0.5, 0.2, 0.02
    models = {"knowing": make.Unigram(np.log(shares[0])), "misled": make.Unigram(np.log(shares[1]))}
    return Rescorer(VOCABULARY, Normaliser(), models)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.9, 1.0])
def test_a_mixture_made_anew_is_that_of_the_engine(make: Any, share: float) -> None:
    # 40 lists are scored in three batches.
    rescorer = two_models(make)
    scored = score_lists(rescorer, lists(40, seed=2), ["a", "b"])
    scores = MixtureScores.from_scores(scored, ["a", "b"])
    development = DevelopmentSet.from_scores(scored, {"a": share, "b": 1 - share})
    lm = development.features[:, PARAMETERS.index("lm_scale")]
    assert scores.lm(np.array([share, 1 - share])) == pytest.approx(lm, rel=1e-12)
    kept = np.random.default_rng(0).random(len(lm)) < 0.5
    assert scores.subset(kept).lm(np.array([share, 1 - share])) == pytest.approx(lm[kept], rel=1e-12)


@pytest.mark.parametrize(("seed", "share"), list(product(range(3), [0.1, 0.5, 1.0])))
def test_word_errors_are_never_more_than_with_the_weights_started_from(make: Any, seed: int, share: float) -> None:
    start = np.array([share, 1 - share])
    scored = score_lists(two_models(make, seed), lists(12, seed), ["a", "b"])
    development = DevelopmentSet.from_scores(scored, {"a": share, "b": 1 - share})
    found = search_lambdas(development, MixtureScores.from_scores(scored, ["a", "b"]), start, off=OFF)
    assert found.weights.errors <= steady_search(development, off=OFF).errors
    mixed = DevelopmentSet.from_scores(scored, dict(zip("ab", found.lambdas.tolist(), strict=True)))
    assert mixed.chosen_errors(found.weights.values[:, None]).sum() == found.weights.errors
    assert found.lambdas.sum() == pytest.approx(1)
    assert np.all(found.lambdas >= 0)


def test_weights_without_fewer_errors_are_not_left(make: Any) -> None:
    # One hypothesis a list: nothing can be won.
    only = [NBest(str(i), (Hypothesis("w1", 0.0),), reference="w2") for i in range(6)]
    scored = score_lists(two_models(make), only, ["a", "b"])
    development = DevelopmentSet.from_scores(scored, {"a": 0.3, "b": 0.7})
    start = np.array([0.3, 0.7])
    found = search_lambdas(development, MixtureScores.from_scores(scored, ["a", "b"]), start, off=OFF)
    assert found.lambdas.tolist() == [0.3, 0.7]


def tuned(make: Any, lambdas_for: LambdasFor) -> TuningResult:
    """The text that EM sees is all w2, so the misled model explains it; the lists need the other."""
    rescorer = knowing_and_misled(make)
    w2 = VOCABULARY.ids(("w2",))[0]
    text = {name: np.full(5, model.log_probs[w2]) for name, model in rescorer.models.items()}
    scored = score_lists(rescorer, right_and_wrong_words(), list(text))
    return tune(scored, *mix(text), lambdas_for=lambdas_for, off=OFF, folds=3)


@pytest.mark.slow
def test_the_model_that_mends_errors_gets_a_share_that_the_text_gave_to_another(make: Any) -> None:
    for_text, for_errors = tuned(make, "perplexity"), tuned(make, "wer")
    # Whatever its scale, the misled model alone gets one word of each pair wrong.
    assert for_text.weights.interpolation["misled"] == pytest.approx(1, abs=1e-3)
    assert (for_text.first_pass_errors, for_text.tuned_errors) == (24, 12)
    assert (for_errors.tuned_errors, for_errors.held_out_errors) == (0, 0)
    assert for_errors.weights.interpolation["knowing"] > 0.5
    assert for_errors.mixture.lambdas == pytest.approx(for_text.mixture.lambdas)


def test_interpolation_weights_for_perplexity_stay_those_that_were_given(make: Any) -> None:
    result = tuned(make, "perplexity")
    assert result.weights.interpolation == dict(
        zip(("knowing", "misled"), result.mixture.lambdas.tolist(), strict=True)
    )
    assert result.spread["interpolation misled"].deviation == 0


@given(st.lists(st.floats(0, 1), min_size=2, max_size=4), st.data())
def test_a_share_is_given_and_the_others_keep_their_ratios(shares: list[float], data: st.DataObject) -> None:
    lambdas = np.array(shares) + 0.01
    lambdas /= lambdas.sum()
    model = data.draw(st.integers(0, len(shares) - 1))
    share = data.draw(st.floats(0, 1))
    moved = with_share(lambdas, model, share)
    assert moved[model] == share
    assert moved.sum() == pytest.approx(1)
    others, before = np.delete(moved, model), np.delete(lambdas, model)
    assert others == pytest.approx(before * (1 - share) / before.sum())


def test_a_model_that_had_all_leaves_the_rest_to_the_others_evenly() -> None:
    assert with_share(np.array([1.0, 0.0, 0.0]), 0, 0.5).tolist() == [0.5, 0.25, 0.25]
