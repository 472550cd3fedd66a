"""Sessions in one SQLite file: what a single machine needs, without a program beside the service.

The file is in write-ahead mode and every commit is synced before it is reported (synchronous=FULL), so what a method
has returned survives the death of the process and of the machine. Several processes of one machine may share the
file; a folder that several machines mount is no place for it.

All threads share one connection, guarded by a lock. SQLite has one writer at a time whatever the number of
connections, and a lock wakes the next thread at once, where SQLite's own waiting polls and may starve one; a reader
waits for one commit at most. SQLite's waiting is left for other processes.
"""

import contextlib
import errno
import logging
import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from service.errors import StartError
from service.session_encoding import REMEMBERED, DamagedStoreError, check_new, digest, json_of, value_of, words_of
from service.session_store import (
    Entry,
    GoneSessionError,
    SessionExistsError,
    SessionRecord,
    Snapshot,
    StaleVersionError,
    StoreUnavailableError,
    UnknownSessionError,
)

_LOG = logging.getLogger(__name__)

# Marks the file as ours, so that no other program's database is written to: "nbst".
_APPLICATION_ID = 0x6E627374
_SCHEMA_VERSION = 1

# `number` of a session keeps its place in the other tables short; `confirmed_at` is the version that an entry's
# confirmed words came with. Of two tombstones the one of the lower number is the older.
_SCHEMA = """
CREATE TABLE sessions (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    version INTEGER NOT NULL,
    bundle TEXT NOT NULL,
    options TEXT NOT NULL,
    created REAL NOT NULL,
    used REAL NOT NULL,
    entries INTEGER NOT NULL,
    base INTEGER NOT NULL
);
CREATE INDEX sessions_by_use ON sessions (used);
CREATE TABLE entries (
    session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
    number INTEGER NOT NULL,
    utterance TEXT NOT NULL,
    request TEXT NOT NULL,
    words TEXT NOT NULL,
    confirmed TEXT,
    confirmed_at INTEGER,
    answer BLOB NOT NULL,
    PRIMARY KEY (session, number),
    UNIQUE (session, utterance)
);
CREATE TABLE snapshots (
    session INTEGER PRIMARY KEY REFERENCES sessions ON DELETE CASCADE,
    version INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    state BLOB NOT NULL
);
CREATE TABLE tombstones (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    reason TEXT NOT NULL
);
"""

# What may go wrong around the file, by SQLite's primary result code. All else is a fault of this module's own.
_TROUBLES = {
    sqlite3.SQLITE_BUSY: "is locked by another process",
    sqlite3.SQLITE_LOCKED: "is locked by another process",
    sqlite3.SQLITE_PROTOCOL: "is locked by another process",
    sqlite3.SQLITE_FULL: "has no room left",
    sqlite3.SQLITE_IOERR: "cannot be read or written",
    sqlite3.SQLITE_READONLY: "cannot be written to",
    sqlite3.SQLITE_PERM: "cannot be opened",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened",
    sqlite3.SQLITE_NOMEM: "has no memory left",
    sqlite3.SQLITE_CORRUPT: "is damaged",
    sqlite3.SQLITE_NOTADB: "is not a database",
}
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

# Bytes that the write-ahead log is cut down to once its content is in the database.
_LOG_BYTES = 64 * 2**20

_RECORD = "SELECT number, id, version, bundle, options, created, used, entries, base FROM sessions WHERE id = ?"
_SNAPSHOT = "SELECT version, entries, state, sha256 FROM snapshots WHERE session = ?"
_ENTRY = "SELECT number, utterance, request, words, confirmed, answer FROM entries WHERE session = ?"


class SqliteStore:
    """A SessionStore in a file.

    path:       the file; made, with its folder, when it is not there. None keeps everything in memory, for tests
    patience_s: seconds to wait for another process that writes
    remembered: how many deleted and expired sessions are remembered; older ones become unknown

    Raises StartError where the file cannot be used.
    """

    def __init__(self, path: Path | None, *, patience_s: float = 5.0, remembered: int = REMEMBERED) -> None:
        self._lock = threading.Lock()
        self._remembered = remembered
        self._connection: sqlite3.Connection | None = _open(path, patience_s)

    def create(self, record: SessionRecord, entries: Sequence[Entry] = (), snapshot: Snapshot | None = None) -> None:
        """Add a session, with the log of one that was forked or imported. Raises SessionExistsError."""
        check_new(record, entries, snapshot)
        with self._change() as connection:
            if _row(connection, "SELECT 1 FROM sessions WHERE id = ?", record.session_id):
                raise SessionExistsError("there is a session of this id already")
            session = connection.execute(
                "INSERT INTO sessions (id, version, bundle, options, created, used, entries, base)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    record.session_id,
                    record.version,
                    record.bundle,
                    json_of(record.options),
                    record.created,
                    record.used,
                    record.entries,
                    record.base,
                ),
            ).lastrowid
            assert session is not None
            for number, entry in enumerate(entries):
                _insert_entry(connection, session, number, entry)
            if snapshot is not None:
                _replace_snapshot(connection, session, snapshot)

    def record(self, session_id: str) -> SessionRecord:
        """A session without its log."""
        with self._read() as connection:
            _, record = _session(connection, session_id)
        return record

    def entries(self, session_id: str, first: int = 0) -> list[Entry]:
        """The log from entry number `first` on, in order."""
        with self._read() as connection:
            session, _ = _session(connection, session_id)
            rows = connection.execute(f"{_ENTRY} AND number >= ? ORDER BY number", (session, first)).fetchall()
        return [_entry(row) for row in rows]

    def entry(self, session_id: str, utterance_id: str) -> tuple[int, Entry] | None:
        """The number and the entry of an utterance; None where the log has none of that id."""
        with self._read() as connection:
            session, _ = _session(connection, session_id)
            row = _row(connection, f"{_ENTRY} AND utterance = ?", session, utterance_id)
        return (row[0], _entry(row)) if row else None

    def append(self, session_id: str, version: int, entry: Entry, used: float) -> SessionRecord:
        """Add an entry to the log of a session at `version`, which becomes one more. Raises StaleVersionError."""
        with self._change() as connection:
            session, before = _session_at(connection, session_id, version)
            taken = "SELECT 1 FROM entries WHERE session = ? AND utterance = ?"
            if _row(connection, taken, session, entry.utterance_id):
                raise ValueError("the log holds this utterance already")
            _insert_entry(connection, session, before.entries, entry)
            connection.execute("UPDATE sessions SET entries = entries + 1 WHERE number = ?", (session,))
            return _advance(connection, session_id, used)

    def confirm(self, session_id: str, version: int, number: int, words: Sequence[str], used: float) -> SessionRecord:
        """Set the confirmed words of an entry. Snapshots that have taken it in are dropped with it.

        Raises StaleVersionError.
        """
        with self._change() as connection:
            session, before = _session_at(connection, session_id, version)
            if not 0 <= number < before.entries:
                raise ValueError("the log has no entry of this number")
            connection.execute(
                "UPDATE entries SET confirmed = ?, confirmed_at = ? WHERE session = ? AND number = ?",
                (json_of(words), version + 1, session, number),
            )
            connection.execute("DELETE FROM snapshots WHERE session = ? AND entries > ?", (session, number))
            return _advance(connection, session_id, used)

    def reset(self, session_id: str, version: int, used: float) -> SessionRecord:
        """Empty the log and drop the snapshot. Raises StaleVersionError."""
        with self._change() as connection:
            session, _ = _session_at(connection, session_id, version)
            connection.execute("DELETE FROM entries WHERE session = ?", (session,))
            connection.execute("DELETE FROM snapshots WHERE session = ?", (session,))
            connection.execute("UPDATE sessions SET entries = 0, base = version + 1 WHERE number = ?", (session,))
            return _advance(connection, session_id, used)

    def snapshot(self, session_id: str) -> Snapshot | None:
        """The newest snapshot, if there is one; a damaged one counts as none, for the log says all that it said."""
        try:
            with self._read() as connection:
                session, _ = _session(connection, session_id)
                row = _row(connection, _SNAPSHOT, session)
        except DamagedStoreError:
            _LOG.warning("a session's snapshot cannot be read; its log is learnt anew")
            return None
        if row is None:
            return None
        version, entries, state, sha256 = row
        snapshot = Snapshot(version, entries, state)
        if isinstance(state, bytes) and digest(snapshot) == sha256:
            return snapshot
        _LOG.warning("a session's snapshot is damaged and is dropped; its log is learnt anew")
        with contextlib.suppress(StoreUnavailableError), self._change() as connection:
            connection.execute(
                "DELETE FROM snapshots WHERE session = ? AND version = ? AND sha256 = ?", (session, version, sha256)
            )
        return None

    def save_snapshot(self, session_id: str, snapshot: Snapshot) -> bool:
        """Keep a snapshot in place of an older one. False, and nothing is changed, where it is out of date.

        Out of date is one of an older version than the newest snapshot, or of a log that was reset or changed since.
        """
        with self._change() as connection:
            session, record = _session(connection, session_id)
            if _out_of_date(connection, session, record, snapshot):
                return False
            _replace_snapshot(connection, session, snapshot)
        return True

    def touch(self, session_id: str, used: float) -> None:
        """Note that a session was used; a time before the one that is known changes nothing."""
        with self._change() as connection:
            session, _ = _session(connection, session_id)
            connection.execute("UPDATE sessions SET used = max(used, ?) WHERE number = ?", (used, session))

    def delete(self, session_id: str) -> None:
        """Delete a session; it is remembered as deleted for a while."""
        with self._change() as connection:
            session, _ = _session(connection, session_id)
            connection.execute("DELETE FROM sessions WHERE number = ?", (session,))
            self._remember(connection, [session_id], "deleted")

    def expire(self, before: float) -> list[str]:
        """Delete the sessions not used since `before`, and remember them as expired. Returns their ids."""
        with self._change() as connection:
            rows = connection.execute("SELECT id FROM sessions WHERE used < ? ORDER BY used", (before,)).fetchall()
            connection.execute("DELETE FROM sessions WHERE used < ?", (before,))
            expired = [session_id for (session_id,) in rows]
            self._remember(connection, expired, "expired")
        return expired

    def count(self) -> int:
        """How many sessions there are."""
        with self._read() as connection:
            (sessions,) = connection.execute("SELECT count(*) FROM sessions").fetchone()
        return int(sessions)

    def close(self) -> None:
        """Let go of the file. Every later call but another `close` raises StoreUnavailableError."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _remember(self, connection: sqlite3.Connection, session_ids: Sequence[str], reason: str) -> None:
        connection.executemany(
            "INSERT OR REPLACE INTO tombstones (id, reason) VALUES (?, ?)", ((name, reason) for name in session_ids)
        )
        connection.execute(
            "DELETE FROM tombstones WHERE number <= (SELECT max(number) FROM tombstones) - ?", (self._remembered,)
        )

    @contextlib.contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        # A reader takes no lock on the file, so that a full disk or another process's writing does not stop it.
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextlib.contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        # The right to write comes first: what is read within is then still so when it is changed.
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        """All of a block's changes, or none where it raises."""
        with self._lock, _troubles():
            connection = self._connection
            if connection is None:
                raise StoreUnavailableError("the session store is closed")
            _roll_back(connection)
            connection.execute(begin)
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise


def _open(path: Path | None, patience_s: float) -> sqlite3.Connection:
    name = path or "the session store in memory"
    try:
        if path is not None:
            _make_file(path)
        connection = sqlite3.connect(
            path or ":memory:", timeout=patience_s, isolation_level=None, check_same_thread=False
        )
    except (OSError, ValueError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StartError(f"{name}: the session store cannot be opened: {reason}") from error
    try:
        _prepare(connection, on_disk=path is not None)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error) and (trouble := _trouble(error)):
            raise StartError(f"{name}: the session store {trouble}") from error
        if isinstance(error, StoreUnavailableError):
            raise StartError(f"{name}: {error}") from error
        raise
    return connection


def _make_file(path: Path) -> None:
    """See to it that there is a file to write to, which only its owner may read: it holds what people have said."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        # Made under another name, for to close a descriptor of the database itself would release the locks that
        # SQLite has on it in this process.
        descriptor, made = tempfile.mkstemp(dir=path.parent)
        os.close(descriptor)
        try:
            with contextlib.suppress(FileExistsError):
                os.link(made, path)
        finally:
            Path(made).unlink()
    if not os.access(path, os.R_OK | os.W_OK):
        raise PermissionError(errno.EACCES, "it may not be read and written")


def _prepare(connection: sqlite3.Connection, *, on_disk: bool) -> None:
    # Looked at before anything is written: another program's file stays as it is.
    connection.execute("BEGIN")
    try:
        _is_new(connection)
    finally:
        _roll_back(connection)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if on_disk and mode != "wal":
        raise StoreUnavailableError("the session store is on a file system without the shared memory it needs")
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been quicker.
        if _is_new(connection):
            for statement in _SCHEMA.split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        _roll_back(connection)
        raise


def _is_new(connection: sqlite3.Connection) -> bool:
    """Whether a database is still empty. Raises StoreUnavailableError where it is not one of ours."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not (tables or application or version):
        return True
    if application != _APPLICATION_ID:
        raise StoreUnavailableError("this is the database of another program, not a session store")
    if version > _SCHEMA_VERSION:
        raise StoreUnavailableError(
            f"the session store is of format {version}, which a newer release wrote;"
            f" this one knows formats up to {_SCHEMA_VERSION}"
        )
    return False


def _roll_back(connection: sqlite3.Connection) -> None:
    # SQLite has done so itself after some errors, such as a full disk.
    if connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


@contextlib.contextmanager
def _troubles() -> Iterator[None]:
    """Say of what SQLite reports around the file that the store is unavailable."""
    try:
        yield
    except sqlite3.Error as error:
        trouble = _trouble(error)
        if trouble is None:
            raise
        if _code(error) in _DAMAGED:
            raise DamagedStoreError from error
        raise StoreUnavailableError(f"the session store {trouble}") from error


def _trouble(error: sqlite3.Error) -> str | None:
    return _TROUBLES.get(_code(error))


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; -1 for what Python's own module complains about."""
    code: int = getattr(error, "sqlite_errorcode", -1)
    return code & 0xFF if code >= 0 else code


def _row(connection: sqlite3.Connection, query: str, *values: Any) -> tuple[Any, ...] | None:
    """The only row of an answer; None where there is none."""
    # All of it is fetched, for a statement that is not at its end keeps its transaction's view of the file.
    rows: list[tuple[Any, ...]] = connection.execute(query, values).fetchall()
    return rows[0] if rows else None


def _session(connection: sqlite3.Connection, session_id: str) -> tuple[int, SessionRecord]:
    """The number that a session has in the tables, and its record."""
    row = _row(connection, _RECORD, session_id)
    if row is None:
        tombstone = _row(connection, "SELECT reason FROM tombstones WHERE id = ?", session_id)
        if tombstone is None:
            raise UnknownSessionError("there is no such session")
        raise GoneSessionError(tombstone[0])
    number, name, version, bundle, options, created, used, entries, base = row
    return number, SessionRecord(name, version, bundle, value_of(options), created, used, entries, base)


def _session_at(connection: sqlite3.Connection, session_id: str, version: int) -> tuple[int, SessionRecord]:
    session, record = _session(connection, session_id)
    if record.version != version:
        raise StaleVersionError(record.version)
    return session, record


def _advance(connection: sqlite3.Connection, session_id: str, used: float) -> SessionRecord:
    connection.execute(
        "UPDATE sessions SET version = version + 1, used = max(used, ?) WHERE id = ?", (used, session_id)
    )
    _, record = _session(connection, session_id)
    return record


def _insert_entry(connection: sqlite3.Connection, session: int, number: int, entry: Entry) -> None:
    connection.execute(
        "INSERT INTO entries (session, number, utterance, request, words, confirmed, answer)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            session,
            number,
            entry.utterance_id,
            entry.request,
            json_of(entry.words),
            None if entry.confirmed is None else json_of(entry.confirmed),
            entry.answer,
        ),
    )


def _entry(row: tuple[Any, ...]) -> Entry:
    _, utterance_id, request, words, confirmed, answer = row
    return Entry(utterance_id, request, words_of(words) or (), words_of(confirmed), answer)


def _out_of_date(connection: sqlite3.Connection, session: int, record: SessionRecord, snapshot: Snapshot) -> bool:
    if not (record.base <= snapshot.version <= record.version and 0 <= snapshot.entries <= record.entries):
        return True
    newer = "SELECT 1 FROM snapshots WHERE session = ? AND version > ?"
    changed = "SELECT 1 FROM entries WHERE session = ? AND number < ? AND confirmed_at > ? LIMIT 1"
    return bool(
        _row(connection, newer, session, snapshot.version)
        or _row(connection, changed, session, snapshot.entries, snapshot.version)
    )


def _replace_snapshot(connection: sqlite3.Connection, session: int, snapshot: Snapshot) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO snapshots (session, version, entries, sha256, state) VALUES (?, ?, ?, ?, ?)",
        (session, snapshot.version, snapshot.entries, digest(snapshot), snapshot.state),
    )
