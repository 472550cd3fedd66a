"""The learning rate of sessions, chosen on what they accept; and a development set scored in sessions."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from models.errors import SessionError, TuningError
from models.evaluation_set import EvaluationSet
from models.learning import LearningOptions
from models.learning_search import FoundLearning, search_learning
from models.normaliser import Normaliser
from models.protocols import Cell, Protocols, ProtocolSettings
from models.ranking import RescoredList
from models.rescoring import Rescorer
from models.score import Weights
from models.session import SessionModel, SessionOptions
from models.session_scoring import accepted_texts, score_in_sessions
from models.tuning import score_lists
from models.vocabulary import EOS_ID, Vocabulary

VOCABULARY = Vocabulary(("good", "morning", "day"))
EVEN = Weights({"rnn": 0.5, "lm": 0.5})
ONE_PHRASE = [("a", [2, 3])] * 12


@pytest.fixture
def rescorer(make: Any) -> Rescorer:
    unigram = make.Unigram.drawn(VOCABULARY.size, seed=3)
    return Rescorer(VOCABULARY, Normaliser(), {"rnn": make.elman(VOCABULARY, spread=0.3), "lm": unigram})


def test_text_that_repeats_itself_wants_a_high_rate_and_learning_helps(rescorer: Rescorer) -> None:
    found = search_learning(rescorer, EVEN, ONE_PHRASE, rates=(0.001, 0.1, 1.0))
    assert found.best.rate == 1.0
    assert found.helps
    by_rate = [found.perplexities[LearningOptions(rate)] for rate in (1.0, 0.1, 0.001)]
    assert by_rate == sorted(by_rate)


def test_a_rate_that_is_the_best_of_those_that_do_harm_does_not_help() -> None:
    harmful = {LearningOptions(0.1): 101.0, LearningOptions(1.0): 150.0}
    assert not FoundLearning(LearningOptions(0.1), harmful, static=100.0).helps
    assert FoundLearning(LearningOptions(0.1), harmful, static=102.0).helps


def test_the_static_perplexity_is_the_mixtures_own_with_the_state_carried(rescorer: Rescorer, make: Any) -> None:
    found = search_learning(rescorer, EVEN, ONE_PHRASE, rates=(0.1,))
    state, sums = None, 0.0
    for _, ids in ONE_PHRASE:
        network, state = make.plain_elman(rescorer.models["rnn"], ids, state)
        unigram = rescorer.models["lm"].log_probs[[*ids, EOS_ID]]  # type: ignore[attr-defined]
        sums += float(np.log(0.5 * np.exp(network) + 0.5 * np.exp(unigram)).sum())
    assert found.static == pytest.approx(math.exp(-sums / (3 * len(ONE_PHRASE))), rel=1e-9)


def test_sessions_do_not_learn_from_each_other(rescorer: Rescorer) -> None:
    # Two speakers who say the opposite of each other, turn by turn: together they undo what each teaches.
    turns: list[tuple[str, Sequence[int]]] = [("a", [2, 2, 2]), ("b", [3, 3, 3])] * 10
    apart = search_learning(rescorer, EVEN, turns, rates=(0.5,))
    together = search_learning(rescorer, EVEN, [("one", words) for _, words in turns], rates=(0.5,))
    assert apart.perplexities[apart.best] < together.perplexities[together.best]


@pytest.mark.slow
def test_only_the_beginning_of_a_long_set_is_tried(rescorer: Rescorer) -> None:
    beginning: list[tuple[str, Sequence[int]]] = [("a", [2, 3, 4] * 333)] * 7
    with_more = [*beginning, *[("a", [4, 4, 4])] * 50]
    tried = [search_learning(rescorer, EVEN, texts, rates=(0.01,)).perplexities for texts in (beginning, with_more)]
    assert tried[0] == tried[1]


def test_a_mixture_in_which_nothing_can_learn_is_refused(rescorer: Rescorer) -> None:
    with pytest.raises(SessionError, match="nothing that could learn"):
        search_learning(rescorer, Weights({"lm": 1.0}), ONE_PHRASE)


def test_texts_without_a_perplexity_give_no_rate(rescorer: Rescorer) -> None:
    with pytest.raises(TuningError, match="no learning rate can be chosen"):
        search_learning(rescorer, EVEN, [])


@pytest.fixture
def development(rescorer: Rescorer, make: Any) -> EvaluationSet:
    draw = np.random.default_rng(9)
    lists = []
    for number in range(12):
        texts = [" ".join(draw.choice(VOCABULARY.words, 3)) for _ in range(4)]
        entries = [(text, -float(place)) for place, text in enumerate(texts)]
        lists.append(make.nbest(f"u-{number}", *entries, reference=texts[2], speaker=f"s{number % 2}"))
    return EvaluationSet.prepare(rescorer, lists, "speaker")


def test_lists_scored_in_sessions_have_the_scores_of_the_protocols_dynamic_cell(
    rescorer: Rescorer, development: EvaluationSet
) -> None:
    learning = LearningOptions(0.3)
    model = SessionModel(rescorer, EVEN, SessionOptions(learning=learning))
    scored, references = score_in_sessions(model, development)
    settings = ProtocolSettings(learning, session_per="speaker", shuffles=1)
    passes = Protocols(rescorer, EVEN, development, settings).run([range(len(development.lists))])
    expected = passes[Cell("original", "carried", "dynamic")][0]
    winners = [words for _, words in accepted_texts(scored, EVEN, development)]
    assert winners == [development.lists[number].ids[winner] for number, winner in enumerate(expected.winners.tolist())]
    assert references["rnn"].sum() == pytest.approx(expected.log_likelihoods["rnn"].sum(), abs=1e-9)
    assert references["rnn"].shape == (sum(len(ids) + 1 for ids in development.references),)


def test_static_sessions_that_reset_their_state_give_what_single_lists_give(
    rescorer: Rescorer, development: EvaluationSet
) -> None:
    model = SessionModel(rescorer, EVEN, SessionOptions(state="reset", weights="static"))
    in_sessions, _ = score_in_sessions(model, development)
    together = score_lists(rescorer, [prepared.nbest for prepared in development.lists], ["rnn", "lm"])
    assert accepted_texts(in_sessions, EVEN, development) == accepted_texts(together, EVEN, development)
    rescored = rescorer.rescore(development.lists, [EVEN] * len(development.lists))
    best = [list(entry.best.words) for entry in rescored if isinstance(entry, RescoredList)]
    assert [VOCABULARY.ids(words) for words in best] == [
        list(ids) for _, ids in accepted_texts(together, EVEN, development)
    ]
