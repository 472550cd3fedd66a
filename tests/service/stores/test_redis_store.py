"""What goes wrong between the service and Redis, and what a Redis store makes of it."""

import contextlib
import itertools
import logging
import signal
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis.crc import key_slot

from service import redis_store
from service.errors import StartError
from service.redis_store import RedisStore
from service.session_store import (
    GoneSessionError,
    SessionExistsError,
    SessionStore,
    Snapshot,
    StaleVersionError,
    StoreUnavailableError,
    UnknownSessionError,
)

Make = Callable[..., Any]
HOST = "127.0.0.1"
PATIENCE_S = 60
SECRET = "geheim-Passwort"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores opened in this test give up early."""
    monkeypatch.setattr(redis_store, "_ANSWER_S", 0.2)
    monkeypatch.setattr(redis_store, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(redis_store, "_PAUSES_S", (0.0, 0.01))


@pytest.fixture
def open_at() -> Iterator[Callable[..., RedisStore]]:
    opened = []

    def open_store(url: str, *arguments: Any, **options: Any) -> RedisStore:
        opened.append(RedisStore(url, *arguments, **options))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


def contents(store: SessionStore) -> tuple[Any, ...]:
    return store.record("s"), store.entries("s"), store.snapshot("s"), store.count()


def fill(store: SessionStore, new_record: Make, new_entry: Make) -> None:
    store.create(new_record(version=1, entries=1), [new_entry("u1")], Snapshot(1, 1, b"state"))


def changes_that_need_memory(store: SessionStore, new_record: Make, new_entry: Make) -> list[Callable[[], object]]:
    return [
        lambda: store.create(new_record("other")),
        lambda: store.append("s", 1, new_entry("u9"), 200.0),
        lambda: store.confirm("s", 1, 0, ["x"], 200.0),
        lambda: store.save_snapshot("s", Snapshot(1, 1, b"y")),
        lambda: store.touch("s", 200.0),
    ]


def changes_that_free_memory(store: SessionStore) -> list[Callable[[], object]]:
    return [lambda: store.reset("s", 1, 200.0), lambda: store.expire(1000.0), lambda: store.delete("s")]


# --- opening ----------------------------------------------------------------------------------------------------------


def shown(error: BaseException) -> str:
    """All of an error that a log may come to hold."""
    return "".join(traceback.format_exception(error)).lower()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("redis://user:{secret}@127.0.0.1:1/0", "cannot be reached"),
        ("redis://:{secret}@no-such-host.invalid:6379/0", "cannot be reached"),
        ("redis://:{secret}@127.0.0.1:99999/0", "malformed"),
        ("redis://:{secret}@127.0.0.1:x/0", "malformed"),
        ("redis://:{secret}@[::1/0", "malformed"),
        ("redis://:{secret}@127.0.0.1/zero", "no number"),
        ("redis://:{secret}@127.0.0.1/0?socket_timeout=soon", "malformed"),
        ("redis://:{secret}@127.0.0.1/0?colour=blue", "option"),
        ("redis://:{secret}@" + "a" * 70 + ".example/0", "malformed|cannot be reached"),
        ("rediss://:{secret}@127.0.0.1:{port}/0", "cannot be reached"),
        ("redis://:{secret}@127.0.0.1:{port}/0", "cannot be reached|refuses"),
    ],
)
def test_an_address_that_is_of_no_use_is_told_and_never_shown(
    shared_redis: Any, caplog: pytest.LogCaptureFixture, address: str, message: str
) -> None:
    url = address.format(secret=SECRET, port=shared_redis.port)
    with pytest.raises(StartError, match=message) as caught:
        RedisStore(url)
    for told in [str(caught.value), repr(caught.value), caplog.text]:
        assert "\n" not in told
        for part in [SECRET, "127.0.0.1", "no-such-host", "example", "redis://", str(shared_redis.port)]:
            assert part not in told
    # The lines of the trace are of the code, the rest is of the error.
    assert SECRET.lower() not in shown(caught.value)
    assert "no-such-host" not in shown(caught.value)


def test_a_password_opens_and_the_wrong_one_does_not(
    make_redis: Callable[..., Any], open_at: Callable[..., RedisStore], new_record: Make
) -> None:
    server = make_redis(password=SECRET)
    store = open_at(server.url)
    store.create(new_record())
    assert SECRET not in repr(store)
    for url in [server.url.replace(SECRET, "not-" + SECRET), f"redis://{HOST}:{server.port}/0"]:
        with pytest.raises(StartError, match=r"cannot be reached|refuses") as caught:
            open_at(url)
        assert SECRET not in shown(caught.value)
        assert str(server.port) not in str(caught.value)
    # The password is changed while the store is open.
    with server.client() as client:
        client.config_set("requirepass", "another")
        client.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(StoreUnavailableError) as refused:
        store.record("s")
    assert SECRET not in shown(refused.value)
    server.kill()


def test_another_format_is_refused(shared_redis: Any, open_at: Callable[..., RedisStore]) -> None:
    with shared_redis.client() as client:
        client.set("{test-format}:format", "2")
    with pytest.raises(StartError, match="format 2"):
        open_at(shared_redis.url, "test-format")


@pytest.mark.parametrize("prefix", ["", "a{b", "}"])
def test_a_prefix_that_would_spoil_the_hash_tag_is_refused(shared_redis: Any, prefix: str) -> None:
    with pytest.raises(ValueError, match="brace"):
        RedisStore(shared_redis.url, prefix)


@pytest.mark.parametrize(
    ("option", "value", "warning"),
    [
        ("maxmemory-policy", "allkeys-lru", "may drop sessions"),
        ("appendonly", "no", "lose all sessions"),
        ("appendfsync", "everysec", "last two seconds"),
    ],
)
def test_settings_that_lose_sessions_are_told(
    own_redis: Any,
    open_at: Callable[..., RedisStore],
    caplog: pytest.LogCaptureFixture,
    option: str,
    value: str,
    warning: str,
) -> None:
    with caplog.at_level(logging.WARNING), own_redis.client() as client:
        open_at(own_redis.url)
        assert caplog.text == ""
        client.config_set(option, value)
        open_at(own_redis.url)
    assert warning in caplog.text


def test_an_account_that_may_not_ask_for_settings_will_do(
    own_redis: Any, open_at: Callable[..., RedisStore], new_record: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with own_redis.client() as client:
        may = ["+@read", "+@write", "+@scripting", "+@connection"]  # and not CONFIG
        client.execute_command("ACL", "SETUSER", "narrow", "on", ">pass", "~{nbest}:*", "-@all", *may)
    store = open_at(f"redis://narrow:pass@{HOST}:{own_redis.port}/0")
    assert caplog.text == ""
    store.create(new_record())
    assert store.record("s") == new_record()
    with pytest.raises(StartError, match=r"refuses \(NoPermissionError\)"):
        open_at(f"redis://narrow:pass@{HOST}:{own_redis.port}/0", "other")


# --- names ------------------------------------------------------------------------------------------------------------


def test_stores_of_different_prefixes_are_apart_and_all_names_share_a_slot(
    own_redis: Any, open_at: Callable[..., RedisStore], new_record: Make, new_entry: Make
) -> None:
    one, other = open_at(own_redis.url, "one"), open_at(own_redis.url, "other")
    fill(one, new_record, new_entry)
    one.confirm("s", 1, 0, ["x"], 100.0)
    one.save_snapshot("s", Snapshot(2, 1, b"state"))
    one.create(new_record("gone"))
    one.delete("gone")
    assert other.count() == 0
    with pytest.raises(UnknownSessionError):
        other.record("s")
    with own_redis.client() as client:
        names = [name for name in client.keys("*") if not name.startswith(b"{other}:")]
        assert len(names) >= 9
        assert {key_slot(name) for name in names} == {key_slot(b"{one}:")}
        assert all(name.startswith(b"{one}:") for name in names)
    one.reset("s", 2, 100.0)
    with own_redis.client() as client:
        # Nothing of what was said is left.
        assert client.keys("{one}:*:s") == [b"{one}:session:s"]
    one.delete("s")
    with own_redis.client() as client:
        left = sorted(client.keys("{one}:*"))
    assert left == [b"{one}:farewells", b"{one}:format", b"{one}:gone", b"{one}:reasons"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.slow
def test_a_node_of_a_cluster_takes_all_calls(
    make_redis: Callable[..., Any], open_at: Callable[..., RedisStore], new_record: Make, new_entry: Make
) -> None:
    server = make_redis("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        deadline = time.monotonic() + PATIENCE_S
        while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    store = open_at(server.url)
    fill(store, new_record, new_entry)
    store.create(new_record("old", used=1.0))
    assert store.append("s", 1, new_entry("u2"), 100.0).version == 2
    assert store.confirm("s", 2, 0, ["x"], 100.0).version == 3
    assert store.save_snapshot("s", Snapshot(3, 2, b"state"))
    assert store.expire(50.0) == ["old"]
    assert store.reset("s", 3, 100.0).version == 4
    store.delete("s")
    assert store.count() == 0
    server.kill()


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("state", "other"), ("version", 1), ("version", "x"), ("entries", 0), ("sha256", ""), ("sha256", None)],
)
def test_a_damaged_snapshot_counts_as_none_and_is_told(
    shared_redis: Any,
    open_at: Callable[..., RedisStore],
    new_record: Make,
    new_entry: Make,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: str | int | None,
) -> None:
    prefix = f"damaged-{uuid.uuid4().hex}"
    store = open_at(shared_redis.url, prefix)
    fill(store, new_record, new_entry)
    store.append("s", 1, new_entry("u2"), 200.0)
    store.save_snapshot("s", Snapshot(2, 2, b"state"))
    with shared_redis.client() as client:
        if value is None:
            client.hdel(f"{{{prefix}}}:snapshot:s", name)
        else:
            client.hset(f"{{{prefix}}}:snapshot:s", name, value)
    with caplog.at_level(logging.WARNING):
        assert store.snapshot("s") is None
    assert "snapshot is damaged" in caplog.text
    assert store.entries("s") == [new_entry("u1"), new_entry("u2")]
    # As if there were none: one of an older version is taken too.
    assert store.save_snapshot("s", Snapshot(1, 1, b"older"))
    assert store.snapshot("s") == Snapshot(1, 1, b"older")


def test_an_entry_that_cannot_be_read_is_an_error_and_no_crash(
    own_redis: Any, open_at: Callable[..., RedisStore], new_record: Make, new_entry: Make
) -> None:
    store = open_at(own_redis.url)
    fill(store, new_record, new_entry)
    with own_redis.client() as client:
        for text in ["", "a\nb\nc\nd", '\n["u"]\n[]\n', '\n["u","r"]\n3\n', '[3]\n["u","r"]\n[]\n']:
            client.hset("{nbest}:log:s", "0", text)
            with pytest.raises(StoreUnavailableError, match="damaged"):
                store.entries("s")


def test_a_name_that_holds_something_else_is_an_error_that_shows_nothing_of_it(
    own_redis: Any, open_at: Callable[..., RedisStore]
) -> None:
    store = open_at(own_redis.url)
    with own_redis.client() as client:
        client.set("{nbest}:session:s", "whatever")
    with pytest.raises(StoreUnavailableError, match=r"refuses \(WRONGTYPE\)"):
        store.record("s")


def test_scripts_that_redis_has_forgotten_are_sent_again(
    own_redis: Any, open_at: Callable[..., RedisStore], new_record: Make, new_entry: Make
) -> None:
    store = open_at(own_redis.url)
    store.create(new_record())
    with own_redis.client() as client:
        client.script_flush()
    assert store.append("s", 0, new_entry("u1"), 100.0).version == 1


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_out_of_memory_nothing_changes_and_what_frees_memory_goes_through(
    own_redis: Any, open_at: Callable[..., RedisStore], new_record: Make, new_entry: Make
) -> None:
    store = open_at(own_redis.url)
    fill(store, new_record, new_entry)
    with own_redis.client() as client:
        for free in range(3):
            before = contents(store)
            client.config_set("maxmemory", 1)
            for change in changes_that_need_memory(store, new_record, new_entry):
                with pytest.raises(StoreUnavailableError, match="no memory"):
                    change()
                assert contents(store) == before
            changes_that_free_memory(store)[free]()
            if free == 0:
                assert store.record("s").entries == 0
            else:
                with pytest.raises(GoneSessionError):
                    store.record("s")
            client.config_set("maxmemory", 0)
            if free == 0:
                store.delete("s")
            fill(store, new_record, new_entry)
    assert store.append("s", 1, new_entry("u2"), 100.0).version == 2


def test_a_store_opens_while_redis_is_out_of_memory(
    own_redis: Any, open_at: Callable[..., RedisStore], new_record: Make, new_entry: Make
) -> None:
    fill(open_at(own_redis.url), new_record, new_entry)
    with own_redis.client() as client:
        client.config_set("maxmemory", 1)
    assert open_at(own_redis.url).record("s").entries == 1


def test_a_replica_of_redis_refuses_changes_and_answers_reads(
    own_redis: Any, open_at: Callable[..., RedisStore], new_record: Make, new_entry: Make
) -> None:
    store = open_at(own_redis.url)
    fill(store, new_record, new_entry)
    before = contents(store)
    with own_redis.client() as client:
        client.replicaof(HOST, 1)
        for change in [
            *changes_that_need_memory(store, new_record, new_entry),
            *changes_that_free_memory(store),
        ]:
            with pytest.raises(StoreUnavailableError, match="refuses"):
                change()
            assert contents(store) == before
        client.replicaof("NO", "ONE")
    assert store.append("s", 1, new_entry("u2"), 100.0).version == 2


# --- lost connections -------------------------------------------------------------------------------------------------


class Cutter:
    """Stands between a store and Redis. Told to, it lets one request through and cuts the line before the answer."""

    def __init__(self, port: int) -> None:
        self._redis = port
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.cut_after: bytes | None = None
        self.cuts = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(near,), daemon=True).start()

    def _pass_on(self, near: socket.socket) -> None:
        with near, socket.create_connection((HOST, self._redis)) as far, contextlib.suppress(OSError):
            while request := near.recv(2**20):
                far.sendall(request)
                # The answers here come in one piece: the parts are small and the machine is this one.
                answer = far.recv(2**20)
                if self.cut_after is not None and self.cut_after in request:
                    self.cut_after = None
                    self.cuts += 1
                    return
                near.sendall(answer)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def cutter(own_redis: Any) -> Iterator[Cutter]:
    between = Cutter(own_redis.port)
    yield between
    between.close()


def know_scripts(server: Any, store: RedisStore) -> None:
    """Let a server know all scripts, so that the first request that is cut off is one that does something."""
    with server.client() as client:
        for script in store._scripts.values():
            client.script_load(script.script)


@pytest.mark.parametrize("change", ["create", "append", "confirm", "reset", "save_snapshot", "touch", "delete"])
def test_a_change_whose_answer_was_lost_is_made_once_and_answered(
    cutter: Cutter, own_redis: Any, open_at: Callable[..., RedisStore], new_record: Make, new_entry: Make, change: str
) -> None:
    store, direct = open_at(f"redis://{HOST}:{cutter.port}/0"), open_at(own_redis.url)
    fill(direct, new_record, new_entry)
    know_scripts(own_redis, store)
    calls: dict[str, tuple[Callable[[], Any], Callable[[Any], bool]]] = {
        "create": (lambda: store.create(new_record("other")), lambda _: direct.record("other") == new_record("other")),
        "append": (lambda: store.append("s", 1, new_entry("u2"), 200.0), lambda answer: answer.entries == 2),
        "confirm": (lambda: store.confirm("s", 1, 0, ["x"], 200.0), lambda answer: answer.version == 2),
        "reset": (lambda: store.reset("s", 1, 200.0), lambda answer: answer.base == 2),
        "save_snapshot": (lambda: store.save_snapshot("s", Snapshot(1, 1, b"new")), lambda answer: answer is True),
        "touch": (lambda: store.touch("s", 200.0), lambda _: direct.record("s").used == 200.0),
        "delete": (lambda: store.delete("s"), lambda _: direct.count() == 0),
    }
    call, as_wanted = calls[change]
    cutter.cut_after = b"EVALSHA"
    answer = call()
    assert cutter.cuts == 1
    assert as_wanted(answer)
    if change in {"append", "confirm", "reset"}:
        assert answer == direct.record("s")
        assert answer.version == 2


def test_a_change_sent_again_is_still_refused_where_another_came_first(
    cutter: Cutter, own_redis: Any, open_at: Callable[..., RedisStore], new_record: Make, new_entry: Make
) -> None:
    store, direct = open_at(f"redis://{HOST}:{cutter.port}/0"), open_at(own_redis.url)
    fill(direct, new_record, new_entry)
    know_scripts(own_redis, store)
    direct.append("s", 1, new_entry("u2"), 200.0)
    cutter.cut_after = b"EVALSHA"
    with pytest.raises(StaleVersionError):
        store.append("s", 1, new_entry("u2"), 200.0)
    cutter.cut_after = b"EVALSHA"
    with pytest.raises(SessionExistsError):
        store.create(new_record())
    direct.delete("s")
    cutter.cut_after = b"EVALSHA"
    with pytest.raises(GoneSessionError):
        store.delete("s")
    assert cutter.cuts == 3


@pytest.mark.usefixtures("impatient")
def test_while_redis_is_away_everything_is_unavailable_and_afterwards_all_is_there(
    own_redis: Any, open_at: Callable[..., RedisStore], new_record: Make, new_entry: Make
) -> None:
    store = open_at(own_redis.url)
    fill(store, new_record, new_entry)
    before = contents(store)
    own_redis.kill()
    for call in [
        *changes_that_need_memory(store, new_record, new_entry),
        *changes_that_free_memory(store),
        lambda: contents(store),
    ]:
        with pytest.raises(StoreUnavailableError, match=r"cannot be reached \(ConnectionRefusedError\)") as caught:
            call()
        assert str(own_redis.port) not in shown(caught.value)
    own_redis.start()
    assert contents(store) == before
    assert store.append("s", 1, new_entry("u2"), 200.0).version == 2


@pytest.mark.usefixtures("impatient")
def test_a_redis_that_does_not_answer_is_given_up(
    own_redis: Any, open_at: Callable[..., RedisStore], new_record: Make, new_entry: Make
) -> None:
    store = open_at(own_redis.url)
    fill(store, new_record, new_entry)
    own_redis.send(signal.SIGSTOP)
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        store.record("s")
    own_redis.send(signal.SIGCONT)
    assert store.append("s", 1, new_entry("u2"), 200.0).version == 2


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_what_was_answered_before_redis_was_killed_is_there_when_it_is_back(
    own_redis: Any, open_at: Callable[..., RedisStore], new_record: Make, new_entry: Make
) -> None:
    store = open_at(own_redis.url)
    names = [f"s{thread}" for thread in range(6)]
    for name in names:
        store.create(new_record(name))
    told = dict.fromkeys(names, 0)

    def speak(name: str) -> None:
        with contextlib.suppress(StoreUnavailableError):
            while True:
                version = told[name]
                told[name] = store.append(name, version, new_entry(f"u{version}", "word " * 200), 100.0).version

    for _ in range(4):
        reached = sum(told.values())
        with ThreadPoolExecutor(len(names)) as pool:
            talks = [pool.submit(speak, name) for name in names]
            while sum(told.values()) < reached + 200:
                time.sleep(0.001)
            own_redis.kill()
            for talk in talks:
                talk.result(PATIENCE_S)
        own_redis.start()
        for name in names:
            record = store.record(name)
            # One that no answer came to may have been made.
            assert record.version in {told[name], told[name] + 1}
            log = [entry.utterance_id for entry in store.entries(name)]
            assert log == [f"u{number}" for number in range(record.version)]
            told[name] = record.version


CHANGES: dict[str, Callable[[SessionStore, Make, Make], object]] = {
    "create": lambda store, record, entry: store.create(
        record("other", version=2, entries=2), [entry("o"), entry("p")], Snapshot(0, 0, b"cut off")
    ),
    "append": lambda store, _, entry: store.append("s", 2, entry("u9", "cut off"), 200.0),
    "confirm": lambda store, _, __: store.confirm("s", 2, 0, ["cut", "off"], 200.0),
    "reset": lambda store, _, __: store.reset("s", 2, 200.0),
    "touch": lambda store, _, __: store.touch("s", 200.0),
    "save_snapshot": lambda store, _, __: store.save_snapshot("s", Snapshot(2, 2, b"cut off")),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_redis_had_written_in_part_when_it_died_spoils_nothing(
    own_redis: Any, open_at: Callable[..., RedisStore], new_record: Make, new_entry: Make, change: str
) -> None:
    store = open_at(own_redis.url)
    store.create(new_record(version=2, entries=2), [new_entry("u1"), new_entry("u2")])
    before = contents(store)
    own_redis.kill()
    (file,) = own_redis.folder.glob("appendonlydir/*.incr.aof")
    start = file.stat().st_size
    own_redis.start()
    CHANGES[change](store, new_record, new_entry)
    own_redis.kill()
    whole = file.read_bytes()
    # A change is complete with this; what follows it are changes of their own.
    complete = whole.find(b"EXEC\r\n", start)
    whole = whole[: complete + 6] if complete > 0 else whole
    # Between any two commands, and within each.
    ends = [place for place in range(start, len(whole)) if whole.startswith(b"\r\n*", place)]
    cuts = sorted({cut for end in ends for cut in (end + 2, end + 5)} - {len(whole)})
    assert cuts

    for cut, make_other in itertools.product(cuts, [True, False]):
        file.write_bytes(whole[:cut])
        own_redis.start()
        assert contents(store) == before
        answered = store.append("s", 2, new_entry("v1", "after it"), 300.0)
        if make_other:
            store.create(new_record("other"))
        log = store.entries("s")
        assert [entry.utterance_id for entry in log] == ["u1", "u2", "v1"]
        own_redis.kill()
        own_redis.start()
        assert store.record("s") == answered
        found = store.entries("s")
        if change == "confirm" and found[0].confirmed:
            # Redis's own fault: what was asked for, and never answered, was made after all.
            assert found[0].confirmed == ("cut", "off")
            found[0] = log[0]
        assert found == log
        assert [store.entry("s", name) for name in ["u1", "u2", "v1"]] == list(enumerate(store.entries("s")))
        assert store.entry("s", "u9") is None
        assert store.append("s", 3, new_entry("u9", "anew"), 300.0).entries == 4
        assert store.snapshot("s") is None
        if not make_other:
            # Made after all, and as a whole, or free.
            with contextlib.suppress(UnknownSessionError):
                assert store.record("other") == new_record("other", version=2, entries=2)
                assert store.entries("other") == [new_entry("o"), new_entry("p")]
                assert store.snapshot("other") == Snapshot(0, 0, b"cut off")
                store.delete("other")
            store.create(new_record("other"))
        assert store.record("other") == new_record("other")
        assert store.entries("other") == []
        assert store.snapshot("other") is None
        assert store.append("other", 0, new_entry("o"), 300.0).entries == 1
        assert store.count() == 2
        own_redis.kill()
