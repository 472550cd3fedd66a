"""What cannot be rescored, and whom it concerns."""

import math
from dataclasses import replace
from typing import Any

import pytest

from models.errors import (
    InvalidNBestError,
    InvalidWeightsError,
    ListTooLargeError,
    ModelFailedError,
    RescoringError,
    UnknownModelError,
)
from models.ngram import KenLMNgram
from models.normaliser import Normaliser
from models.ranking import RescoredList
from models.rescoring import ListLimits, Rescorer
from models.score import Weights
from models.vocabulary import Vocabulary

LN_10 = math.log(10)

EVEN = Weights({"ngram": 0.5, "rnn": 0.5}, first_pass_scale=0.5, lm_scale=3.0, word_bonus=0.25, oov_bonus=-2.0)


def test_a_list_whose_total_is_no_number_fails_alone(rescorer: Rescorer, make: Any) -> None:
    lists = [make.nbest("fine", ("good", -5.0)), make.nbest("huge", ("good", -5.0), ("day", 1e308))]
    prepared = [rescorer.prepare(nbest) for nbest in (*lists, lists[0])]
    fine, huge, also = rescorer.rescore(prepared, [replace(EVEN, acoustic_scale=100.0)] * 3)
    assert isinstance(fine, RescoredList)
    assert fine == also
    assert isinstance(huge, InvalidNBestError)
    assert "'huge', hypothesis 1" in str(huge)


def test_scores_at_the_ends_of_the_floats_give_numbers_or_an_error(rescorer: Rescorer, make: Any) -> None:
    nbest = make.nbest("u", ("good", 1.7e308), ("day", -1.7e308), ("day day", 0.0))
    for scale in (0.0, 0.1, 1.0):
        (result,) = rescorer.rescore([rescorer.prepare(nbest)], [replace(EVEN, posterior_scale=scale)])
        assert isinstance(result, RescoredList)
        assert sum(h.posterior for h in result.ranking) == pytest.approx(1)


def test_a_model_that_fails_is_named_and_its_error_kept_as_the_cause(make: Any, tiny_vocabulary: Vocabulary) -> None:
    rescorer = Rescorer(tiny_vocabulary, Normaliser(), {"bad": make.Broken(RuntimeError("of /home/me"))})
    prepared = rescorer.prepare(make.nbest("u", ("good", -5.0)))
    with pytest.raises(ModelFailedError, match=r"^model 'bad' failed: RuntimeError$") as caught:
        rescorer.rescore([prepared], [Weights({"bad": 1.0})])
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_model_without_weight_is_not_run(make: Any, tiny_vocabulary: Vocabulary, tiny: KenLMNgram) -> None:
    models = {"ngram": tiny, "bad": make.Broken(RuntimeError())}
    rescorer = Rescorer(tiny_vocabulary, Normaliser(), models)
    prepared = rescorer.prepare(make.nbest("u", ("good", -5.0)))
    (result,) = rescorer.rescore([prepared], [Weights({"ngram": 1.0, "bad": 0.0})])
    assert isinstance(result, RescoredList)
    assert list(result.best.lm_by_model) == ["ngram"]


def test_a_model_that_the_engine_does_not_have_fails_its_list_alone(rescorer: Rescorer, make: Any) -> None:
    prepared = rescorer.prepare(make.nbest("u", ("good", -5.0)))
    fine, bad = rescorer.rescore([prepared] * 2, [EVEN, Weights({"lstm": 1.0})])
    assert isinstance(fine, RescoredList)
    assert isinstance(bad, UnknownModelError)


def test_a_model_that_the_engine_does_not_have_cannot_be_carried(rescorer: Rescorer, make: Any) -> None:
    with pytest.raises(UnknownModelError, match="'lstm'"):
        rescorer.rescore_carried([rescorer.prepare(make.nbest("u", ("good", -5.0)))], Weights({"lstm": 1.0}))


def test_no_lists_have_no_results(rescorer: Rescorer) -> None:
    assert rescorer.rescore([], []) == []


def test_five_thousand_hypotheses_are_refused_before_they_are_scored(rescorer: Rescorer, make: Any) -> None:
    nbest = make.nbest("u", *[("good", -5.0)] * 5000)
    with pytest.raises(ListTooLargeError, match="'u': 5000 hypotheses; at most 2000"):
        rescorer.prepare(nbest)


def test_a_hypothesis_of_too_many_words_is_refused_by_index(rescorer: Rescorer, make: Any) -> None:
    with pytest.raises(ListTooLargeError, match="'u', hypothesis 1: 1001 words; at most 1000"):
        rescorer.prepare(make.nbest("u", ("good", -5.0), ("good " * 1001, -5.0)))


def test_limits_are_the_largest_that_is_taken(rescorer: Rescorer, make: Any) -> None:
    small = replace(rescorer, limits=ListLimits(max_hypotheses=2, max_words=3))
    assert small.prepare(make.nbest("u", ("good " * 3, -5.0), ("day", -5.0))).tokens == 3 + 1 + 1 + 1


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "good <s>", "</s>"])
def test_a_text_that_no_text_may_be_is_refused_by_index(rescorer: Rescorer, make: Any, text: str) -> None:
    with pytest.raises(InvalidNBestError, match="'u', hypothesis 1: the text holds"):
        rescorer.prepare(make.nbest("u", ("good", -5.0), (text, -5.0)))


def test_a_reference_that_no_text_may_be_is_refused(rescorer: Rescorer, make: Any) -> None:
    with pytest.raises(InvalidNBestError, match="'u', reference: the text holds"):
        rescorer.prepare(make.nbest("u", ("good", -5.0), reference="a\0b"))


@pytest.mark.parametrize("error", [InvalidNBestError, InvalidWeightsError, ModelFailedError])
def test_errors_of_this_package_end_a_command_with_1(error: type[RescoringError]) -> None:
    assert error.exit_code == 1
