"""What goes wrong around a file, and what an SQLite store makes of it."""

import contextlib
import logging
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from service.errors import StartError
from service.session_store import SessionStore, Snapshot, StoreUnavailableError
from service.sqlite_store import SqliteStore

Make = Callable[..., Any]
PATIENCE_S = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.sqlite3"


@pytest.fixture
def open_here(path: Path) -> Iterator[Callable[..., SqliteStore]]:
    opened = []

    def open_store(**options: Any) -> SqliteStore:
        opened.append(SqliteStore(path, **options))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


def contents(store: SessionStore) -> tuple[Any, ...]:
    return store.record("s"), store.entries("s"), store.snapshot("s"), store.count()


def every_change(store: SessionStore, new_record: Make, new_entry: Make) -> list[Callable[[], object]]:
    """Each way to change a store that holds session s at version 1."""
    return [
        lambda: store.create(new_record("other")),
        lambda: store.append("s", 1, new_entry("u9", answer=b"x" * 10_000), 200.0),
        lambda: store.confirm("s", 1, 0, ["x"], 200.0),
        lambda: store.reset("s", 1, 200.0),
        lambda: store.save_snapshot("s", Snapshot(1, 1, b"y" * 10_000)),
        lambda: store.touch("s", 200.0),
        lambda: store.delete("s"),
        lambda: store.expire(1000.0),
    ]


def fill(store: SessionStore, new_record: Make, new_entry: Make) -> None:
    store.create(new_record(version=1, entries=1), [new_entry("u1")], Snapshot(1, 1, b"state"))


# --- opening ----------------------------------------------------------------------------------------------------------


def test_the_folders_are_made_and_others_may_not_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "some" / "folders" / "sessions.sqlite3"
    SqliteStore(path).close()
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


def test_every_commit_is_synced_and_goes_to_the_write_ahead_log(open_here: Callable[..., SqliteStore]) -> None:
    connection = open_here()._connection
    assert connection is not None
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_store_in_memory_is_empty_each_time(new_record: Make) -> None:
    for _ in range(2):
        store = SqliteStore(None)
        assert store.count() == 0
        store.create(new_record())
        store.close()


@pytest.mark.parametrize(
    "content",
    [b"nothing of the kind " * 500, b"SQLite format 3\x00" + b"\xff" * 8000, b"xy"],
    ids=["text", "only-the-first-words", "two-bytes"],
)
def test_a_file_that_is_no_database_is_named_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StartError, match=r"sessions\.sqlite3: .*database"):
        SqliteStore(path)
    assert path.read_bytes() == content


def test_another_programs_database_is_left_alone(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE sessions (id)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StartError, match=r"sessions\.sqlite3: .*another program"):
        SqliteStore(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_newer_format_is_refused(path: Path) -> None:
    SqliteStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(StartError, match=r"sessions\.sqlite3: .*format 2.*newer"):
        SqliteStore(path)


def test_a_path_that_cannot_be_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in [tmp_path, tmp_path / "file" / "sessions.sqlite3", tmp_path / ("x" * 300), tmp_path / "nul\0"]:
        with pytest.raises(StartError, match="cannot be opened") as caught:
            SqliteStore(path)
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)


def test_many_may_open_a_new_file_at_once(path: Path) -> None:
    for turn in range(10):
        barrier = threading.Barrier(8)
        new = path.with_name(f"{turn}.sqlite3")

        def open_together(new: Path = new, barrier: threading.Barrier = barrier) -> int:
            barrier.wait(PATIENCE_S)
            store = SqliteStore(new)
            count = store.count()
            store.close()
            return count

        with ThreadPoolExecutor(8) as pool:
            assert [opened.result() for opened in [pool.submit(open_together) for _ in range(8)]] == [0] * 8


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    ["state = x'00'", "state = zeroblob(5)", "version = 0", "entries = 0", "sha256 = ''", "state = 'text'"],
)
def test_a_damaged_snapshot_counts_as_none_and_is_told(
    open_here: Callable[..., SqliteStore],
    path: Path,
    new_record: Make,
    new_entry: Make,
    caplog: pytest.LogCaptureFixture,
    damage: str,
) -> None:
    store = open_here()
    fill(store, new_record, new_entry)
    store.close()
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE snapshots SET {damage}")  # noqa: S608 - a word of this test's own
    connection.commit()
    connection.close()

    store = open_here()
    with caplog.at_level(logging.WARNING):
        assert store.snapshot("s") is None
    assert "snapshot is damaged" in caplog.text
    assert store.entries("s") == [new_entry("u1")]
    # As if there were none: one of an older version is taken too.
    assert store.save_snapshot("s", Snapshot(0, 0, b"older"))
    assert store.snapshot("s") == Snapshot(0, 0, b"older")


@pytest.mark.parametrize("of", ["a-byte-of-the-state", "a-page"])
def test_damage_on_the_disk_is_noticed(
    open_here: Callable[..., SqliteStore], path: Path, new_record: Make, new_entry: Make, of: str
) -> None:
    store = open_here()
    fill(store, new_record, new_entry)
    # Large enough for pages of its own.
    assert store.save_snapshot("s", Snapshot(1, 1, b"marked!" * 6000))
    store.close()
    content = bytearray(path.read_bytes())
    middle = content.index(b"marked!", len(content) // 2)
    if of == "a-page":
        # A page of a large value begins with the number of the next.
        start = middle // 4096 * 4096
        content[start : start + 4096] = b"\xff" * 4096
    else:
        content[middle] ^= 1
    path.write_bytes(content)

    store = open_here()
    assert store.snapshot("s") is None
    assert store.entries("s") == [new_entry("u1")]


def test_a_database_of_which_only_the_beginning_is_left_is_an_error(
    open_here: Callable[..., SqliteStore], path: Path, new_record: Make, new_entry: Make
) -> None:
    store = open_here()
    fill(store, new_record, new_entry)
    store.close()
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    store = open_here()
    for call in [lambda: store.record("s"), lambda: store.entries("s"), store.count, lambda: store.delete("s")]:
        with pytest.raises(StoreUnavailableError, match="damaged") as caught:
            call()
        assert "sqlite3" not in str(caught.value)


def test_an_entry_that_cannot_be_read_is_an_error_and_no_crash(
    open_here: Callable[..., SqliteStore], path: Path, new_record: Make, new_entry: Make
) -> None:
    store = open_here()
    fill(store, new_record, new_entry)
    connection = sqlite3.connect(path)
    for words in ["{", "3", "[3]", "'", ""]:
        connection.execute("UPDATE entries SET confirmed = ?", (words or None,))
        connection.commit()
        if words:
            with pytest.raises(StoreUnavailableError, match="damaged"):
                store.entries("s")
    connection.close()
    assert store.entries("s") == [new_entry("u1")]


# --- others that write ------------------------------------------------------------------------------------------------


def test_while_another_process_writes_reading_goes_on_and_changes_are_refused(
    open_here: Callable[..., SqliteStore], path: Path, new_record: Make, new_entry: Make
) -> None:
    store = open_here(patience_s=0.01)
    fill(store, new_record, new_entry)
    before = contents(store)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("UPDATE sessions SET version = 77")
    for change in every_change(store, new_record, new_entry):
        with pytest.raises(StoreUnavailableError, match="locked"):
            change()
        assert contents(store) == before
    other.execute("ROLLBACK")
    other.close()
    assert store.append("s", 1, new_entry("u2"), 200.0).version == 2


def test_a_short_wait_for_another_process_is_no_error(
    open_here: Callable[..., SqliteStore], path: Path, new_record: Make, new_entry: Make
) -> None:
    store = open_here(patience_s=PATIENCE_S)
    fill(store, new_record, new_entry)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.1, lambda: other.execute("COMMIT"))
    timer.start()
    assert store.append("s", 1, new_entry("u2"), 200.0).version == 2
    timer.join()
    other.close()


# --- no room ----------------------------------------------------------------------------------------------------------


def as_root(program: str, *arguments: str) -> bool:
    """Whether a program could be run, and ended well."""
    found = shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin")
    return found is not None and subprocess.run([found, *arguments], check=False, capture_output=True).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not as_root("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)):
        pytest.skip("mounting a small file system is not allowed here")
    yield folder
    assert as_root("umount", "--lazy", str(folder))


def fill_disk(folder: Path) -> Path:
    """A file that takes up all the room there is."""
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    assert shutil.disk_usage(folder).free == 0
    return ballast


def test_a_full_disk_changes_nothing_and_room_mends_it(small_disk: Path, new_record: Make, new_entry: Make) -> None:
    store = SqliteStore(small_disk / "sessions.sqlite3")
    fill(store, new_record, new_entry)
    before = contents(store)
    ballast = fill_disk(small_disk)
    # What is small may still find room in what the write-ahead log has already.
    large = b"x" * 900_000
    changes: list[Callable[[], object]] = [
        lambda: store.append("s", 1, new_entry("u9", answer=large), 200.0),
        lambda: store.save_snapshot("s", Snapshot(1, 1, large)),
        lambda: store.create(new_record("other", version=1, entries=1), [new_entry("u", answer=large)]),
    ]
    for change in changes * 2:
        with pytest.raises(StoreUnavailableError, match="no room"):
            change()
        assert contents(store) == before
    ballast.unlink()
    assert store.append("s", 1, new_entry("u2", answer=b"x" * 300_000), 200.0).version == 2
    store.close()
    store = SqliteStore(small_disk / "sessions.sqlite3")
    assert [entry.utterance_id for entry in store.entries("s")] == ["u1", "u2"]
    store.close()


def test_a_full_disk_is_told_when_opening(small_disk: Path) -> None:
    fill_disk(small_disk)
    with pytest.raises(StartError, match=r"sessions\.sqlite3: .*(no room|cannot be)"):
        SqliteStore(small_disk / "sessions.sqlite3")


def test_a_read_only_disk_is_told_when_opening(small_disk: Path) -> None:
    SqliteStore(small_disk / "sessions.sqlite3").close()
    assert as_root("mount", "-o", "remount,ro", str(small_disk))
    for name in ["sessions.sqlite3", "new.sqlite3"]:
        with pytest.raises(StartError, match=rf"{name}: the session store cannot be opened: .*([Rr]ead-only|may not)"):
            SqliteStore(small_disk / name)


# No file may grow beyond 1,000,000 bytes: to the process this is a disk that is full. Prints what it was told is kept.
GROWING = """
import resource, sys
from pathlib import Path
from service.session_store import Entry, SessionRecord, Snapshot, StoreUnavailableError
from service.sqlite_store import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
store.create(SessionRecord("s", 0, "b", {}, 1.0, 1.0, 0, 0))
def speak(version):
    return store.append("s", version, Entry(f"u{version}", "r", ("w",), None, b"a" * 9000), 1.0).version
free = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, free[1]))
version = 0
try:
    while version < 1000:
        version = speak(version)
except StoreUnavailableError as error:
    print(error)
for _ in range(3):
    try:
        store.save_snapshot("s", Snapshot(version, version, b"z" * 1_000_000))
    except StoreUnavailableError:
        assert store.record("s").version == len(store.entries("s")) == version
        assert store.snapshot("s") is None
    else:
        raise SystemExit("there was room")
resource.setrlimit(resource.RLIMIT_FSIZE, free)
for _ in range(3):
    version = speak(version)
print(version, flush=True)
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_what_was_kept_before_and_after_there_was_no_room_is_there(
    path: Path, open_here: Callable[..., SqliteStore]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GROWING, str(path)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.stderr == ""
    trouble, version = done.stdout.splitlines()
    assert trouble.startswith("the session store ")
    assert str(path) not in trouble
    assert 10 < int(version) < 100
    store = open_here()
    assert store.record("s").version == int(version)
    assert [entry.utterance_id for entry in store.entries("s")] == [f"u{number}" for number in range(int(version))]
