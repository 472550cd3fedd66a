"""An evaluation as a good neighbour: bounded in queue and memory, and ended when its caller or the service goes."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from models.bundle import Bundle
from models.scored_lists import PreparedList
from service import evaluation_events
from service.middleware import NDJSON
from service.settings import Limits

pytestmark = pytest.mark.anyio

PATIENCE_S = 30
Watched = Callable[..., Bundle]


def line(number: int, **more: Any) -> bytes:
    texts = ("the cat sat", "the cat sad", "the mat")
    utterance = {
        "id": f"u{number}",
        "hypotheses": [{"text": text, "acoustic_score": -1.0 - i} for i, text in enumerate(texts)],
        "reference": texts[number % 3],
        **more,
    }
    return json.dumps(utterance).encode() + b"\n"


class Stream:
    """A caller of the app that sends its body as the test says, and keeps what it is sent."""

    def __init__(self, app: FastAPI, content_type: str = NDJSON) -> None:
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.taken = 0
        self.status: int | None = None
        self.received = b""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/evaluate",
            "raw_path": b"/v1/evaluate",
            "query_string": b"",
            "scheme": "http",
            "headers": [(b"content-type", content_type.encode()), (b"transfer-encoding", b"chunked")],
            "client": ("1.2.3.4", 1),
            "server": ("service", 80),
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._take))

    async def _receive(self) -> dict[str, Any]:
        message = await self._inbox.get()
        self.taken += 1
        return message

    async def _take(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.received += message.get("body", b"")

    def send(self, content: bytes, *, more: bool = True) -> None:
        self._inbox.put_nowait({"type": "http.request", "body": content, "more_body": more})

    def leave(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.received.splitlines()]

    async def last(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            await self.task
        return self.events[-1]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - what is waited for happens elsewhere
            await asyncio.sleep(0.001)


class Gate:
    """Holds the scoring thread while it is shut, and notes how many lists a step has, and how many wait meanwhile."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.steps: list[int] = []
        self.waiting: list[int] = []
        self.look: Callable[[], int] = lambda: 0

    def __call__(self, lists: Sequence[PreparedList]) -> None:
        self.steps.append(len(lists))
        self.waiting.append(self.look())
        assert self.open.wait(PATIENCE_S)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def served(gate: Gate, watched: Watched, make_app: Callable[..., FastAPI]) -> Any:
    """A context manager: the app while it runs, and a client of it."""

    @asynccontextmanager
    async def start(limits: Limits | None = None) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
        app = make_app(watched(gate), limits)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client,
        ):
            assert (await client.get("/health/ready")).status_code == 200
            try:
                yield app, client
            finally:
                gate.open.set()

    return start


async def metric(client: httpx.AsyncClient, name: str) -> float:
    text = (await client.get("/metrics")).text
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} "))


@pytest.mark.slow
async def test_three_thousand_utterances_pass_with_few_of_them_in_the_queue(served: Any, gate: Gate) -> None:
    async with served(Limits(evaluation_lists=8)) as (app, client):
        registry = app.state.routes._telemetry.registry
        gate.look = lambda: int(registry.get_sample_value("nbest_queue_lists"))
        stream = Stream(app)
        stream.send(b'{"resamples": 100}\n')
        for begin in range(0, 3000, 100):
            stream.send(b"".join(line(number) for number in range(begin, begin + 100)), more=begin < 2900)
        result = await stream.last()
        assert await metric(client, "nbest_evaluated_utterances_total") == 3000
    assert (result["event"], result["utterances"]) == ("result", 3000)
    assert 2 < max(gate.steps) <= 8
    assert 2 < max(step + waiting for step, waiting in zip(gate.steps, gate.waiting, strict=True)) <= 8


async def test_reading_pauses_while_nothing_is_scored(served: Any, gate: Gate) -> None:
    async with served(Limits(evaluation_lists=4)) as (app, client):
        gate.open.clear()
        stream = Stream(app)
        stream.send(b'{"resamples": 100}\n')
        for number in range(200):
            stream.send(line(number), more=number < 199)
        await until(lambda: stream.taken >= 5)
        for _ in range(5):
            assert (await client.get("/health/live")).status_code == 200
            await asyncio.sleep(0.02)
        # Settings, four lists in the queue or in the step, and the one that there is no room for.
        assert stream.taken == 6
        gate.open.set()
        assert (await stream.last())["utterances"] == 200


async def test_long_lists_are_let_in_by_their_words_and_not_by_their_number(served: Any, gate: Gate) -> None:
    # Each list holds ten hypotheses of three words and sentence end: 40. Two fit into 100.
    hypotheses = [{"text": "the cat sat", "acoustic_score": 0.0}] * 10
    async with served(Limits(max_batch_tokens=100)) as (app, _):
        gate.open.clear()
        stream = Stream(app)
        stream.send(b'{"resamples": 100}\n')
        for number in range(20):
            stream.send(line(number, hypotheses=hypotheses), more=number < 19)
        await until(lambda: stream.taken >= 4)
        await asyncio.sleep(0.1)
        assert stream.taken == 4
        gate.open.set()
        assert (await stream.last())["utterances"] == 20


async def test_others_are_answered_while_an_evaluation_runs(served: Any, ask: Callable[..., Any]) -> None:
    async with served() as (app, client):
        stream = Stream(app)
        stream.send(b'{"resamples": 100}\n')
        for number in range(500):
            stream.send(line(number))
        for _ in range(20):
            assert (await client.post("/v1/rescore", json=ask("the cat", "the mat"))).status_code == 200
        assert not stream.task.done()
        stream.send(line(500), more=False)
        assert (await stream.last())["utterances"] == 501


@pytest.mark.slow
async def test_no_room_in_the_queue_is_waited_for(served: Any, gate: Gate, ask: Callable[..., Any]) -> None:
    async with served(Limits(max_queue_lists=1)) as (app, client):
        gate.open.clear()
        steps = len(gate.steps)
        running = asyncio.create_task(client.post("/v1/rescore", json=ask("the")))
        await until(lambda: len(gate.steps) > steps)
        waiting = asyncio.create_task(client.post("/v1/rescore", json=ask("the")))
        await asyncio.sleep(0.05)
        stream = Stream(app)
        stream.send(b'{"resamples": 100}\n' + line(1) + line(2), more=False)
        await asyncio.sleep(0.2)
        assert not stream.task.done()
        gate.open.set()
        assert (await stream.last())["utterances"] == 2
        assert {answer.status_code for answer in await asyncio.gather(running, waiting)} == {200}


async def test_patience_with_a_full_queue_ends(served: Any, gate: Gate, ask: Callable[..., Any]) -> None:
    async with served(Limits(max_queue_lists=1, evaluation_patience_s=0.2)) as (app, client):
        gate.open.clear()
        steps = len(gate.steps)
        others = [asyncio.create_task(client.post("/v1/rescore", json=ask("the")))]
        await until(lambda: len(gate.steps) > steps)
        others.append(asyncio.create_task(client.post("/v1/rescore", json=ask("the"))))
        await asyncio.sleep(0.05)
        stream = Stream(app)
        stream.send(b"{}\n" + line(1), more=False)
        error = await stream.last()
        gate.open.set()
        await asyncio.gather(*others)
    assert (stream.status, error["event"], error["type"]) == (200, "error", "/problems/queue-full")


@pytest.mark.parametrize("complete", [False, True], ids=["while it sends", "while it waits"])
async def test_a_caller_who_leaves_ends_the_evaluation(served: Any, gate: Gate, complete: bool) -> None:
    async with served(Limits(max_evaluations=1)) as (app, client):
        gate.open.clear()
        stream = Stream(app)
        stream.send(b"{}\n" + line(1), more=not complete)
        await until(lambda: stream.status == 200)
        stream.leave()
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(Exception):
                await stream.task
        # What waited is out of the queue, and there is room for another evaluation.
        assert await metric(client, "nbest_evaluations_running") == 0
        assert await metric(client, 'nbest_evaluations_total{outcome="stopped"}') == 1
        gate.open.set()
        again = Stream(app)
        again.send(b'{"resamples": 100}\n' + line(1), more=False)
        assert (await again.last())["event"] == "result"


async def test_no_more_evaluations_run_than_may(served: Any) -> None:
    async with served(Limits(max_evaluations=2)) as (app, _):
        running = [Stream(app), Stream(app)]
        for stream in running:
            stream.send(b'{"resamples": 100}\n' + line(1))
        await until(lambda: all(stream.status == 200 for stream in running))
        for third in (Stream(app), Stream(app, "application/json")):
            third.send(b'{"utterances": [' + line(1) + b"]}", more=False)
            assert (await third.last())["type"] == "/problems/too-many-evaluations"
            assert third.status == 429
        for stream in running:
            stream.send(b"", more=False)
            assert (await stream.last())["event"] == "result"
        fourth = Stream(app)
        fourth.send(b'{"resamples": 100}\n' + line(1), more=False)
        assert (await fourth.last())["event"] == "result"


@pytest.mark.slow
async def test_a_line_that_does_not_arrive_in_time_ends_the_evaluation(served: Any) -> None:
    async with served(Limits(receive_timeout_s=0.2)) as (app, _):
        stream = Stream(app)
        stream.send(b"{}\n" + line(1) + b'{"id"')
        error = await stream.last()
    assert (error["event"], error["type"]) == ("error", "/problems/slow-request")
    assert "line 3" in error["detail"]


async def test_a_set_may_take_longer_than_any_of_its_lines(served: Any) -> None:
    async with served(Limits(receive_timeout_s=0.4)) as (app, _):
        stream = Stream(app)
        stream.send(b'{"resamples": 100}\n')
        for number in range(4):
            stream.send(line(number))
            await asyncio.sleep(0.15)
        stream.send(b"", more=False)
        assert (await stream.last())["utterances"] == 4


@pytest.mark.slow
async def test_a_set_that_is_still_being_sent_ends_with_an_event_when_the_service_stops(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_events, "PROGRESS_S", 0.01)
    async with served() as (app, _):
        stream = Stream(app)
        stream.send(b"{}\n" + line(1))
        await until(lambda: len(stream.events) > 0)
        app.state.routes.draining = True
        error = await stream.last()
    assert (error["event"], error["type"]) == ("error", "/problems/not-ready")


async def test_a_set_that_has_been_sent_is_finished_when_the_service_stops(
    served: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_events, "PROGRESS_S", 0.01)
    async with served() as (app, _):
        gate.open.clear()
        stream = Stream(app)
        stream.send(b'{"resamples": 100}\n' + line(1), more=False)
        await until(lambda: len(stream.events) > 0)
        app.state.routes.draining = True
        before = len(stream.events)
        await until(lambda: len(stream.events) > before)
        gate.open.set()
        assert (await stream.last())["event"] == "result"


async def test_a_service_that_ends_at_once_says_so_in_an_event(served: Any, gate: Gate) -> None:
    async with served() as (app, _):
        gate.open.clear()
        stream = Stream(app)
        stream.send(b"{}\n" + line(1), more=False)
        await until(lambda: stream.status == 200)
        stream.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stream.task
        assert stream.events[-1]["type"] == "/problems/not-ready"
        gate.open.set()


async def test_a_model_that_fails_is_an_error_event(watched: Watched, make_app: Callable[..., FastAPI]) -> None:
    def fail(lists: Sequence[PreparedList]) -> None:
        if any(prepared.nbest.utterance_id == "u2" for prepared in lists):
            raise RuntimeError("secret")

    app = make_app(watched(fail))
    async with app.router.lifespan_context(app):
        stream = Stream(app)
        stream.send(b"{}\n" + line(1) + line(2) + line(3), more=False)
        error = await stream.last()
    assert (error["event"], error["type"]) == ("error", "/problems/model-failed")
    assert b"secret" not in stream.received
