"""Places where sessions are kept: SQLite files in temporary folders, and a Redis server of the tests' own."""

import itertools
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from service.redis_store import RedisStore
from service.session_store import Entry, SessionRecord, SessionStore
from service.sqlite_store import SqliteStore

HOST = "127.0.0.1"
PATIENCE_S = 30


class RedisServer:
    """A redis-server of its own, with its files in a folder of its own.

    options: more arguments, such as "--requirepass", "x"
    """

    def __init__(self, folder: Path, *options: str, password: str = "") -> None:
        self.folder = folder
        self.options = [*options, *(["--requirepass", password] if password else [])]
        self.password = password
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self.port: int = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{f':{self.password}@' if self.password else ''}{HOST}:{self.port}/0"

    def start(self) -> "RedisServer":
        arguments = ["--port", str(self.port), "--bind", HOST, "--dir", str(self.folder), "--save", ""]
        arguments += ["--appendonly", "yes", "--appendfsync", "everysec", "--logfile", str(self.folder / "log")]
        program = shutil.which("redis-server") or "redis-server"
        self.process = subprocess.Popen([program, *arguments, *self.options])
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with self.client() as client:
                    client.ping()
            except redis.ConnectionError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            else:
                return self

    def client(self) -> redis.Redis:
        return redis.Redis(host=HOST, port=self.port, password=self.password or None, protocol=2)

    def send(self, signum: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(signum)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
            self.process = None


@pytest.fixture(scope="session")
def make_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RedisServer]]:
    """Starts servers, and kills them when the tests are over."""
    if shutil.which("redis-server") is None:
        pytest.skip("needs the program redis-server (Debian: apt-get install redis-server)")
    servers = []

    def make(*options: str, password: str = "") -> RedisServer:
        servers.append(RedisServer(tmp_path_factory.mktemp("redis"), *options, password=password))
        return servers[-1].start()

    yield make
    for server in servers:
        server.kill()


@pytest.fixture(scope="session")
def shared_redis(make_redis: Callable[..., RedisServer]) -> RedisServer:
    """A server that no test stops or sets up otherwise."""
    return make_redis()


@pytest.fixture
def own_redis(make_redis: Callable[..., RedisServer]) -> Iterator[RedisServer]:
    """A server that one test may do anything to."""
    server = make_redis("--appendfsync", "always")
    yield server
    server.kill()


class Place:
    """Where one set of sessions is kept, and may be opened any number of times.

    arguments: what a child process needs to open it: sqlite PATH, or redis URL PREFIX
    """

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments
        self._opened: list[SessionStore] = []

    def open(self, **options: Any) -> SessionStore:
        kind, where, *rest = self.arguments
        store = RedisStore(where, *rest, **options) if kind == "redis" else SqliteStore(Path(where), **options)
        self._opened.append(store)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.close()


@pytest.fixture(params=["sqlite", "redis"])
def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Place]]:
    """Makes places that hold nothing yet."""
    server = request.getfixturevalue("shared_redis") if request.param == "redis" else None
    numbers = itertools.count()
    places = []

    def make() -> Place:
        if server is not None:
            places.append(Place("redis", server.url, f"test-{uuid.uuid4().hex}"))
        else:
            places.append(Place("sqlite", str(tmp_path / f"folder {next(numbers)}" / "sessions.sqlite3")))
        return places[-1]

    yield make
    for place in places:
        place.close()


@pytest.fixture
def place(new_place: Callable[[], Place]) -> Place:
    return new_place()


@pytest.fixture
def store(place: Place) -> SessionStore:
    return place.open()


def record_of(session_id: str = "s", **fields: Any) -> SessionRecord:
    """The record of a session that was just made at time 100."""
    known = {"version": 0, "bundle": "b" * 64, "options": {"rate": 0.1}, "created": 100.0, "used": 100.0}
    return SessionRecord(session_id=session_id, **{**known, "entries": 0, "base": 0, **fields})


def entry_of(utterance_id: str, *words: str, answer: bytes = b"{}") -> Entry:
    return Entry(utterance_id, f"request of {utterance_id}", words or ("a", "b"), None, answer)


@pytest.fixture
def new_record() -> Callable[..., SessionRecord]:
    return record_of


@pytest.fixture
def new_entry() -> Callable[..., Entry]:
    return entry_of
