import json
from typing import Any

import httpx
import pytest

from clients.errors import (
    BadAnswerError,
    BusyError,
    CorruptSnapshotError,
    ForeignBundleError,
    NoAnswerError,
    ProblemError,
    SessionError,
    SessionExistsError,
    SessionFullError,
    SessionGoneError,
    UnknownSessionError,
    UnknownUtteranceError,
    UsageError,
    UtteranceConflictError,
    VersionConflictError,
)


def test_another_version_than_the_one_named_is_a_conflict_that_tells_it(client: Any, fake: Any, fakes: Any) -> None:
    with client.session("s") as session:
        session.rescore(fakes.utterance("u"))
        with pytest.raises(VersionConflictError, match="'s' is at version 1, not at the one asked for") as caught:
            session.rescore(fakes.utterance("v"), if_version=0)
        assert caught.value.version == 1
        assert fake.sessions["s"].version == 1


@pytest.mark.parametrize(
    ("name", "status", "kind", "sentence"),
    [
        ("session-exists", 409, SessionExistsError, "session 's' exists already: why"),
        (
            "version-conflict",
            409,
            VersionConflictError,
            "session 's' is at another version than the one asked for: why",
        ),
        ("utterance-conflict", 409, UtteranceConflictError, "session 's' knows this utterance id from another request"),
        ("unknown-session", 404, UnknownSessionError, "session 's' is unknown to the server: why"),
        ("unknown-utterance", 404, UnknownUtteranceError, "session 's' has accepted no utterance of this id: why"),
        ("session-expired", 410, SessionGoneError, "session 's' is gone: why"),
        ("session-deleted", 410, SessionGoneError, "session 's' is gone: why"),
        ("session-full", 409, SessionFullError, "session 's' is full: why"),
        ("foreign-bundle", 409, ForeignBundleError, "session 's' belongs to another bundle than the one served: why"),
        ("corrupt-snapshot", 422, CorruptSnapshotError, "session 's' cannot be made from these bytes: why"),
    ],
)
def test_each_refusal_is_an_error_of_its_own(
    client: Any, wire: Any, fakes: Any, name: str, status: int, kind: type[SessionError], sentence: str
) -> None:
    document = {"type": f"/problems/{name}", "title": "T", "status": status, "detail": "why"}
    headers = {"Content-Type": "application/problem+json"}
    wire.outcomes = [httpx.Response(status, content=json.dumps(document), headers=headers)]
    with pytest.raises(kind, match=sentence) as caught:
        client.attach("s").rescore(fakes.utterance("u"))
    assert (caught.value.session_id, caught.value.problem["status"]) == ("s", status)


def test_refusals_that_have_nothing_to_do_with_sessions_stay_what_they_are(client: Any, wire: Any) -> None:
    wire.outcomes = [httpx.Response(401)]
    with pytest.raises(ProblemError) as caught:
        client.attach("s").describe()
    assert not isinstance(caught.value, SessionError)


def test_a_full_server_is_tried_again_and_then_said_to_be_busy(client: Any, wire: Any, fake: Any) -> None:
    full = httpx.Response(429, headers={"Retry-After": "7"})
    wire.outcomes = [full]
    with client.session():
        assert len(fake.sessions) == 1
    wire.outcomes = [full] * 20
    with pytest.raises(BusyError):
        client.session().open()


def test_the_contract_of_the_fake_gives_the_same_errors(client: Any, fakes: Any) -> None:
    with client.session("s") as session:
        session.rescore(fakes.utterance("u"))
        with pytest.raises(UtteranceConflictError):
            session.rescore(fakes.utterance("u", "other"))
        with pytest.raises(UnknownUtteranceError):
            session.confirm("v", "text")
        with pytest.raises(SessionExistsError):
            client.session("s").open()
        with pytest.raises(CorruptSnapshotError):
            client.import_session(b"nothing").open()
        foreign = session.export().replace(b"bbbb", b"cccc")
        with pytest.raises(ForeignBundleError):
            client.import_session(foreign).open()
    with pytest.raises(SessionGoneError):
        session.describe()
    with pytest.raises(UnknownSessionError, match="'never'"):
        client.attach("never").open()


def test_deleting_what_is_gone_is_no_error(client: Any, fakes: Any) -> None:
    with client.session() as session:
        session.rescore(fakes.utterance("u"))
        session.delete()


def fail(wire: Any, *outcomes: str) -> None:
    wire.outcomes = list(outcomes)
    raise ZeroDivisionError


def test_an_error_in_the_block_is_not_hidden_by_one_of_the_deletion(client: Any, wire: Any, fake: Any) -> None:
    with pytest.raises(ZeroDivisionError), client.session("s"):
        fail(wire)
    assert fake.sessions == {}
    with pytest.raises(ZeroDivisionError), client.session("s"):
        fail(wire, "refused", "refused", "refused")
    # tried once: who waits for the error should not wait for the server too
    assert len(wire.outcomes) == 2


def test_without_an_error_in_the_block_a_failed_deletion_is_one(client: Any, wire: Any) -> None:
    with pytest.raises(NoAnswerError), client.session("s"):
        wire.outcomes = ["refused"] * 100


@pytest.mark.parametrize("identifier", ["", ".", "..", "a/b", "ü", "a b", "x" * 129])
def test_what_is_no_id_of_a_session_is_refused_before_anything_is_sent(client: Any, fake: Any, identifier: str) -> None:
    for make in (client.session, client.attach):
        with pytest.raises(UsageError, match="is no id of a session"):
            make(identifier)
    with pytest.raises(UsageError):
        client.import_session(b"exported:", identifier)
    assert fake.calls == []


@pytest.mark.parametrize("identifier", ["", "\ud800"])
def test_what_is_no_utterance_id_is_not_sent(client: Any, identifier: str) -> None:
    with pytest.raises(UsageError, match="utterance"):
        client.attach("s").confirm(identifier, "text")


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("describe", {}),
        ("describe", {"id": "other", "version": 0, "utterances": 0, "options": {}, "rescoring": {}}),
        ("describe", {"id": "s", "version": True, "utterances": 0, "options": {}, "rescoring": {}}),
        ("rescore", {"result": {"id": "u", "ranking": [{}]}}),
        ("rescore", {"version": 1, "bundle": "b", "result": {"id": "v", "ranking": [{}]}}),
        ("rescore", {"version": 1, "bundle": "b", "result": {"id": "u", "ranking": []}}),
        ("export", {}),
    ],
)
def test_an_answer_of_something_else_is_an_error(client: Any, wire: Any, fakes: Any, call: str, answer: Any) -> None:
    wire.outcomes = [httpx.Response(200, json=answer)]
    arguments = [fakes.utterance("u")] if call == "rescore" else []
    with pytest.raises(BadAnswerError):
        getattr(client.attach("s"), call)(*arguments)
