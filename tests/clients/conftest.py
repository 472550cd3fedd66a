import asyncio
import gzip
import json
import lzma
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from clients.cli import main
from clients.retry import RetryPolicy
from clients.sdk import AsyncClient, Client

# Programs that a test starts and interrupts must not inherit that interrupts are ignored, as where the tests run in the
# background of a script.
signal.signal(signal.SIGINT, signal.default_int_handler)

Json = dict[str, Any]


@pytest.fixture(scope="session")
def edit_distance() -> Callable[[Sequence[str], Sequence[str]], int]:
    """Levenshtein's recurrence, row by row."""

    def distance(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
        row = list(range(len(hypothesis) + 1))
        for i, word in enumerate(reference, start=1):
            costs = [i]
            for j, (diagonal, above) in enumerate(pairwise(row)):
                costs.append(min(diagonal + (word != hypothesis[j]), above + 1, costs[-1] + 1))
            row = costs
        return row[-1]

    return distance


def make_utterance(identifier: str, *texts: str, **extra: Any) -> Json:
    """An N-best list whose acoustic scores fall by 1 from hypothesis to hypothesis."""
    hypotheses = [{"text": text, "acoustic_score": -100.0 - i} for i, text in enumerate(texts or ("yes", "no"))]
    return {"id": identifier, "hypotheses": hypotheses, **extra}


def answer_to(request: Json) -> Json:
    """What an honest service answers whose language model takes 10 off per word."""
    options = dict(request.get("options") or {})
    compact = request.get("compact", False)
    results = []
    for utterance in request["utterances"]:
        entries = []
        for index, hypothesis in enumerate(utterance["hypotheses"]):
            words = hypothesis["text"].lower().split()
            total = hypothesis["acoustic_score"] - 10.0 * len(words)
            entry = {"index": index, "total": total, "posterior": 1 / len(utterance["hypotheses"])}
            if not compact:
                entry |= {"text": hypothesis["text"], "scored_text": " ".join(words), "words": len(words)}
            entries.append(entry)
        entries.sort(key=lambda entry: -entry["total"])
        result = {"id": utterance["id"], "ranking": entries}
        result["best_text"] = utterance["hypotheses"][entries[0]["index"]]["text"]
        for name in ("session_id", "speaker", "reference"):
            if utterance.get(name) is not None:
                result[name] = utterance[name]
        if not compact and utterance.get("reference") is not None:
            result["scored_reference"] = " ".join(utterance["reference"].lower().split())
        results.append(result)
    state = options.pop("state", "reset")
    return {"bundle": "b" * 64, "weights": {"lm_scale": 10.0, **options}, "state": state, "results": results}


def problem(status: int, detail: str, **extra: Any) -> tuple[int, Json]:
    return status, {
        "type": "/problems/Some",
        "title": "Some Problem",
        "status": status,
        "detail": detail,
        **extra,
    }


Step = Callable[[BaseHTTPRequestHandler, Json], None]


class FakeService:
    """A service on a real socket: `script` is played, a step a request, then all are answered well."""

    def __init__(self, port: int = 0) -> None:
        self.script: list[Step] = []
        self.requests: list[Json] = []
        self.headers: list[Mapping[str, str]] = []
        self.bodies: list[int] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = json.loads(body)
                service.requests.append(request)
                service.headers.append(dict(self.headers))
                service.bodies.append(len(body))
                step = service.script.pop(0) if service.script else send_answer
                step(self, request)

            def log_message(self, *_: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, *_: Any) -> None: ...

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def send_json(handler: BaseHTTPRequestHandler, status: int, document: Json, kind: str = "application/json") -> None:
    body = json.dumps(document).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def send_answer(handler: BaseHTTPRequestHandler, request: Json) -> None:
    send_json(handler, 200, answer_to(request))


def cut_off(handler: BaseHTTPRequestHandler, request: Json) -> None:
    """Promise a whole answer, send ten bytes of it, and close."""
    body = json.dumps(answer_to(request)).encode()
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body[:10])
    handler.close_connection = True


@pytest.fixture
def service() -> Iterator[FakeService]:
    running = FakeService()
    yield running
    running.stop()


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[..., str]:
    """Write values, one line of JSON each, or raw bytes, to a file of the given name."""

    def write(name: str, lines: Sequence[Any] | bytes) -> str:
        path = tmp_path / name
        raw = lines if isinstance(lines, bytes) else b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        if name.endswith(".gz"):
            raw = gzip.compress(raw)
        if name.endswith(".xz"):
            raw = lzma.compress(raw)
        path.write_bytes(raw)
        return str(path)

    return write


def results(path: Path) -> list[Any]:
    raw = path.read_text(encoding="utf-8")
    assert not raw or raw.endswith("\n")
    return [json.loads(line) for line in raw.splitlines()]


def ids(path: Path) -> list[str]:
    return [entry["id"] for entry in results(path)]


def run_rescore(source: str, url: str, out: Path, *more: str) -> int:
    return main(["rescore", source, "--url", url, "--output", str(out), *more])


def many(count: int) -> list[Json]:
    return [make_utterance(f"utt-{i:03}") for i in range(count)]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@pytest.fixture
def fakes() -> Any:
    """The fakes of this folder, for tests that cannot import them: test folders are no packages."""

    class Fakes:
        utterance = staticmethod(make_utterance)
        answer = staticmethod(answer_to)
        problem = staticmethod(problem)
        send_json = staticmethod(send_json)
        send_answer = staticmethod(send_answer)
        cut_off = staticmethod(cut_off)
        results = staticmethod(results)
        ids = staticmethod(ids)
        rescore = staticmethod(run_rescore)
        many = staticmethod(many)
        service = FakeService
        script = Script

    return Fakes


Handler = Callable[[httpx.Request], httpx.Response]
JITTERLESS = RetryPolicy(total_seconds=60, first_delay=1.0, longest_delay=8.0, jitter=lambda: 1.0)


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.seconds += seconds

    async def async_sleep(self, seconds: float) -> None:
        self.sleep(seconds)

    def now(self) -> float:
        return self.seconds


class Script:
    """Answers each request with the next entry: a response, or an error to raise; the last one stays."""

    def __init__(self, *entries: Any) -> None:
        self.entries = list(entries)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        entry = self.entries.pop(0) if len(self.entries) > 1 else self.entries[0]
        if isinstance(entry, Exception):
            raise entry
        if callable(entry):
            entry = entry(request)
        assert isinstance(entry, httpx.Response)
        return httpx.Response(entry.status_code, headers=entry.headers, content=entry.content)


class Colour:
    """Calls a method of the synchronous or the asynchronous client, over a scripted transport."""

    def __init__(self, *, is_async: bool) -> None:
        self.is_async = is_async
        self.clock = Clock()
        self.reports: list[tuple[str, float]] = []

    def call(self, handler: Handler, method: str, *arguments: Any, key: str | None = None, **settings: Any) -> Any:
        options: dict[str, Any] = {
            "api_key": key,
            "transport": httpx.MockTransport(handler),
            "retry": JITTERLESS,
            "now": self.clock.now,
            "on_retry": lambda failure, delay: self.reports.append((str(failure), delay)),
        }
        if not self.is_async:
            with Client("http://test/base", sleep=self.clock.sleep, **options) as client:
                return getattr(client, method)(*arguments, **settings)

        async def call() -> Any:
            async with AsyncClient("http://test/base", sleep=self.clock.async_sleep, **options) as client:
                return await getattr(client, method)(*arguments, **settings)

        return asyncio.run(call())


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> Colour:
    return Colour(is_async=request.param == "async")


@pytest.fixture
def answered(fakes: Any) -> Handler:
    return lambda request: httpx.Response(200, json=fakes.answer(json.loads(request.content)))
