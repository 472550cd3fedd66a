"""The real thing: `nbest serve` as a process, spoken to over a socket."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from clients.cli import main

pytestmark = pytest.mark.slow

NBEST = Path(sys.executable).with_name("nbest")
PATIENCE_S = 60
HOST = "127.0.0.1"
HEADER_LIMIT = 8192


@dataclass
class Served:
    """A running service. port: where it listens; log: where it writes."""

    process: "subprocess.Popen[bytes]"
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def connect(self) -> socket.socket:
        return socket.create_connection((HOST, self.port), timeout=PATIENCE_S)

    def converse(self, *pieces: bytes) -> bytes:
        """Send pieces, as far as they are taken, and read until the service closes the connection."""
        with self.connect() as connection:
            with contextlib.suppress(OSError):
                for piece in pieces:
                    connection.sendall(piece)
            return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    out = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            out += piece
    return out


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NBEST_")}
    return {**kept, "NBEST_THREADS": "1", "NBEST_HOST": HOST, "NBEST_SESSION_STORE": "memory:", **more}


def start(bundle: Path, log: Path, **variables: str) -> Served:
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [NBEST, "serve", str(bundle), "--port", "0"], stderr=stream, env=environment(**variables)
        )
    try:
        served = Served(process, port_of(process, log), log)
        while httpx.get(f"{served.url}/health/ready").status_code != 200:
            time.sleep(0.02)
    except BaseException:
        process.kill()
        process.wait(PATIENCE_S)
        raise
    return served


def port_of(process: "subprocess.Popen[bytes]", log: Path) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("{") and line.endswith("}") and json.loads(line)["event"] == "listening":
                return int(json.loads(line)["port"])
        time.sleep(0.02)
    pytest.fail(f"the service did not start: {log.read_text()}")


def stop(served: Served) -> None:
    if served.process.poll() is None:
        served.process.kill()
    served.process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def served(bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One service for all tests that leave it running."""
    running = start(
        bundle_folder,
        tmp_path_factory.mktemp("log") / "stderr",
        NBEST_MAX_HEADER_BYTES=str(HEADER_LIMIT),
        NBEST_MAX_BODY_BYTES="100000",
        NBEST_RECEIVE_TIMEOUT_S="0.4",
        NBEST_MAX_CONNECTIONS="20",
        NBEST_KEEP_ALIVE_S="1",
    )
    yield running
    stop(running)


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def body_of(answer: bytes) -> Any:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def test_a_request_over_the_network_is_answered(served: Served, ask: Callable[..., Any]) -> None:
    response = httpx.post(f"{served.url}/v1/rescore", json=ask("the cat sat", "the cat sad"))
    assert response.status_code == 200
    assert "server" not in response.headers


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health/live HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"GET /health/live HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 100_000 + b"\r\n",
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /health/live HTTP/1.1\r\n" + b"a" * 1_000_000,
        b"GET /health/live HTTP/1.1\r\nx: " + b"a" * (HEADER_LIMIT + 1) + b"\r\n\r\n",
    ],
    ids=["one header", "many headers", "request line", "without end", "just over"],
)
def test_headers_over_the_limit_are_refused(served: Served, head: bytes) -> None:
    answer = served.converse(head)
    # A client that goes on writing may lose the answer to a reset, but nothing else is ever said.
    assert not answer or (status_of(answer), body_of(answer)["type"]) == (431, "/problems/headers-too-large")
    assert httpx.get(f"{served.url}/health/live").status_code == 200


def test_trailers_and_chunk_extensions_are_no_way_round_the_limit(served: Served) -> None:
    head = b"POST /v1/rescore HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    for flood in (b"0\r\n" + b"a: b\r\n" * 100_000, b"1;x=" + b"a" * 1_000_000):
        assert b" 200 " not in served.converse(head, flood)[:20]
    assert httpx.get(f"{served.url}/health/live").status_code == 200


def test_a_chunked_body_over_the_limit_is_refused_with_a_problem(served: Served) -> None:
    def flood() -> Iterator[bytes]:
        for _ in range(3):
            yield b" " * 40_000

    response = httpx.post(f"{served.url}/v1/rescore", content=flood())
    assert (response.status_code, response.json()["type"]) == (413, "/problems/body-too-large")
    assert response.headers["connection"] == "close"


def test_a_chunked_body_without_end_is_cut_off(served: Served) -> None:
    sent = 0

    def flood() -> Iterator[bytes]:
        nonlocal sent
        while sent < 200_000_000:
            sent += 100_000
            yield b" " * 100_000

    with contextlib.suppress(httpx.TransportError):
        assert httpx.post(f"{served.url}/v1/rescore", content=flood()).status_code == 413
    assert sent < 50_000_000


def test_an_announced_body_over_the_limit_is_refused_before_it_is_sent(served: Served) -> None:
    head = b"POST /v1/rescore HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 200000000\r\n\r\n"
    answer = served.converse(head)
    assert (status_of(answer), body_of(answer)["type"]) == (413, "/problems/body-too-large")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", None),
        (b"\r\n", None),
        (b"GET /health/live HTTP/1.1\r\nhost:", 408),
        (b"POST /v1/rescore HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{", 408),
        (b"GET /health/live HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{", 200),
        (b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n", 200),
        (b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n\r\n", 200),
        (b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\nGET /", 200),
    ],
    ids=["nothing", "line end", "head", "body", "unread body", "idle", "idle and line end", "second head"],
)
def test_a_client_that_never_finishes_is_let_go(served: Served, sent: bytes, status: int | None) -> None:
    # converse() returns only once the service has closed the connection.
    answer = served.converse(sent)
    assert (status_of(answer) if answer else None) == status


def test_what_is_no_http_is_a_problem(served: Served) -> None:
    answer = served.converse(b"\x16\x03\x01 not http\r\n\r\n")
    assert (status_of(answer), body_of(answer)["type"]) == (400, "/problems/bad-request")


def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    one = b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"
    two = b"GET /nothing HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    answer = served.converse(one + one + two)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"200", b"404"]


def test_connections_are_bounded(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(served.connect())
            connection.sendall(b"GET /health/live HTTP/1.1\r\n")
        answer = b""
        for _ in range(20):
            answer = read_all(stack.enter_context(served.connect()))
            if answer:
                break
        assert (status_of(answer), body_of(answer)["type"]) == (503, "/problems/too-many-connections")
    for _ in range(100):
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{served.url}/health/live").status_code == 200:
                return
        time.sleep(0.05)
    pytest.fail("the service did not recover")


def test_told_to_stop_it_is_first_not_ready_then_finishes_what_it_has_and_ends_with_0(
    bundle_folder: Path, tmp_path: Path, ask: Callable[..., Any]
) -> None:
    served = start(bundle_folder, tmp_path / "stderr", NBEST_DRAIN_DELAY_S="1")
    try:
        body = json.dumps(ask("the cat sat")).encode()
        head = f"POST /v1/rescore HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        with served.connect() as halfway:
            halfway.sendall(head + body[:10])
            served.process.send_signal(signal.SIGTERM)
            while (answer := httpx.get(f"{served.url}/health/ready")).status_code == 200:
                time.sleep(0.01)
            assert answer.json()["type"] == "/problems/not-ready"
            assert httpx.get(f"{served.url}/health/live").status_code == 200
            while connects(served):
                time.sleep(0.01)
            halfway.sendall(body[10:])
            assert status_of(read_all(halfway)) == 200
        assert served.process.wait(PATIENCE_S) == 0
    finally:
        stop(served)


def connects(served: Served) -> bool:
    try:
        served.connect().close()
    except ConnectionError:
        return False
    return True


@pytest.fixture
def failure(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, list[str]]]:
    """The exit code of a start that fails, and what it said; KenLM's lines on its progress are left out."""

    def run(*arguments: str, **variables: str) -> tuple[int, list[str]]:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        code = main(["serve", *arguments])
        said = capfd.readouterr().err.splitlines()
        return code, [line for line in said if "nbest: " in line or "Traceback" in line]

    return run


Failure = Callable[..., tuple[int, list[str]]]


def test_a_port_in_use_is_one_line_and_exit_code_1(bundle_folder: Path, failure: Failure) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        code, said = failure(str(bundle_folder), "--port", str(port))
    assert (code, said) == (1, [f"nbest: error: cannot listen on {HOST}:{port}: the port is in use"])


def test_a_host_that_is_none_is_one_line_and_exit_code_1(bundle_folder: Path, failure: Failure) -> None:
    code, said = failure(str(bundle_folder), "--host", "256.256.256.256", "--port", "0")
    assert (code, len(said)) == (1, 1)
    assert said[0].startswith("nbest: error: cannot listen on 256.256.256.256:0: ")


def test_a_corrupt_bundle_is_one_line_and_exit_code_1(bundle_folder: Path, tmp_path: Path, failure: Failure) -> None:
    broken = shutil.copytree(bundle_folder, tmp_path / "bundle")
    with (broken / "rnn" / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    code, said = failure(str(broken), "--port", "0")
    assert (code, len(said)) == (1, 1)
    assert said[0].startswith("nbest: error: ")
    assert "model.safetensors" in said[0]


def test_a_missing_bundle_is_one_line_and_exit_code_1(tmp_path: Path, failure: Failure) -> None:
    code, said = failure(str(tmp_path), "--port", "0")
    assert (code, len(said)) == (1, 1)
    assert "bundle.json" in said[0]


def test_a_setting_that_is_none_is_one_line_and_exit_code_2(bundle_folder: Path, failure: Failure) -> None:
    code, said = failure(str(bundle_folder), NBEST_DOCS="perhaps")
    assert (code, len(said)) == (2, 1)
    assert said[0].startswith("nbest: error: NBEST_DOCS: ")
