"""Several workers behind one queue, as one a GPU; here each scores on the processor."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from clients.cli import main as nbest
from models.bundle import Bundle, add_elman, create_bundle
from models.errors import ModelFailedError
from models.nbest import Hypothesis, NBest
from models.normaliser import Normaliser
from models.rnnlm import ElmanLM, ElmanWeights, WordClasses
from models.scored_lists import PreparedList
from models.self_normalised import SelfNormalisation, SelfNormalised
from models.session import SessionModel, SessionOptions
from models.vocabulary import Vocabulary
from service import main
from service.batching import Batcher
from service.cost_model import Load
from service.errors import NotReadyError, SettingsError
from service.jobs import Job, Place, Results
from service.settings import Limits, Settings, read_settings
from service.telemetry import Telemetry, make_log

pytestmark = pytest.mark.anyio

PATIENCE_S = 20


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - what is waited for happens on another thread
            await asyncio.sleep(0.001)


class Gate:
    """What stands before a worker: holds it while shut, notes what came through, fails when told to."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.seen: list[list[str]] = []
        self.error: Exception | None = None

    def __call__(self, lists: Sequence[PreparedList]) -> None:
        self.seen.append([prepared.nbest.utterance_id for prepared in lists])
        assert self.open.wait(PATIENCE_S)
        if self.error:
            raise self.error

    @property
    def names(self) -> list[str]:
        return [name for names in self.seen for name in names]


@pytest.fixture
def gates() -> tuple[Gate, Gate]:
    return Gate(), Gate()


@pytest.fixture
def pair(gates: tuple[Gate, Gate], watched: Callable[..., Bundle]) -> list[Bundle]:
    return [watched(gate) for gate in gates]


@pytest.fixture
async def batcher(pair: list[Bundle], gates: tuple[Gate, Gate], log_lines: Any) -> AsyncIterator[Batcher]:
    one, other = pair
    queue = Batcher(one.rescorer, Limits(), Telemetry(make_log(log_lines)), [other.rescorer])
    queue.start()
    yield queue
    for gate in gates:
        gate.open.set()
    queue.stop()


@pytest.fixture
def job(bundle: Bundle) -> Callable[[str], Job]:
    def make(name: str) -> Job:
        prepared = bundle.rescorer.prepare(NBest(name, (Hypothesis("the cat", -1.0),)))
        return Job((prepared,), bundle.weights)

    return make


@pytest.fixture
def session_job(bundle: Bundle, job: Callable[[str], Job]) -> Callable[[str], Job]:
    model = SessionModel(bundle.rescorer, bundle.weights, SessionOptions())

    def make(name: str) -> Job:
        return Job(job(name).lists, bundle.weights, place=Place(model, model.fresh()))

    return make


def scoring(batcher: Batcher, *jobs: Job) -> "asyncio.Task[list[Results]]":
    return asyncio.create_task(batcher.score(jobs, asyncio.get_running_loop().time() + PATIENCE_S))


async def both_held(
    batcher: Batcher, gates: tuple[Gate, Gate], job: Callable[[str], Job], *names: str
) -> "list[asyncio.Task[list[Results]]]":
    """Two jobs, each of which holds a worker: the first entry is that of the first worker."""
    before = [len(gate.seen) for gate in gates]
    for gate in gates:
        gate.open.clear()
    tasks = {}
    for name in names or ("a", "b"):
        tasks[name] = scoring(batcher, job(name))
        await until(lambda name=name: any(name in gate.names for gate in gates))  # type: ignore[misc]
    assert [len(gate.seen) for gate in gates] == [count + 1 for count in before]
    return [tasks[gate.names[-1]] for gate in gates]


async def test_a_free_worker_takes_what_comes_while_the_other_works(
    batcher: Batcher, gates: tuple[Gate, Gate], job: Callable[[str], Job]
) -> None:
    held = await both_held(batcher, gates, job)
    third = scoring(batcher, job("third"))
    await asyncio.sleep(0)
    gates[1].open.set()
    assert len((await third)[0]) == 1
    assert gates[1].names[-1] == "third"
    assert held[1].done()
    assert not held[0].done()
    gates[0].open.set()
    await held[0]


async def test_a_workers_failure_reaches_its_own_callers_alone(
    batcher: Batcher, gates: tuple[Gate, Gate], job: Callable[[str], Job]
) -> None:
    gates[1].error = RuntimeError("this device is broken")
    good, bad = await both_held(batcher, gates, job)
    for gate in gates:
        gate.open.set()
    outcomes = await asyncio.gather(good, bad, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [list, ModelFailedError]
    assert batcher.alive
    assert batcher.last_step_succeeded is False
    # The second worker lives on, and is as good as ever when its device is.
    gates[1].error = None
    for task in await both_held(batcher, gates, job, "c", "d"):
        for gate in gates:
            gate.open.set()
        assert len((await task)[0]) == 1
    assert batcher.last_step_succeeded is True


async def test_every_worker_scores_what_is_asked_of_all(
    batcher: Batcher, gates: tuple[Gate, Gate], job: Callable[[str], Job]
) -> None:
    assert batcher.last_step_succeeded is None
    results = await batcher.score_everywhere(job("probe"), asyncio.get_running_loop().time() + PATIENCE_S)
    assert len(results) == 2
    assert [gate.seen for gate in gates] == [[["probe"]], [["probe"]]]
    assert batcher.last_step_succeeded is True


async def test_sessions_are_scored_by_the_first_worker_though_the_other_is_free(
    batcher: Batcher,
    gates: tuple[Gate, Gate],
    job: Callable[[str], Job],
    session_job: Callable[[str], Job],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[str] = []
    real = SessionModel.rescore

    def noted(*arguments: Any, **more: Any) -> Any:
        threads.append(threading.current_thread().name)
        return real(*arguments, **more)

    monkeypatch.setattr(SessionModel, "rescore", noted)
    held = await both_held(batcher, gates, job)
    gates[1].open.set()
    await held[1]
    sessions = [scoring(batcher, session_job(f"s{number}")) for number in range(3)]
    # The second worker is free and answers others meanwhile.
    for name in ("c", "d"):
        await scoring(batcher, job(name))
    assert gates[1].names[-2:] == ["c", "d"]
    assert not any(task.done() for task in sessions)
    gates[0].open.set()
    assert [len(results[0]) for results in await asyncio.gather(*sessions)] == [1, 1, 1]
    assert set(threads) == {"scoring-0"}


async def test_stopping_tells_whoever_waits_or_is_being_scored_and_ends_all_threads(
    batcher: Batcher, gates: tuple[Gate, Gate], job: Callable[[str], Job], session_job: Callable[[str], Job]
) -> None:
    tasks = [*await both_held(batcher, gates, job), scoring(batcher, job("c")), scoring(batcher, session_job("s"))]
    await asyncio.sleep(0)
    assert batcher.busy_s() > 0
    batcher.stop()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [NotReadyError] * 4
    assert not batcher.alive
    for gate in gates:
        gate.open.set()
    for worker in batcher._workers:
        assert worker.thread is not None
        await asyncio.to_thread(worker.thread.join, PATIENCE_S)
        assert not worker.alive
    assert batcher.busy_s() == 0


async def test_two_workers_are_foreseen_to_take_half_as_long_but_for_sessions(
    batcher: Batcher, gates: tuple[Gate, Gate], job: Callable[[str], Job], session_job: Callable[[str], Job]
) -> None:
    for some in (job("any"), session_job("any")):
        for _ in range(20):
            batcher._costs.observe(some.company, Load(1, 3), 2.0)
    tasks = await both_held(batcher, gates, job)
    tasks += [scoring(batcher, job(f"w{number}")) for number in range(4)]
    await asyncio.sleep(0)
    # Two seconds of each running step, and four lists of two seconds: twelve, for two.
    assert batcher._backlog_s() == pytest.approx(6, abs=0.5)
    tasks += [scoring(batcher, session_job(f"s{number}")) for number in range(6)]
    await asyncio.sleep(0)
    # With six more, of sessions, twenty-four. The first worker alone has two of its step and twelve of sessions.
    assert batcher._backlog_s() == pytest.approx(12, abs=0.5)
    assert batcher._backlog_s(0) == pytest.approx(14, abs=0.5)
    for gate in gates:
        gate.open.set()
    await asyncio.gather(*tasks)


async def test_readiness_asks_for_a_sentence_from_every_worker_and_follows_the_worst(
    pair: list[Bundle], gates: tuple[Gate, Gate], serve: Callable[..., Any], ask: Callable[..., dict[str, Any]]
) -> None:
    one, other = pair
    async with serve(one, replicas=[other]) as client:
        assert (await client.get("/health/ready")).status_code == 200
        assert [gate.names for gate in gates] == [["readiness"], ["readiness"]]
        gates[1].error = RuntimeError("broken")
        gates[0].open.clear()
        first = asyncio.create_task(client.post("/v1/rescore", json=ask("the")))
        await until(lambda: first.done() or gates[0].names[-1] == "u1")
        # While the well one is held the broken one gets the next, if it did not get the first.
        second = asyncio.create_task(client.post("/v1/rescore", json=ask("the")))
        await until(lambda: first.done() or second.done())
        gates[0].open.set()
        assert 503 in {answer.status_code for answer in await asyncio.gather(first, second)}
        refused = await client.get("/health/ready")
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/not-ready")
        gates[1].error = None
        assert (await client.get("/health/ready")).status_code == 200


async def test_all_callers_get_their_own_answers_and_all_steps_are_counted(
    pair: list[Bundle],
    gates: tuple[Gate, Gate],
    serve: Callable[..., Any],
    ask: Callable[..., dict[str, Any]],
    client: httpx.AsyncClient,
) -> None:
    texts = ["the cat", "sat on the mat", "sad", "", "zebra the"]
    alone = {text: (await client.post("/v1/rescore", json=ask(text))).json() for text in texts}
    one, other = pair
    async with serve(one, replicas=[other]) as several:
        assert (await several.get("/health/ready")).status_code == 200
        tasks = [asyncio.create_task(several.post("/v1/rescore", json=ask(text))) for text in texts * 10]
        for text, answer in zip(texts * 10, await asyncio.gather(*tasks), strict=True):
            (entry,), (expected,) = (found["results"][0]["ranking"] for found in (answer.json(), alone[text]))
            assert (entry["text"], entry["total"]) == (text, pytest.approx(expected["total"], rel=1e-6))
        metrics = (await several.get("/metrics")).text
    steps = sum(len(gate.seen) for gate in gates)
    assert f"nbest_batch_lists_count {float(steps)}" in metrics
    # Fifty requests and a sentence for each worker.
    assert "nbest_batch_lists_sum 52.0" in metrics
    assert "nbest_queue_lists 0.0" in metrics


async def test_a_session_among_other_traffic_learns_as_it_does_with_one_worker(
    pair: list[Bundle], serve: Callable[..., Any], ask: Callable[..., dict[str, Any]], bundle: Bundle
) -> None:
    utterances = [ask("the cat", "the sad cat", name=f"u{number}")["utterances"][0] for number in range(6)]

    async def session_of(client: httpx.AsyncClient) -> list[list[float]]:
        assert (await client.post("/v1/sessions", json={"id": "s"})).status_code == 201
        totals = []
        for utterance in utterances:
            others = [asyncio.create_task(client.post("/v1/rescore", json=ask("the"))) for _ in range(3)]
            answer = await client.post("/v1/sessions/s/rescore", json={"utterance": utterance})
            assert answer.status_code == 200, answer.text
            totals.append([entry["total"] for entry in answer.json()["result"]["ranking"]])
            assert {other.status_code for other in await asyncio.gather(*others)} == {200}
        return totals

    one, other = pair
    async with serve(bundle) as client:
        expected = await session_of(client)
    async with serve(one, replicas=[other]) as client:
        found = await session_of(client)
    assert found == [pytest.approx(row, rel=1e-9) for row in expected]
    # It did learn: the same list gets another score each time.
    assert len({tuple(row) for row in found}) == len(found)


@pytest.mark.parametrize("text", ["cpu,cpu", "tpu", "cuda:0,cpu", "cuda:", "cuda:0,", "auto,cuda:0", "cuda;0", "CUDA"])
def test_nonsense_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    expected = r": name auto, cpu, cuda, or several CUDA devices: cuda:0,cuda:1$"
    with pytest.raises(SettingsError, match="^--device" + expected):
        read_settings({"bundle": "b", "device": text})
    monkeypatch.setenv("NBEST_DEVICE", text)
    with pytest.raises(SettingsError, match="^NBEST_DEVICE" + expected):
        read_settings({"bundle": "b"})


@pytest.mark.parametrize("text", ["auto", "cpu", "cuda", "cuda:3", "cuda:0,cuda:1", "cuda:1,cuda:1,cuda:0"])
def test_devices_are_taken_from_the_option(text: str) -> None:
    assert read_settings({"bundle": "b", "device": text}).device == text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("text", ["cuda", "cuda:0,cuda:1"])
def test_cuda_where_there_is_none_ends_the_command_with_a_line_that_names_the_option(
    bundle_folder: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert nbest(["serve", str(bundle_folder), "--port", "0", "--device", text]) == 2
    said = capsys.readouterr().err
    assert re.search(r"--device \(or NBEST_DEVICE\): device 'cuda(:0)?' is asked for, but torch sees no CUDA", said)
    assert "Traceback" not in said


def test_the_bundle_is_loaded_once_a_device(bundle_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "named_devices", lambda _: ("cpu", "cpu"))
    first, second = main.load_replicas(Settings(bundle=bundle_folder, device="cuda:0,cuda:1"))
    assert first.sha256 == second.sha256
    assert first.rescorer.models["rnn"] is not second.rescorer.models["rnn"]


@pytest.fixture
def self_normalised(tmp_path: Path) -> Path:
    """A bundle of one network that was trained to do without its normaliser."""
    manifest = create_bundle(tmp_path, Normaliser(), Vocabulary(("a", "b")))
    classes = WordClasses(torch.tensor([1, 0, 2, 3]).numpy(), 1)
    weights = ElmanWeights(torch.ones(4, 3), torch.ones(3, 3), torch.ones(4, 3))
    layer = SelfNormalised(weights.V, SelfNormalisation(2.0, 0.1, 0.2, 0.0))
    add_elman(tmp_path, manifest, "rnn", ElmanLM(weights, classes, output=layer))
    return tmp_path


@pytest.mark.parametrize(("options", "normalised"), [({}, False), ({"exact_normaliser": True}, True)])
def test_the_exact_normaliser_is_opted_for_and_said(
    self_normalised: Path, options: dict[str, Any], normalised: bool
) -> None:
    (loaded,) = main.load_replicas(read_settings({"bundle": self_normalised, "device": "cpu", **options}))
    (said,) = loaded.describe()["models"]
    assert said["normalised"] is normalised


def test_a_precision_that_nothing_takes_up_is_refused_when_the_service_starts(
    self_normalised: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--port", "0", "--device", "cpu", "--precision", "bfloat16"]
    assert nbest(["serve", str(self_normalised), *options]) == 1
    assert "precision 'bfloat16'" in capsys.readouterr().err
    settings = {"bundle": self_normalised, "device": "cpu", "precision": "bfloat16", "exact_normaliser": True}
    (loaded,) = main.load_replicas(read_settings(settings))
    assert loaded.describe()["models"][0]["precision"] == "bfloat16"


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two CUDA devices")
@pytest.mark.filterwarnings("default")
async def test_two_gpus_answer_as_the_processor_does(
    bundle_folder: Path,
    serve: Callable[..., Any],
    ask: Callable[..., dict[str, Any]],
    client: httpx.AsyncClient,
) -> None:
    first, second = main.load_replicas(Settings(bundle=bundle_folder, device="cuda:0,cuda:1"))
    expected = (await client.post("/v1/rescore", json=ask("the cat sat"))).json()["results"][0]["ranking"][0]["lm"]
    async with serve(first, replicas=[second]) as several:
        tasks = [asyncio.create_task(several.post("/v1/rescore", json=ask("the cat sat"))) for _ in range(40)]
        for answer in await asyncio.gather(*tasks):
            assert answer.json()["results"][0]["ranking"][0]["lm"] == pytest.approx(expected, abs=4e-4)
