from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import InvalidNBestError
from models.nbest import Hypothesis, NBest
from models.normaliser import Normaliser
from models.ranking import RescoredList
from models.rescoring import Rescorer
from models.rnnlm import ElmanLM
from models.score import Weights
from models.vocabulary import Vocabulary

RNN = Weights({"rnn": 1.0})
VOCABULARY = Vocabulary(("good", "morning", "day"))
TEXTS = st.lists(st.sampled_from(VOCABULARY.words), max_size=3).map(" ".join)


@pytest.fixture(scope="module")
def network(make: Any) -> ElmanLM:
    model: ElmanLM = make.elman(VOCABULARY, rare=("day",), seed=4)
    return model


@pytest.fixture(scope="module")
def engine(network: ElmanLM) -> Rescorer:
    return Rescorer(VOCABULARY, Normaliser(), {"rnn": network})


def carried(engine: Rescorer, lists: list[NBest], weights: Weights = RNN) -> list[RescoredList]:
    out = []
    for result in engine.rescore_carried([engine.prepare(nbest) for nbest in lists], weights):
        assert isinstance(result, RescoredList), result
        out.append(result)
    return out


def test_the_first_list_of_a_session_starts_from_the_initial_state(engine: Rescorer, make: Any) -> None:
    nbest = make.nbest("u", ("good day", -5.0), ("day", -5.0))
    (result,) = carried(engine, [nbest])
    (reset,) = engine.rescore([engine.prepare(nbest)], [RNN])
    assert result == reset


def test_the_next_list_goes_on_from_the_winner(engine: Rescorer, network: ElmanLM, make: Any) -> None:
    winner_last = make.nbest("1", ("morning", -50.0), ("good day", -5.0))
    first, second = carried(engine, [winner_last, make.nbest("2", ("good", -5.0))])
    assert first.best.text == "good day"
    _, state = make.plain_elman(network, VOCABULARY.ids(["good", "day"]))
    expected, _ = make.plain_elman(network, VOCABULARY.ids(["good"]), state)
    assert second.best.lm == pytest.approx(expected.sum())


@given(st.permutations(range(3)), TEXTS, TEXTS)
def test_the_order_of_losing_hypotheses_does_not_matter(
    engine: Rescorer, order: list[int], left: str, right: str
) -> None:
    hypotheses = (Hypothesis("good day", 100.0), Hypothesis(left, -5.0), Hypothesis(right, -6.0))
    following = NBest("2", (Hypothesis("morning", -5.0), Hypothesis("day", -5.0)))
    one = carried(engine, [NBest("1", hypotheses), following])
    other = carried(engine, [NBest("1", tuple(hypotheses[i] for i in order)), following])
    assert one[1].ranking == other[1].ranking


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_a_session_does_not_depend_on_the_sessions_between(engine: Rescorer, strangers: list[str]) -> None:
    mine = [NBest(f"m{i}", (Hypothesis("good day", -5.0),), session_id="mine") for i in range(2)]
    others = [NBest(f"o{i}", (Hypothesis(text, -5.0),), session_id="other") for i, text in enumerate(strangers)]
    alone = carried(engine, mine)
    among = carried(engine, [mine[0], *others, mine[1]])
    assert among[-1].ranking == alone[-1].ranking


def test_lists_without_a_session_are_a_session_of_their_own(engine: Rescorer, make: Any) -> None:
    named = make.nbest("1", ("good day", -5.0), session_id="s")
    first, second = make.nbest("2", ("day", -5.0)), make.nbest("3", ("day", -5.0))
    _, after_named, after_unnamed = carried(engine, [named, first, second])
    (reset,) = engine.rescore([engine.prepare(first)], [RNN])
    assert isinstance(reset, RescoredList)
    assert after_named.best.lm == reset.best.lm
    assert after_unnamed.best.lm != reset.best.lm


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_one_session_of_certain_transcripts_is_running_text(
    engine: Rescorer, network: ElmanLM, make: Any, texts: list[str]
) -> None:
    results = carried(engine, [NBest(str(i), (Hypothesis(text, 0.0),)) for i, text in enumerate(texts)])
    state = None
    for result, text in zip(results, texts, strict=True):
        expected, state = make.plain_elman(network, VOCABULARY.ids(text.split()), state)
        assert result.best.lm == pytest.approx(expected.sum())


def test_carrying_state_is_not_learning(engine: Rescorer, network: ElmanLM, make: Any) -> None:
    before = {name: matrix.clone() for name, matrix in network.weights.named().items()}
    carried(engine, [make.nbest(str(i), ("good day", -5.0)) for i in range(5)])
    assert all(bool((matrix == before[name]).all()) for name, matrix in network.weights.named().items())


def test_no_state_is_left_for_the_next_call(engine: Rescorer, make: Any) -> None:
    lists = [make.nbest(str(i), ("good day", -5.0)) for i in range(3)]
    assert carried(engine, lists) == carried(engine, lists)


def test_a_list_that_fails_leaves_the_state_of_the_one_before(engine: Rescorer, make: Any) -> None:
    lists = [make.nbest("1", ("good", -5.0)), make.nbest("2", ("day", 1e308)), make.nbest("3", ("day", -5.0))]
    prepared = [engine.prepare(nbest) for nbest in lists]
    _, failed, after = engine.rescore_carried(prepared, replace(RNN, acoustic_scale=100.0))
    assert isinstance(failed, InvalidNBestError)
    assert isinstance(after, RescoredList)
    assert after.best.lm == carried(engine, [lists[0], lists[2]])[1].best.lm


def test_an_n_gram_has_nothing_to_carry(rescorer: Rescorer, make: Any) -> None:
    lists = [make.nbest("1", ("good day", -5.0)), make.nbest("2", ("morning", -5.0))]
    second = carried(rescorer, lists, Weights({"ngram": 1.0}))[1]
    (reset,) = rescorer.rescore([rescorer.prepare(lists[1])], [Weights({"ngram": 1.0})])
    assert second == reset


def test_an_n_gram_and_a_network_are_carried_together(rescorer: Rescorer, make: Any) -> None:
    lists = [make.nbest("1", ("good day", -5.0)), make.nbest("2", ("morning", -5.0))]
    mixed = carried(rescorer, lists, Weights({"ngram": 0.5, "rnn": 0.5}))[1].best.lm_by_model
    alone = carried(rescorer, lists, Weights({"rnn": 1.0}))[1].best.lm_by_model
    assert mixed["rnn"] == pytest.approx(alone["rnn"])


def test_a_text_between_two_others_changes_what_follows(engine: Rescorer, make: Any) -> None:
    last = make.nbest("3", ("good day", -5.0))
    scores = {carried(engine, [make.nbest("1", (text, -5.0)), last])[1].best.lm for text in ("", "good", "day day")}
    assert len(scores) == 3
    assert np.all(np.isfinite(list(scores)))
