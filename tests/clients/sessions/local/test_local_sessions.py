"""Sessions of the engine in this process against SessionModel by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.bundle import Bundle
from models.errors import InvalidNBestError, InvalidOptionError, InvalidWeightsError, SessionError
from models.learning import LearningOptions
from models.local import LocalEngine, LocalSessions
from models.session import SessionOptions

ByHand = Callable[[SessionOptions], Any]
Lists = list[dict[str, Any]]


def ranking(result: dict[str, Any]) -> list[tuple[int, float]]:
    return [(entry["index"], entry["total"]) for entry in result["ranking"]]


def through(sessions: LocalSessions, lists: Lists) -> list[dict[str, Any]]:
    """Each list in its speaker's session, its winner accepted."""
    out = []
    for utterance in lists:
        (result,) = sessions.rescore([(utterance["speaker"], utterance)])
        sessions.accept(utterance["speaker"], result["best_text"], confirmed=False)
        out.append(result)
    return out


@pytest.mark.parametrize(
    ("options", "by_hand_options"),
    [
        ({}, SessionOptions()),
        ({"rate": 0.5, "tau": 3, "decay": 0.1}, SessionOptions(learning=LearningOptions(0.5, 3, 0.1))),
        ({"state": "reset", "learn_from": "nothing"}, SessionOptions(state="reset", learn_from="nothing")),
        ({"weights": "static"}, SessionOptions(weights="static")),
        ({"rate": 0.5, "max_loss_rise": 0.0}, SessionOptions(learning=LearningOptions(0.5), max_loss_rise=0.0)),
    ],
)
def test_the_engine_ranks_as_sessions_by_hand(
    bundle_folder: Path, lists: Lists, by_hand: ByHand, options: Any, by_hand_options: SessionOptions
) -> None:
    hand = by_hand(by_hand_options)
    with LocalEngine(str(bundle_folder), device="cpu").sessions(options, {}) as sessions:
        results = through(sessions, lists)
    assert [ranking(result) for result in results] == [hand.rescore(u["speaker"], u) for u in lists]


def test_lists_of_different_sessions_may_be_scored_together(bundle: Bundle, lists: Lists, by_hand: ByHand) -> None:
    hand = by_hand(SessionOptions())
    with LocalSessions(bundle, {}, {}) as sessions:
        through(sessions, lists)
        for utterance in lists:
            hand.rescore(utterance["speaker"], utterance)
        together = sessions.rescore([(speaker, lists[0]) for speaker in "abc"])
    for result, speaker in zip(together, "abc", strict=True):
        expected = hand.rescore(speaker, lists[0])
        assert [index for index, _ in ranking(result)] == [index for index, _ in expected]
        assert [total for _, total in ranking(result)] == pytest.approx([total for _, total in expected], abs=1e-4)


def test_rescoring_changes_no_session(bundle: Bundle, lists: Lists) -> None:
    with LocalSessions(bundle, {}, {}) as sessions:
        first = sessions.rescore([("a", lists[0])])
        assert sessions.rescore([("a", lists[0])]) == first
        sessions.accept("a", "good morning", confirmed=False)
        assert sessions.rescore([("a", lists[0])]) != first
        assert sessions.rescore([("b", lists[0])]) == first


def test_a_session_that_is_forgotten_is_fresh(bundle: Bundle, lists: Lists) -> None:
    with LocalSessions(bundle, {}, {}) as sessions:
        first = sessions.rescore([("a", lists[0])])
        sessions.accept("a", "good morning", confirmed=False)
        sessions.forget("a")
        sessions.forget("never")
        assert (sessions.rescore([("a", lists[0])]), sessions.gains()) == (first, [])


def test_sessions_put_away_come_back_unchanged(bundle: Bundle, lists: Lists, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with LocalSessions(bundle, {"rate": 0.5}, {}) as sessions:
        expected = through(sessions, lists)
        assert list(tmp_path.iterdir()) == []
    with LocalSessions(bundle, {"rate": 0.5}, {}, memory_bytes=1) as sessions:
        assert through(sessions, lists) == expected
        (folder,) = tmp_path.iterdir()
        assert len(list(folder.iterdir())) == 2  # of three sessions, the one used last is in memory
        sessions.forget("a")
        sessions.forget("b")
        assert len(list(folder.iterdir())) <= 1
    assert list(tmp_path.iterdir()) == []


def test_gains_are_those_of_the_accepted_texts(bundle: Bundle, lists: Lists, by_hand: ByHand) -> None:
    hand = by_hand(SessionOptions())
    with LocalSessions(bundle, {}, {}) as sessions:
        results = through(sessions, lists)
        gains = sessions.gains()
    for utterance in lists:
        hand.rescore(utterance["speaker"], utterance)
    words = sum(len(result["best_text"].split()) + 1 for result in results)
    assert sum(gain["words_learnt"] for gain in gains) == words
    assert sum(gain["utterances"] for gain in gains) == len(lists)
    expected = {state.tallies["mixture"].perplexities() for state in hand.states.values()}
    mixtures = [gain["perplexity"]["mixture"] for gain in gains]
    assert {(mixture["session"], mixture["static"]) for mixture in mixtures} == expected
    assert json.loads(json.dumps(gains, allow_nan=False)) == gains


def test_sessions_say_what_they_are(bundle: Bundle) -> None:
    settings = {"options": {"lm_scale": 3, "state": "reset"}}
    with LocalSessions(bundle, {"rate": 0.2, "learn_from": "confirmed"}, settings) as sessions:
        described = sessions.describe()
    assert described["bundle"] == bundle.sha256
    assert described["options"] == {
        "state": "carried",
        "weights": "dynamic",
        "learn_from": "confirmed",
        "rate": 0.2,
        "tau": 1,
        "decay": 0.0,
        "max_loss_rise": 0.5,
    }
    assert described["rescoring"]["lm_scale"] == 3.0
    assert described["rescoring"]["interpolation"] == {"ngram": 0.25, "rnn": 0.75}


@pytest.mark.parametrize(
    ("options", "settings", "error", "named"),
    [
        ({"beam": 1}, {}, InvalidOptionError, "'beam' is no option of a session"),
        ({"rate": -1.0}, {}, InvalidOptionError, "rate"),
        ({"rate": 2.0, "decay": 1.0}, {}, InvalidOptionError, "decay"),
        ({"state": "kept"}, {}, InvalidOptionError, "state"),
        ({}, {"options": {"lm_scale": "x"}}, InvalidWeightsError, "lm_scale"),
        ({}, {"options": {"interpolation": {"ngram": 1}}}, SessionError, "nothing that could learn"),
    ],
)
def test_what_are_no_options_is_refused_by_name(
    bundle: Bundle, options: Any, settings: Any, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        LocalSessions(bundle, options, settings)


def test_a_bad_list_is_refused_by_utterance(bundle: Bundle, lists: Lists) -> None:
    bad = {"id": "bad", "hypotheses": [{"text": "<s>", "acoustic_score": -1.0}]}
    with LocalSessions(bundle, {}, {}) as sessions, pytest.raises(InvalidNBestError, match="'bad', hypothesis 0"):
        sessions.rescore([("a", lists[0]), ("b", bad)])


def test_learning_that_wrecks_the_network_is_never_nan(bundle: Bundle, lists: Lists) -> None:
    with LocalSessions(bundle, {"rate": 1e6}, {}) as sessions:
        results = through(sessions, lists)
        assert json.dumps([results, sessions.gains()], allow_nan=False)
        assert sum(gain["lessons_undone"] for gain in sessions.gains()) > 0
