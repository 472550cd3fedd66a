"""The queue under load: who is scored with whom, who is turned away, whom a failure reaches."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from models.bundle import Bundle
from models.nbest import Hypothesis, NBest
from models.scored_lists import PreparedList
from service.batching import Batcher
from service.cost_model import Load
from service.errors import QueueFullError
from service.jobs import Job, Results
from service.settings import Limits
from service.telemetry import Telemetry, make_log
from service.timing import Timing

pytestmark = pytest.mark.anyio

Ask = Callable[..., dict[str, Any]]
Scoring = asyncio.Task[list[Results]]
PATIENCE_S = 20


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():  # noqa: ASYNC110 - what is waited for happens on another thread
            await asyncio.sleep(0.001)


class Gate:
    """Holds the scoring thread while it is shut, and notes which lists came through together."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.seen: list[list[str]] = []
        self.fail: Callable[[list[str]], BaseException | None] = lambda _: None

    def __call__(self, lists: Sequence[PreparedList]) -> None:
        names = [prepared.nbest.utterance_id for prepared in lists]
        self.seen.append(names)
        assert self.open.wait(PATIENCE_S)
        error = self.fail(names)
        if error is not None:
            raise error

    async def has_seen(self, name: str) -> None:
        async def seen() -> bool:
            return any(name in names for names in self.seen)

        await until(seen)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def gated(gate: Gate, watched: Callable[..., Bundle], serve: Callable[..., Any]) -> Any:
    """A context manager: a service that is ready, and whose scoring thread is held by the request "first"."""

    @asynccontextmanager
    async def start(
        ask: Ask, limits: Limits | None = None, *, held: bool = True
    ) -> AsyncIterator[tuple[httpx.AsyncClient, "asyncio.Task[httpx.Response]"]]:
        async with serve(watched(gate), limits) as client:
            assert (await client.get("/health/ready")).status_code == 200
            if held:
                gate.open.clear()
            first = asyncio.create_task(client.post("/v1/rescore", json=ask("the", name="first")))
            await gate.has_seen("first")
            try:
                yield client, first
            finally:
                gate.open.set()
                await asyncio.gather(first, return_exceptions=True)

    return start


def posts(client: httpx.AsyncClient, *requests: dict[str, Any]) -> "list[asyncio.Task[httpx.Response]]":
    return [asyncio.create_task(client.post("/v1/rescore", json=request)) for request in requests]


async def queued(client: httpx.AsyncClient, lists: int) -> None:
    async def waiting() -> bool:
        return f"nbest_queue_lists {float(lists)}" in (await client.get("/metrics")).text

    await until(waiting)


async def readiness(client: httpx.AsyncClient, status: int) -> None:
    async def answers() -> bool:
        return (await client.get("/health/ready")).status_code == status

    await until(answers)


async def test_other_routes_answer_while_a_step_runs(gated: Any, ask: Ask) -> None:
    async with gated(ask) as (client, first):
        for path in ("/health/live", "/health/ready", "/v1/models", "/metrics"):
            assert (await client.get(path)).status_code == 200
        assert not first.done()


async def test_what_waits_is_scored_together(gated: Any, gate: Gate, ask: Ask) -> None:
    async with gated(ask) as (client, _):
        waiting = posts(client, *(ask("the cat", name=f"w{i}") for i in range(5)))
        await queued(client, 5)
        gate.open.set()
        assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}
    assert sorted(gate.seen[-1]) == [f"w{i}" for i in range(5)]


async def test_nothing_waits_for_company(gated: Any, gate: Gate, ask: Ask) -> None:
    async with gated(ask, held=False) as (client, first):
        assert (await first).status_code == 200
        assert (await client.post("/v1/rescore", json=ask("the", name="lone"))).status_code == 200
    assert gate.seen[-1] == ["lone"]


async def test_a_step_stays_within_its_budget_of_padded_tokens(gated: Any, gate: Gate, ask: Ask) -> None:
    # Each list is one hypothesis of two words and </s>: three fit into ten tokens, padding counted.
    async with gated(ask, Limits(max_batch_tokens=10)) as (client, _):
        waiting = posts(client, *(ask("the cat", name=f"w{i}") for i in range(7)))
        await queued(client, 7)
        gate.open.set()
        await asyncio.gather(*waiting)
    assert [len(names) for names in gate.seen[-3:]] == [3, 3, 1]


async def test_a_list_larger_than_the_budget_is_scored_alone(gated: Any, gate: Gate, ask: Ask) -> None:
    async with gated(ask, Limits(max_batch_tokens=4)) as (client, _):
        waiting = posts(client, ask(*["the cat sat"] * 9, name="large"), ask("the", name="small"))
        await queued(client, 2)
        gate.open.set()
        assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}
    assert gate.seen[-2:] == [["large"], ["small"]]


async def test_each_caller_gets_the_weights_it_asked_for_in_a_shared_step(gated: Any, gate: Gate, ask: Ask) -> None:
    scales = [0, 1, 5, 25]
    async with gated(ask) as (client, _):
        waiting = posts(client, *(ask("the cat", name=f"w{s}", options={"lm_scale": s}) for s in scales))
        await queued(client, len(scales))
        gate.open.set()
        answers = [answer.json() for answer in await asyncio.gather(*waiting)]
    for scale, answer in zip(scales, answers, strict=True):
        (entry,) = answer["results"][0]["ranking"]
        assert answer["weights"]["lm_scale"] == scale
        assert entry["contributions"]["lm"] == pytest.approx(scale * entry["lm"])


@pytest.fixture(autouse=True)
async def opens_by_itself(gate: Gate) -> AsyncIterator[None]:
    """No test hangs for longer than its patience, whatever it forgets."""
    task = asyncio.create_task(_open_late(gate))
    yield
    task.cancel()


async def _open_late(gate: Gate) -> None:
    await asyncio.sleep(PATIENCE_S / 2)
    gate.open.set()


async def test_an_answer_does_not_tell_which_models_others_asked_for(gated: Any, gate: Gate, ask: Ask) -> None:
    narrow = ask("the cat", name="narrow", options={"interpolation": {"ngram": 1}})
    async with gated(ask) as (client, _):
        waiting = posts(client, narrow, ask("the cat", name="wide"))
        await queued(client, 2)
        gate.open.set()
        answers = await asyncio.gather(*waiting)
    seen = [set(answer.json()["results"][0]["ranking"][0]["lm_by_model"]) for answer in answers]
    assert seen == [{"ngram"}, {"ngram", "rnn"}]


async def test_a_request_that_carries_state_is_one_unit_of_work(gated: Any, gate: Gate, ask: Ask) -> None:
    carried = {
        "utterances": [ask("the cat", name=name)["utterances"][0] for name in ("c1", "c2")],
        "options": {"state": "carried"},
    }
    async with gated(ask) as (client, _):
        waiting = posts(client, ask("the", name="other"), carried, ask("the", name="third"))
        await queued(client, 3)
        gate.open.set()
        assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}
    assert gate.seen[-2:] == [["other", "third"], ["c1", "c2"]]


async def test_a_full_queue_turns_callers_away_and_says_when_to_come_back(gated: Any, gate: Gate, ask: Ask) -> None:
    async with gated(ask, Limits(max_queue_lists=2)) as (client, first):
        waiting = posts(client, *(ask("the", name=f"w{i}") for i in range(2)))
        await queued(client, 2)
        refused = await client.post("/v1/rescore", json=ask("the", name="third"))
        assert (refused.status_code, refused.json()["type"]) == (429, "/problems/queue-full")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        gate.open.set()
        assert {answer.status_code for answer in await asyncio.gather(first, *waiting)} == {200}
        assert (await client.post("/v1/rescore", json=ask("the", name="third"))).status_code == 200


async def test_a_queue_is_full_by_tokens_too(gated: Any, gate: Gate, ask: Ask) -> None:
    async with gated(ask, Limits(max_queue_tokens=8)) as (client, _):
        waiting = posts(client, ask("the cat sat on the mat", name="seven"))
        await queued(client, 1)
        assert (await client.post("/v1/rescore", json=ask("the", name="two"))).status_code == 429
        gate.open.set()
        await asyncio.gather(*waiting)


async def test_a_request_is_admitted_as_a_whole_or_not_at_all(gated: Any, gate: Gate, ask: Ask) -> None:
    three = {"utterances": [ask("the", name=f"t{i}")["utterances"][0] for i in range(3)]}
    async with gated(ask, Limits(max_queue_lists=3)) as (client, _):
        waiting = posts(client, ask("the", name="one"))
        await queued(client, 1)
        assert (await client.post("/v1/rescore", json=three)).status_code == 429
        await queued(client, 1)
        gate.open.set()
        await asyncio.gather(*waiting)


async def test_whoever_waits_past_the_deadline_is_told_and_never_scored(gated: Any, gate: Gate, ask: Ask) -> None:
    async with gated(ask, Limits(deadline_s=0.3)) as (client, first):
        late = await client.post("/v1/rescore", json=ask("the", name="late"))
        assert (late.status_code, late.json()["type"]) == (503, "/problems/waited-too-long")
        assert int(late.headers["retry-after"]) >= 1
        slow = await first
        assert (slow.status_code, slow.json()["type"]) == (504, "/problems/scoring-too-slow")
        gate.open.set()
        assert (await client.post("/v1/rescore", json=ask("the", name="next"))).status_code == 200
    assert ["late"] not in gate.seen


async def test_readiness_ends_while_a_step_outlasts_the_deadline(gated: Any, gate: Gate, ask: Ask) -> None:
    async with gated(ask, Limits(deadline_s=0.2)) as (client, first):
        assert (await first).status_code == 504
        await readiness(client, 503)
        assert (await client.get("/health/live")).status_code == 200
        gate.open.set()
        await readiness(client, 200)


@pytest.mark.parametrize("kind", [RuntimeError, MemoryError, SystemExit])
async def test_a_model_failure_reaches_exactly_its_caller_and_the_worker_lives_on(
    gated: Any, gate: Gate, ask: Ask, kind: type[BaseException]
) -> None:
    gate.fail = lambda names: kind("secret") if "poison" in names else None
    async with gated(ask) as (client, first):
        poison, *others = posts(client, *(ask("the", name=name) for name in ("poison", "a", "b")))
        await queued(client, 3)
        gate.open.set()
        refused = await poison
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/model-failed")
        assert "retry-after" in refused.headers
        assert "secret" not in refused.text
        assert {answer.status_code for answer in await asyncio.gather(first, *others)} == {200}
        assert (await client.post("/v1/rescore", json=ask("the", name="next"))).status_code == 200


async def test_a_list_that_fails_alone_refuses_its_own_request_only(gated: Any, gate: Gate, ask: Ask) -> None:
    huge = ask("the", name="huge", options={"acoustic_scale": 1e308})
    huge["utterances"][0]["hypotheses"][0]["acoustic_score"] = -1e308
    async with gated(ask) as (client, _):
        bad, good = posts(client, huge, ask("the", name="good"))
        await queued(client, 2)
        gate.open.set()
        assert ((await bad).status_code, (await good).status_code) == (422, 200)
    assert gate.seen[-1] == ["huge", "good"]


async def test_readiness_follows_the_last_step_and_comes_back_with_the_model(gated: Any, gate: Gate, ask: Ask) -> None:
    async with gated(ask, held=False) as (client, _):
        gate.fail = lambda _: RuntimeError("broken")
        assert (await client.post("/v1/rescore", json=ask("the"))).status_code == 503
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()["type"]) == (503, "/problems/not-ready")
        assert (await client.get("/health/live")).status_code == 200
        gate.fail = lambda _: None
        assert (await client.get("/health/ready")).status_code == 200


async def test_ready_only_after_a_real_sentence_was_scored_under_every_model(
    gate: Gate, watched: Callable[..., Bundle], serve: Callable[..., Any]
) -> None:
    gate.open.clear()
    async with serve(watched(gate)) as client:
        asking = asyncio.create_task(client.get("/health/ready"))
        await gate.has_seen("readiness")
        assert (await client.get("/health/live")).status_code == 200
        assert not asking.done()
        gate.open.set()
        assert (await asking).status_code == 200
    assert gate.seen == [["readiness"]]


async def test_fifty_callers_at_once_get_their_own_answers(gated: Any, ask: Ask) -> None:
    texts = ["the cat", "sat on the mat", "sad", "", "zebra the"]
    async with gated(ask, held=False) as (client, _):
        alone = {text: await client.post("/v1/rescore", json=ask(text)) for text in texts}
        answers = await asyncio.gather(*posts(client, *(ask(text) for text in texts * 10)))
    for text, answer in zip(texts * 10, answers, strict=True):
        (entry,), (expected,) = (a.json()["results"][0]["ranking"] for a in (answer, alone[text]))
        assert entry["text"] == text
        assert entry["total"] == pytest.approx(expected["total"], rel=1e-6)


class TestWithoutHTTP:
    """The queue by itself."""

    @pytest.fixture
    async def batcher(self, gate: Gate, watched: Callable[..., Bundle], log_lines: Any) -> AsyncIterator[Batcher]:
        queue = Batcher(watched(gate).rescorer, Limits(), Telemetry(make_log(log_lines)))
        queue.start()
        yield queue
        gate.open.set()
        queue.stop()

    @pytest.fixture
    def job(self, bundle: Bundle) -> Callable[[str], Job]:
        def make(name: str) -> Job:
            prepared = bundle.rescorer.prepare(NBest(name, (Hypothesis("the cat", -1.0),)))
            return Job((prepared,), bundle.weights)

        return make

    @pytest.fixture
    async def first(self, batcher: Batcher, gate: Gate, job: Callable[[str], Job]) -> Scoring:
        """The scoring of a job that holds the thread until the gate is opened."""
        gate.open.clear()
        scoring = asyncio.create_task(batcher.score([job("first")], asyncio.get_running_loop().time() + PATIENCE_S))
        await gate.has_seen("first")
        return scoring

    async def test_a_job_whose_caller_left_is_not_scored(
        self, batcher: Batcher, gate: Gate, job: Callable[[str], Job], first: Scoring
    ) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        leaver = asyncio.create_task(batcher.score([job("gone")], deadline))
        stayer = asyncio.create_task(batcher.score([job("stays")], deadline))
        await asyncio.sleep(0)
        leaver.cancel()
        await asyncio.gather(leaver, return_exceptions=True)
        gate.open.set()
        await asyncio.gather(first, stayer)
        assert gate.seen == [["first"], ["stays"]]

    async def test_the_thread_takes_what_waits_itself_and_does_not_wait_for_the_event_loop(
        self, batcher: Batcher, gate: Gate, job: Callable[[str], Job], first: Scoring
    ) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        second = asyncio.create_task(batcher.score([job("second")], deadline))
        await asyncio.sleep(0)
        gate.open.set()
        begun = time.monotonic()
        while gate.seen[-1] != ["second"] and time.monotonic() < begun + PATIENCE_S:
            time.sleep(0.001)  # noqa: ASYNC251 - the event loop is held up on purpose
        assert gate.seen == [["first"], ["second"]]
        await asyncio.gather(first, second)

    @pytest.fixture
    def slow(self, batcher: Batcher, job: Callable[[str], Job]) -> None:
        """As if every list had taken a second so far."""
        for _ in range(20):
            batcher._costs.observe(job("any").company, Load(1, 3), 1.0)

    @pytest.mark.usefixtures("slow")
    async def test_what_cannot_be_done_in_time_is_refused_at_once(
        self, batcher: Batcher, gate: Gate, job: Callable[[str], Job]
    ) -> None:
        gate.open.clear()
        now = asyncio.get_running_loop().time()
        scoring = [asyncio.create_task(batcher.score([job("first")], now + PATIENCE_S))]
        await gate.has_seen("first")
        scoring += [asyncio.create_task(batcher.score([job(f"w{i}")], now + PATIENCE_S)) for i in range(4)]
        await asyncio.sleep(0)
        # One second of the running step and four of what waits are ahead of it, then its own; with a quarter for
        # caution 7.5 s, 4.5 more than it has.
        with pytest.raises(QueueFullError, match="would not be answered in time") as refused:
            await batcher.score([job("hurried")], asyncio.get_running_loop().time() + 3)
        assert refused.value.retry_after_s in {4, 5}
        assert batcher.retry_after_s() in {4, 5}
        scoring.append(asyncio.create_task(batcher.score([job("patient")], now + PATIENCE_S)))
        await asyncio.sleep(0)
        gate.open.set()
        await asyncio.gather(*scoring)

    @pytest.mark.usefixtures("slow")
    async def test_where_nobody_waits_a_request_is_taken_whatever_is_foretold(
        self, batcher: Batcher, job: Callable[[str], Job]
    ) -> None:
        (outcome,) = await batcher.score([job("lone")], asyncio.get_running_loop().time() + 0.5)
        assert len(outcome) == 1

    @pytest.mark.parametrize(("a_list_s", "together"), [(0.04, [2, 2, 1]), (0.01, [5]), (10.0, [1] * 5)])
    async def test_a_step_of_several_lists_is_foreseen_to_last_no_longer_than_it_shall(
        self, batcher: Batcher, gate: Gate, job: Callable[[str], Job], a_list_s: float, together: list[int]
    ) -> None:
        # Steps shall take 0.1 s at most, which is Limits' own default.
        gate.open.clear()
        deadline = asyncio.get_running_loop().time() + 1000
        scoring = [asyncio.create_task(batcher.score([job("first")], deadline))]
        await gate.has_seen("first")
        for _ in range(20):
            batcher._costs.observe(job("any").company, Load(1, 3), a_list_s)
        scoring += [asyncio.create_task(batcher.score([job(f"w{i}")], deadline)) for i in range(5)]
        await asyncio.sleep(0)
        # The steps of this test take next to no time; that shall not be learnt while it lasts.
        batcher._costs.observe = lambda *_: None  # type: ignore[method-assign]
        gate.open.set()
        await asyncio.gather(*scoring)
        assert [len(names) for names in gate.seen[1:]] == together

    async def test_a_request_is_told_how_long_it_waited_and_was_scored(
        self, batcher: Batcher, gate: Gate, job: Callable[[str], Job], first: Scoring
    ) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        timing = Timing()
        second = asyncio.create_task(batcher.score([job("second")], deadline, timing))
        begun = time.monotonic()
        await asyncio.sleep(0.05)
        gate.open.set()
        await asyncio.gather(first, second)
        assert timing.seconds["queue"] >= 0.05
        assert 0 < timing.seconds["queue"] + timing.seconds["score"] <= time.monotonic() - begun + 0.01

    async def test_stopping_tells_whoever_still_waits(
        self, batcher: Batcher, job: Callable[[str], Job], first: Scoring
    ) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        second = asyncio.create_task(batcher.score([job("second")], deadline))
        await asyncio.sleep(0)
        batcher.stop()
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(outcome).__name__ for outcome in outcomes] == ["NotReadyError", "NotReadyError"]

    async def test_a_step_that_outlives_the_queue_is_still_known(
        self, batcher: Batcher, gate: Gate, job: Callable[[str], Job]
    ) -> None:
        gate.open.clear()
        first = asyncio.create_task(batcher.score([job("first")], asyncio.get_running_loop().time() + 1))
        await gate.has_seen("first")
        batcher.stop()
        await asyncio.gather(first, return_exceptions=True)
        assert batcher.busy_s() > 0

    async def test_a_stopped_queue_takes_nothing(self, batcher: Batcher, job: Callable[[str], Job]) -> None:
        batcher.stop()
        await asyncio.sleep(0)
        with pytest.raises(Exception, match="not running"):
            await batcher.score([job("late")], asyncio.get_running_loop().time() + 1)
