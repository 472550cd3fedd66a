import math

import pytest

from models.errors import InvalidNBestError
from models.nbest import Hypothesis, NBest


def test_an_empty_list_is_refused_by_utterance() -> None:
    with pytest.raises(InvalidNBestError, match="'utt-1': the N-best list is empty"):
        NBest("utt-1", ())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_acoustic_score_that_is_not_finite_is_refused_by_index(value: float) -> None:
    with pytest.raises(InvalidNBestError, match="'utt-1', hypothesis 1: acoustic_score"):
        NBest("utt-1", (Hypothesis("a", 0.0), Hypothesis("b", value)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_first_pass_score_that_is_not_finite_is_refused_by_index(value: float) -> None:
    with pytest.raises(InvalidNBestError, match="'utt-1', hypothesis 1: lm_score"):
        NBest("utt-1", (Hypothesis("a", 0.0, 0.0), Hypothesis("b", 0.0, value)))


def test_first_pass_scores_for_some_hypotheses_only_are_refused_by_the_first_without() -> None:
    with pytest.raises(InvalidNBestError, match="hypothesis 1: lm_score is missing"):
        NBest("utt-1", (Hypothesis("a", 0.0, 0.0), Hypothesis("b", 0.0), Hypothesis("c", 0.0)))


def test_a_first_pass_score_of_0_is_a_score() -> None:
    assert NBest("utt-1", (Hypothesis("a", 0.0, 0.0),)).hypotheses[0].first_pass == 0.0
