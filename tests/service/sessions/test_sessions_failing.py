"""What fails or ends early in a session leaves it as it was, or wholly changed; nothing is lost."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from models.bundle import Bundle
from models.errors import ModelFailedError
from service.settings import Limits

pytestmark = pytest.mark.anyio

Gate = Any
Talk = Any
Serve = Callable[..., Any]
Reference = Any
LISTED = ("the cat sad", "the cat sat")
OTHERS = ("on the mat", "on a mat")
SAY = {"utterance": {"id": "u2", "hypotheses": [{"text": "a mat", "acoustic_score": -1.0}]}}


def at_once(*requests: Any) -> "list[asyncio.Task[httpx.Response]]":
    return [asyncio.ensure_future(request) for request in requests]


@pytest.mark.parametrize("error", [RuntimeError("x"), ModelFailedError("x"), MemoryError(), SystemExit()])
async def test_a_model_that_fails_leaves_the_session_as_it_was(gate: Gate, talk: Talk, error: BaseException) -> None:
    await talk.make()
    await talk.said("u1", *LISTED)
    before = await talk.exported()
    gate.scoring_fails = error
    refused = await talk.say("u2", *OTHERS)
    assert (refused.status_code, refused.json()["type"]) == (503, "/problems/model-failed")
    assert int(refused.headers["retry-after"]) >= 1
    gate.scoring_fails = None
    assert await talk.exported() == before
    assert (await talk.said("u2", *OTHERS))["version"] == 2


@pytest.mark.parametrize("error", [RuntimeError("x"), MemoryError(), SystemExit()])
async def test_a_lesson_that_fails_does_not_lose_the_answer_and_is_learnt_when_it_can_be(
    gate: Gate, talk: Talk, reference: Callable[..., Reference], error: BaseException
) -> None:
    await talk.make()
    first = await talk.said("u1", *LISTED)
    gate.lesson_fails = error
    second = await talk.said("u2", *OTHERS)
    assert second["lesson"] == {"learnt": False, "words": 0, "undone": True}
    assert (await talk.said("u2", *OTHERS))["repeated"]
    waiting = await talk.client.get(talk.path)
    assert (waiting.status_code, waiting.json()["type"]) == (503, "/problems/model-failed")
    gate.lesson_fails = None
    texts = [(answer["result"]["best_text"], False) for answer in (first, second)]
    assert reference().bits_of(await talk.exported()) == reference().bits(*texts)


async def test_a_text_that_the_models_refuse_is_passed_over_as_a_lesson_undone(
    gate: Gate, serve: Serve, talks: type[Talk], bundle: Bundle
) -> None:
    # Nothing stays in memory here, so each step also shows that the log leads to the same state again.
    async with serve(limits=Limits(session_memory_bytes=1)) as client:
        talk = talks(client, "talk")
        await talk.make()
        await talk.said("u1", *LISTED)
        before = await talk.described()
        gate.lesson_fails, gate.only_of = ModelFailedError("no number"), bundle.rescorer.vocabulary.ids(["mat"])
        answer = await talk.said("u2", "mat")
        assert answer["lesson"] == {"learnt": False, "words": 0, "undone": True}
        after = await talk.described()
        changed = {name for name in after if after[name] != before[name]} - {"used"}
        assert changed == {"version", "utterances", "lessons_undone"}


async def test_a_correction_that_cannot_be_learnt_leaves_the_session_as_it_was(gate: Gate, talk: Talk) -> None:
    await talk.make()
    await talk.said("u1", *LISTED)
    before = await talk.exported()
    gate.lesson_fails = RuntimeError("x")
    assert (await talk.confirm("u1", "the mat")).status_code == 503
    gate.lesson_fails = None
    assert await talk.exported() == before


async def test_a_full_queue_leaves_the_session_as_it_was(gated: Any, gate: Gate) -> None:
    async with gated("held", "waits", "late", limits=Limits(max_queue_lists=1)) as (held, waits, late):
        waiting = at_once(held.say("u1", *LISTED))
        await gate.has_seen(1)
        waiting += at_once(waits.say("u1", *LISTED))
        await gate.queued(held.client, 1)
        refused = await late.say("u1", *LISTED)
        assert (refused.status_code, refused.json()["type"]) == (429, "/problems/queue-full")
        assert (await late.described())["version"] == 0
        gate.open.set()
        await asyncio.gather(*waiting)
        assert (await late.said("u1", *LISTED))["version"] == 1


async def test_a_deadline_leaves_the_session_as_it_was(gated: Any, gate: Gate) -> None:
    async with gated("one", "two", limits=Limits(deadline_s=0.3)) as (one, two):
        waiting = at_once(one.say("u1", *LISTED))
        await gate.has_seen(1)
        waiting += at_once(one.say("u2", *LISTED), two.say("u1", *LISTED))
        slow, turn, queue = await asyncio.gather(*waiting)
        assert (slow.status_code, slow.json()["type"]) == (504, "/problems/scoring-too-slow")
        for response in (turn, queue):
            assert (response.status_code, response.json()["type"]) == (503, "/problems/waited-too-long")
            assert int(response.headers["retry-after"]) >= 1
        gate.open.set()
        for talk in (one, two):
            assert (await talk.described())["version"] == 0
            assert (await talk.said("u1", *LISTED))["version"] == 1


@pytest.mark.parametrize(
    ("failing", "method", "path", "body"),
    [
        ("record", "POST", "/rescore", SAY),
        ("entry", "POST", "/rescore", SAY),
        ("entries", "POST", "/rescore", SAY),
        ("snapshot", "POST", "/rescore", SAY),
        ("append", "POST", "/rescore", SAY),
        ("entries", "PUT", "/utterances/u1/transcript", {"text": "the mat"}),
        ("confirm", "PUT", "/utterances/u1/transcript", {"text": "the mat"}),
        ("reset", "POST", "/reset", {}),
        ("entries", "POST", "/fork", {"id": "other"}),
        ("create", "POST", "/fork", {"id": "other"}),
        ("count", "POST", "/fork", {"id": "other"}),
        ("record", "GET", "", None),
        ("entries", "GET", "/export", None),
        ("delete", "DELETE", "", None),
    ],
)
async def test_a_store_that_fails_is_503_and_nothing_is_lost(
    serve: Serve, store: Any, talks: type[Talk], failing: str, method: str, path: str, body: Any
) -> None:
    # With nothing left in memory, every request also has to read.
    async with serve(limits=Limits(session_memory_bytes=1), store=store) as client:
        talk = talks(client, "talk")
        await talk.make()
        await talk.said("u1", *LISTED)
        before = await talk.exported()
        store.down = {failing}
        response = await client.request(method, f"{talk.path}{path}", json=body)
        assert (response.status_code, response.json()["type"]) == (503, "/problems/session-store-unavailable")
        assert int(response.headers["retry-after"]) >= 1
        store.down = set()
        assert (await client.get("/v1/sessions/other")).status_code == 404
        assert await talk.exported() == before
        assert (await client.request(method, f"{talk.path}{path}", json=body)).is_success


@pytest.mark.parametrize("failing", ["touch", "save_snapshot", "expire"])
async def test_what_only_saves_time_may_fail(
    serve: Serve, store: Any, talks: type[Talk], clock: Any, failing: str
) -> None:
    store.down = {failing}
    limits = Limits(session_memory_bytes=1, session_snapshot_every=1, session_idle_s=100)
    async with serve(limits=limits, store=store, clock=clock) as client:
        talk = talks(client, "talk")
        await talk.make()
        for number in range(4):
            await talk.said(f"u{number}", *LISTED)
            clock.now += 50
        assert (await talk.described())["utterances"] == 4


async def test_whoever_leaves_leaves_an_utterance_wholly_accepted_or_not_at_all(
    serve: Serve, talks: type[Talk], store: Any, reference: Callable[..., Reference]
) -> None:
    async with serve(store=store) as client:
        talk = talks(client, "talk")
        await talk.make()
        accepted: list[tuple[str, bool]] = []
        loop, whole_s = asyncio.get_running_loop(), 0.0
        for number in range(24):
            begun = loop.time()
            task = asyncio.ensure_future(talk.say(f"u{number}", *(LISTED if number % 3 else OTHERS)))
            if number == 0:
                # One is let finish, so that it is known how long one takes here.
                await task
                whole_s = loop.time() - begun
            for _ in range(number):
                await asyncio.sleep(0)
            if number % 2:
                await asyncio.sleep(2 * whole_s * number / 24)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            described = await talk.described()
            if described["utterances"] > len(accepted):
                entry = store.entries("talk", len(accepted))[0]
                assert entry.utterance_id == f"u{number}"
                accepted.append((" ".join(entry.words), False))
            assert described["utterances"] == described["version"] == len(accepted)
        assert 1 < len(accepted) < 24
        assert reference().bits_of(await talk.exported()) == reference().bits(*accepted)
