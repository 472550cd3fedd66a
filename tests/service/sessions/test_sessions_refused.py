"""What is refused about sessions: each a problem of its own kind, and the session as it was."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from service.schemas import Problem
from service.settings import Limits

pytestmark = pytest.mark.anyio

Talk = Any
Serve = Callable[..., Any]
LISTED = ("the cat sad", "the cat sat")


def problem(response: httpx.Response, status: int, name: str) -> dict[str, Any]:
    TypeAdapter(Problem).validate_json(response.content)
    assert (response.status_code, response.json()["type"]) == (status, f"/problems/{name}"), response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    return document


def fields(response: httpx.Response) -> list[str]:
    return [entry["field"] for entry in response.json().get("errors", [])]


@pytest.mark.parametrize("session_id", ["nobody", "a" * 129, "ä", "a b", "%2e"])
async def test_an_unknown_session_is_404_whatever_is_asked_of_it(
    client: httpx.AsyncClient, utterance: Callable[..., Any], session_id: str
) -> None:
    path = f"/v1/sessions/{session_id}"
    for response in (
        await client.get(path),
        await client.delete(path),
        await client.post(f"{path}/rescore", json=utterance("the")),
        await client.put(f"{path}/utterances/u/transcript", json={"text": "the"}),
        await client.post(f"{path}/reset"),
        await client.post(f"{path}/fork"),
        await client.get(f"{path}/export"),
    ):
        problem(response, 404, "unknown-session")


async def test_a_deleted_session_is_410_whatever_is_asked_of_it(talk: Talk) -> None:
    await talk.make()
    assert (await talk.client.delete(talk.path)).status_code == 204
    for response in (
        await talk.client.get(talk.path),
        await talk.client.delete(talk.path),
        await talk.say("u1", *LISTED),
        await talk.confirm("u1", "the"),
        await talk.client.post(f"{talk.path}/reset"),
        await talk.client.post(f"{talk.path}/fork", json={"id": "other"}),
        await talk.client.get(f"{talk.path}/export"),
    ):
        problem(response, 410, "session-deleted")


async def test_a_name_that_is_taken_is_409(talk: Talk) -> None:
    await talk.make()
    await talk.said("u1", *LISTED)
    exported = await talk.exported()
    problem(await talk.client.post("/v1/sessions", json={"id": "talk"}), 409, "session-exists")
    problem(await talk.client.post(f"{talk.path}/fork", json={"id": "talk"}), 409, "session-exists")
    problem(await talk.client.post("/v1/sessions/import?id=talk", content=exported), 409, "session-exists")
    assert await talk.exported() == exported


@pytest.mark.parametrize(
    ("request_", "status", "name", "field"),
    [
        ({"id": ""}, 422, "invalid-request", "id"),
        ({"id": "."}, 422, "invalid-request", "id"),
        ({"id": "a/b"}, 422, "invalid-request", "id"),
        ({"id": "a" * 129}, 422, "invalid-request", "id"),
        ({"id": "a\n"}, 422, "invalid-request", "id"),
        ({"id": 7}, 422, "invalid-request", "id"),
        ({"name": "x"}, 422, "invalid-request", "name"),
        ({"options": {"sate": "reset"}}, 422, "invalid-request", "options.sate"),
        ({"options": {"state": "kept"}}, 422, "invalid-request", "options.state"),
        ({"options": {"rate": -0.1}}, 422, "invalid-request", "options.rate"),
        ({"options": {"rate": 1e9}}, 422, "invalid-request", "options.rate"),
        ({"options": {"rate": "0.1"}}, 422, "invalid-request", "options.rate"),
        ({"options": {"tau": 0}}, 422, "invalid-request", "options.tau"),
        ({"options": {"tau": 10**12}}, 422, "invalid-request", "options.tau"),
        ({"options": {"tau": 1.5}}, 422, "invalid-request", "options.tau"),
        ({"options": {"tau": True}}, 422, "invalid-request", "options.tau"),
        ({"options": {"max_loss_rise": -1}}, 422, "invalid-request", "options.max_loss_rise"),
        ({"options": {"rate": 0.5, "decay": 2.5}}, 422, "invalid-option", "options.decay"),
        ({"rescoring": {"state": "carried"}}, 422, "invalid-request", "rescoring.state"),
        ({"rescoring": {"interpolation": {"rnn": 0.5}}}, 422, "invalid-weights", "rescoring.interpolation"),
        ({"rescoring": {"interpolation": {"lstm": 1}}}, 422, "unknown-model", "rescoring.interpolation"),
        ({"rescoring": {"interpolation": {"ngram": 1}}}, 422, "invalid-session", "rescoring.interpolation"),
        ({"rescoring": {"lm_scale": 1e999}}, 422, "invalid-request", "rescoring.lm_scale"),
    ],
)
async def test_a_session_that_cannot_be_is_refused_naming_the_field(
    client: httpx.AsyncClient, request_: dict[str, Any], status: int, name: str, field: str
) -> None:
    # httpx itself would not write infinity.
    response = await client.post("/v1/sessions", content=json.dumps(request_))
    problem(response, status, name)
    assert fields(response) == [field]


@pytest.mark.parametrize(
    ("body", "status", "name", "field"),
    [
        ({}, 422, "invalid-request", "utterance"),
        ({"utterance": {"id": "u1", "hypotheses": []}}, 422, "invalid-request", "utterance.hypotheses"),
        (
            {"utterance": {"id": "u1", "hypotheses": [{"text": "<s>", "acoustic_score": 1}]}},
            422,
            "invalid-nbest",
            "utterance.hypotheses[0].text",
        ),
        (
            {"utterance": {"id": "u1", "hypotheses": [{"text": "a", "acoustic_score": 1e308}]}, "log_base": "10"},
            422,
            "invalid-nbest",
            "utterance.hypotheses[0].acoustic_score",
        ),
        (
            {"utterance": {"id": "u1", "hypotheses": [{"text": "a", "acoustic_score": 1, "x": 1}]}},
            422,
            "invalid-request",
            "utterance.hypotheses[0].x",
        ),
        (
            {"utterance": {"id": "u1", "hypotheses": [{"text": "a " * 1001, "acoustic_score": 1}]}},
            413,
            "list-too-large",
            "utterance.hypotheses[0].text",
        ),
    ],
)
async def test_an_utterance_that_cannot_be_scored_is_refused_and_changes_nothing(
    talk: Talk, body: dict[str, Any], status: int, name: str, field: str
) -> None:
    made = await talk.make()
    response = await talk.client.post(f"{talk.path}/rescore", json=body)
    problem(response, status, name)
    (entry,) = response.json()["errors"]
    assert entry["field"] == field
    assert entry.get("utterance") == ("u1" if "utterance" in body else None)
    assert await talk.described() == made


async def test_a_total_that_is_no_number_is_refused_and_changes_nothing(talk: Talk) -> None:
    made = await talk.make(rescoring={"acoustic_scale": 1e308})
    response = await talk.say("u1", "the cat")
    problem(response, 422, "invalid-nbest")
    assert fields(response) == ["utterance.hypotheses"]
    assert await talk.described() == made


@pytest.mark.parametrize(
    ("content", "status", "name"),
    [
        (b"", 400, "not-json"),
        (b"{", 400, "not-json"),
        (b'{"text": NaN}', 422, "invalid-request"),
        (b'{"text": null}', 422, "invalid-request"),
        (b'{"text": "a\\u0000b"}', 422, "invalid-text"),
        (b'{"text": "a </s>"}', 422, "invalid-text"),
        (b'{"text": "' + b"a " * 1001 + b'"}', 413, "list-too-large"),
        (b'{"text": "a", "speaker": "b"}', 422, "invalid-request"),
    ],
)
async def test_a_transcript_that_is_none_is_refused_and_changes_nothing(
    talk: Talk, content: bytes, status: int, name: str
) -> None:
    await talk.make()
    await talk.said("u1", *LISTED)
    before = await talk.described()
    problem(await talk.client.put(f"{talk.path}/utterances/u1/transcript", content=content), status, name)
    assert await talk.described() == before


async def test_a_transcript_of_no_utterance_of_the_session_is_404(talk: Talk) -> None:
    await talk.make()
    problem(await talk.confirm("u1", "the"), 404, "unknown-utterance")
    await talk.said("u1", *LISTED)
    await talk.reset()
    problem(await talk.confirm("u1", "the"), 404, "unknown-utterance")


@pytest.mark.parametrize(
    "more",
    [{"compact": True}, {"word_scores": True}, {"log_base": "10"}, {"texts": ("the cat sat", "the cat sad")}],
    ids=lambda more: next(iter(more)),
)
async def test_another_request_of_the_same_utterance_is_409_and_changes_nothing(
    talk: Talk, more: dict[str, Any]
) -> None:
    await talk.make()
    await talk.said("u1", *LISTED)
    before = await talk.exported()
    texts = more.pop("texts", LISTED)
    response = await talk.say("u1", *texts, **more)
    problem(response, 409, "utterance-conflict")
    assert response.json()["errors"][0]["utterance"] == "u1"
    assert await talk.exported() == before


class TestVersions:
    async def ask_for_each_change(self, talk: Talk, if_match: str) -> list[httpx.Response]:
        headers = {"if-match": if_match}
        body = {"utterance": {"id": "u2", "hypotheses": [{"text": "the", "acoustic_score": -1.0}]}}
        return [
            await talk.client.post(f"{talk.path}/rescore", json=body, headers=headers),
            await talk.confirm("u1", "a mat", **headers),
            await talk.client.post(f"{talk.path}/reset", headers=headers),
            await talk.client.post(f"{talk.path}/fork", headers=headers),
            await talk.client.delete(talk.path, headers=headers),
        ]

    async def test_a_change_of_another_version_is_409_and_says_the_version(self, talk: Talk) -> None:
        await talk.make()
        tag = (await talk.say("u1", *LISTED)).headers["etag"]
        before = await talk.exported()
        for response in await self.ask_for_each_change(talk, '"0", "2"'):
            assert problem(response, 409, "version-conflict")["version"] == 1
            assert response.headers["etag"] == tag
        assert await talk.exported() == before

    @pytest.mark.parametrize(
        "if_match", ["1", '"1', "'1'", '"one"', 'W/"1"', '"01"', '"-1"', '"1" "2"', '"1",', '""', '"1-"']
    )
    async def test_a_version_that_is_none_is_400(self, talk: Talk, if_match: str) -> None:
        await talk.make()
        await talk.said("u1", *LISTED)
        before = await talk.exported()
        for response in await self.ask_for_each_change(talk, if_match):
            problem(response, 400, "invalid-precondition")
        assert await talk.exported() == before

    @pytest.mark.parametrize("if_match", ["*", '"1"', '"7", "1"'])
    async def test_a_change_of_the_right_version_is_made(self, talk: Talk, if_match: str) -> None:
        await talk.make()
        await talk.said("u1", *LISTED)
        assert (await talk.confirm("u1", "a mat", **{"if-match": if_match})).status_code == 200

    async def test_a_change_of_the_session_as_an_answer_left_it_is_made(self, talk: Talk) -> None:
        await talk.make()
        tag = (await talk.say("u1", *LISTED)).headers["etag"]
        confirmed = await talk.confirm("u1", "a mat", **{"if-match": f'"7", {tag}'})
        assert (confirmed.status_code, confirmed.json()["version"]) == (200, 2)
        problem(await talk.confirm("u1", "the mat", **{"if-match": tag}), 409, "version-conflict")

    async def test_a_tag_of_a_session_that_was_deleted_is_not_one_of_its_successor(self, talk: Talk) -> None:
        await talk.make()
        old = (await talk.say("u1", *LISTED)).headers["etag"]
        assert (await talk.client.delete(talk.path)).status_code == 204
        await talk.make()
        new = (await talk.say("u1", *LISTED)).headers["etag"]
        assert old != new
        before = await talk.exported()
        for response in await self.ask_for_each_change(talk, old):
            # Both were at version 1; the detail tells that it is not about that.
            assert problem(response, 409, "version-conflict")["detail"].startswith("the session is not the one")
            assert response.headers["etag"] == new
        body = {"utterance": {"id": "u1", "hypotheses": [{"text": "the", "acoustic_score": -1.0}]}}
        repeated = await talk.client.post(f"{talk.path}/rescore", json=body, headers={"if-match": old})
        problem(repeated, 409, "version-conflict")
        assert await talk.exported() == before
        assert (await talk.confirm("u1", "a mat", **{"if-match": new})).status_code == 200

    async def test_a_fork_and_an_import_are_other_sessions(self, talk: Talk) -> None:
        await talk.make()
        tag = (await talk.say("u1", *LISTED)).headers["etag"]
        fork = await talk.fork("fork")
        problem(await fork.confirm("u1", "a mat", **{"if-match": tag}), 409, "version-conflict")
        assert (await talk.client.get(talk.path)).headers["etag"] == tag

    async def test_what_was_done_already_is_answered_whatever_the_version(self, talk: Talk) -> None:
        await talk.make()
        body = {"utterance": {"id": "u1", "hypotheses": [{"text": "the", "acoustic_score": -1.0}]}}
        for repeated in (False, True):
            response = await talk.client.post(f"{talk.path}/rescore", json=body, headers={"if-match": '"0"'})
            assert (response.json()["version"], response.json()["repeated"]) == (1, repeated)
        for _ in range(2):
            assert (await talk.confirm("u1", "a mat", **{"if-match": '"1"'})).json()["version"] == 2


class TestFull:
    async def test_one_session_too_many_is_429_and_there_is_room_again_after_a_deletion(
        self, serve: Serve, talks: type[Talk]
    ) -> None:
        async with serve(limits=Limits(max_sessions=2)) as client:
            one, two = talks(client, "one"), talks(client, "two")
            await one.make()
            await one.said("u1", *LISTED)
            await two.make()
            for response in (
                await client.post("/v1/sessions"),
                await client.post("/v1/sessions", json={"id": "three"}),
                await client.post(f"{one.path}/fork"),
                await client.post("/v1/sessions/import", content=await one.exported()),
            ):
                problem(response, 429, "too-many-sessions")
                assert int(response.headers["retry-after"]) >= 1
            problem(await client.post("/v1/sessions", json={"id": "one"}), 409, "session-exists")
            assert (await one.said("u2", *LISTED))["version"] == 2
            await client.delete(two.path)
            assert (await client.post("/v1/sessions")).status_code == 201

    async def test_a_log_that_is_full_takes_no_more_and_loses_nothing(self, serve: Serve, talks: type[Talk]) -> None:
        async with serve(limits=Limits(session_log_bytes=3000)) as client:
            talk = talks(client, "talk")
            await talk.make()
            taken = 0
            while (response := await talk.say(f"u{taken}", *LISTED)).status_code == 200:
                taken += 1
                assert taken < 20
            problem(response, 409, "session-full")
            assert taken > 1
            assert (await talk.described())["utterances"] == taken
            assert (await talk.said("u0", *LISTED))["repeated"]
            await talk.confirmed("u0", "the mat")
            await talk.reset()
            await talk.said("u0", *LISTED)


async def test_what_is_sent_as_a_form_is_refused(talk: Talk) -> None:
    await talk.make()
    before = await talk.described()
    headers = {"content-type": "application/x-www-form-urlencoded"}
    for response in (
        await talk.client.post("/v1/sessions", headers=headers),
        await talk.client.post("/v1/sessions/import", headers=headers),
        await talk.client.post(f"{talk.path}/rescore", headers=headers),
        await talk.client.post(f"{talk.path}/reset", headers=headers),
        await talk.client.post(f"{talk.path}/fork", headers=headers),
    ):
        problem(response, 415, "unsupported-media-type")
    assert await talk.described() == before


async def test_the_api_key_guards_sessions_too(serve: Serve) -> None:
    async with serve(api_key="correct horse") as client:
        problem(await client.post("/v1/sessions"), 401, "unauthorised")
        problem(await client.get("/v1/sessions/talk"), 401, "unauthorised")
