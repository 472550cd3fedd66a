from typing import Any

import pytest

from clients.errors import (
    SessionExistsError,
    UnknownSessionError,
)


def test_a_session_is_made_on_entry_and_deleted_on_exit(client: Any, fake: Any) -> None:
    session = client.session("s", learn_from="confirmed", rate=0.05, rescoring={"lm_scale": 2.0})
    assert fake.calls == []
    with session:
        asked = {"id": "s", "options": {"learn_from": "confirmed", "rate": 0.05}, "rescoring": {"lm_scale": 2.0}}
        assert fake.calls == [("POST", "/v1/sessions", asked)]
        assert (session.id, session.version) == ("s", 0)
    assert fake.calls[1:] == [("DELETE", "/v1/sessions/s", None)]
    assert fake.sessions == {}


def test_without_options_only_an_id_is_sent_and_each_session_has_its_own(client: Any, fake: Any) -> None:
    with client.session() as one, client.session() as two:
        assert [body.keys() for _, _, body in fake.calls] == [{"id"}, {"id"}]
        assert fake.sessions.keys() == {one.id, two.id}


def test_a_session_to_be_kept_stays(client: Any, fake: Any) -> None:
    with client.session("s", keep=True):
        pass
    assert fake.sessions.keys() == {"s"}


def test_a_list_is_rescored_and_its_winner_accepted(client: Any, fake: Any, fakes: Any) -> None:
    with client.session() as session:
        # -100 - 30 against -101 - 10; then "d" is worth 3 more for having been learnt, and 1 for being carried
        utterance = fakes.utterance("u", "a b c", "d")
        answer = session.rescore(utterance)
        assert (answer["result"]["best_text"], answer["version"], answer["repeated"]) == ("d", 1, False)
        again = session.rescore(fakes.utterance("v", "a b c", "d"))
        assert again["result"]["ranking"][0]["total"] == answer["result"]["ranking"][0]["total"] + 4
        assert session.version == 2
    assert fake.calls[1][2] == {"utterance": utterance}


def test_the_form_of_a_request_travels_with_it(client: Any, fake: Any, fakes: Any) -> None:
    with client.session() as session:
        session.rescore(fakes.utterance("u"), log_base="10", word_scores=True, compact=False)
    assert fake.calls[1][2] == {
        "utterance": fakes.utterance("u"),
        "log_base": "10",
        "word_scores": True,
        "compact": False,
    }


def test_a_confirmed_text_takes_the_place_of_the_winner(client: Any, fake: Any, fakes: Any) -> None:
    with client.session() as session:
        session.rescore(fakes.utterance("u", "a", "b"))
        assert session.confirm("u", "b b")["words_learnt"] == 2
        assert fake.sessions[session.id].learnt() == {"b": 2}


@pytest.mark.parametrize("identifier", ["a/b", "ü ?#%2F", ".", "..", "%", "a\\b"])
def test_any_utterance_id_reaches_the_server_whole(client: Any, fake: Any, fakes: Any, identifier: str) -> None:
    with client.session() as session:
        session.rescore(fakes.utterance(identifier))
        session.confirm(identifier, "said")
        assert fake.sessions[session.id].log[identifier]["confirmed"] == "said"


def test_a_reset_forgets_what_was_accepted(client: Any, fakes: Any) -> None:
    with client.session() as session:
        first = session.rescore(fakes.utterance("u"))
        assert session.reset()["utterances"] == 0
        assert session.rescore(fakes.utterance("u"))["result"] == first["result"]
        assert session.version == 3


def test_a_fork_begins_where_its_source_is_and_goes_its_own_way(client: Any, fake: Any, fakes: Any) -> None:
    with client.session() as session:
        session.rescore(fakes.utterance("u"))
        with session.fork("other") as other:
            assert (other.id, other.version) == ("other", 1)
            other.rescore(fakes.utterance("v"))
            assert (session.describe()["utterances"], other.describe()["utterances"]) == (1, 2)
        assert fake.sessions.keys() == {session.id}


def test_an_exported_session_is_imported_under_another_id(client: Any, fakes: Any) -> None:
    with client.session(rate=0.2) as session:
        session.rescore(fakes.utterance("u"))
        exported = session.export()
        assert isinstance(exported, bytes)
        with client.import_session(exported, "copy") as copy:
            assert copy.describe() == {**session.describe(), "id": "copy"}


def test_bytes_travel_as_bytes(client: Any, fake: Any) -> None:
    with client.session("s") as session, client.import_session(session.export()):
        assert fake.headers[1]["accept"].startswith("application/octet-stream")
        assert fake.headers[2]["content-type"] == "application/octet-stream"


def test_a_session_that_exists_is_gone_on_with_and_stays(client: Any, fake: Any, fakes: Any) -> None:
    with client.session("s", keep=True) as session:
        session.rescore(fakes.utterance("u"))
    with client.attach("s") as again:
        assert again.version == 1
        assert again.rescore(fakes.utterance("u"))["repeated"] is True
    assert fake.sessions.keys() == {"s"}
    with client.attach("s", keep=False):
        pass
    assert fake.sessions == {}


def test_a_version_is_named_only_when_asked_for(client: Any, fake: Any, fakes: Any) -> None:
    with client.session("s") as session:
        session.rescore(fakes.utterance("u"))
        session.rescore(fakes.utterance("v"), if_version=1)
        session.confirm("u", "x", if_version=2)
        session.reset(if_version=3)
        session.delete(if_version=4)
    named = [headers.get("if-match") for headers in fake.headers]
    assert named == [None, None, '"1"', '"2"', '"3"', '"4"', None]


def test_the_answer_to_a_rescoring_may_be_lost_and_nothing_is_learnt_twice(
    client: Any, wire: Any, fake: Any, fakes: Any
) -> None:
    with client.session() as session:
        wire.outcomes = ["lost", "refused", "lost"]
        answer = session.rescore(fakes.utterance("u"))
        assert (answer["repeated"], answer["version"], fake.sessions[session.id].version) == (True, 1, 1)


def test_the_answer_to_any_call_may_be_lost(client: Any, wire: Any, fake: Any, fakes: Any) -> None:
    wire.outcomes = ["lost"]
    with client.session() as session:
        session.rescore(fakes.utterance("u"))
        wire.outcomes = ["lost"]
        assert session.confirm("u", "x")["version"] == 2
        wire.outcomes = ["lost"]
        with session.fork() as other:
            assert other.version == 2
        wire.outcomes = ["lost"]
        with client.import_session(session.export()) as copy:
            assert copy.version == 2
        wire.outcomes = ["lost"]
        assert session.reset()["utterances"] == 0
        wire.outcomes = ["lost"]
    assert fake.sessions == {}


def test_a_session_whose_id_was_chosen_is_known_again_when_nothing_has_happened_in_it(client: Any, wire: Any) -> None:
    wire.outcomes = ["lost"]
    with client.session("s", rate=0.2, rescoring={"lm_scale": 3.0}) as session:
        assert session.version == 0


@pytest.mark.parametrize("theirs", [{"rate": 0.3}, {}])
def test_a_session_of_somebody_else_is_not_taken_for_ones_own(
    client: Any, wire: Any, fakes: Any, theirs: dict[str, Any]
) -> None:
    with client.session("s", keep=True, **theirs) as session:
        if not theirs:
            session.rescore(fakes.utterance("u"))
    wire.outcomes = ["lost"]
    with pytest.raises(SessionExistsError):
        client.session("s", rate=0.2 if theirs else 0.1).open()


def test_what_fails_in_a_fork_names_the_session_it_lies_with(client: Any) -> None:
    with pytest.raises(UnknownSessionError, match="'never'"):
        client.attach("never").fork("other")
    with client.session("s") as session, client.session("taken"), pytest.raises(SessionExistsError, match="'taken'"):
        session.fork("taken")
