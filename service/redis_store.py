"""Sessions in Redis: one store that several replicas of the service share.

Each method is one Lua script, so it happens as a whole or not at all, and compares the version where the data is: a
replica that has missed a change cannot overwrite it. All names carry one hash tag, the prefix in braces, for the index
of last use has to change together with the sessions; on a cluster they share a slot.

Every change brings a token of its own, which stays with the session. Where a connection is lost before the answer,
the same change is sent again, and the script knows by the token that it was made already. A change that no answer
came to at all raises StoreUnavailableError although it may have been made; the session's version tells.

What Redis has to be set to; a warning is logged of the first three where it is not, if Redis says:

- appendonly yes, or a restart of Redis loses everything.
- appendfsync always. With everysec, its default, up to two seconds of what was answered are lost when Redis dies.
- maxmemory-policy noeviction, its default, or one that evicts only keys that have a time to live.
- aof-load-truncated no, and `redis-check-aof --fix` before a start that it refuses then. With yes, its default, a
  change that was being written when Redis died, and was never answered, may be found made after a second restart.
"""

import contextlib
import logging
import re
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NoReturn
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from service.errors import StartError
from service.redis_scripts import COMMON, SCRIPTS
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

_FORMAT = 1

# Seconds: for connecting, for an answer, until a call is given up, and between one attempt at it and the next.
_CONNECT_S = 2.0
_ANSWER_S = 3.0
_PATIENCE_S = 5.0
_PAUSES_S = (0.0, 0.05, 0.2, 0.5)
_CONNECTIONS = 64


class RedisStore:
    """A SessionStore in Redis.

    url:        redis://[[user]:password@]host[:port][/database], or rediss:// for TLS; options as redis-py knows them
    prefix:     what all names begin with, so that several services can share a database
    remembered: how many deleted and expired sessions are remembered; older ones become unknown

    Raises StartError where Redis cannot be used, and ValueError for a prefix that holds a brace. No message repeats
    the address.
    """

    def __init__(self, url: str, prefix: str = "nbest", *, remembered: int = REMEMBERED) -> None:
        if not prefix or set("{}") & set(prefix):
            raise ValueError("the prefix is empty or holds a brace")
        self._root = f"{{{prefix}}}:"
        self._remembered = remembered
        self._closed = False
        self._client = redis.Redis(connection_pool=_pool(url))
        self._scripts = {name: self._client.register_script(COMMON + text) for name, text in SCRIPTS.items()}
        try:
            self._check_server()
        except BaseException:
            self.close()
            raise

    def create(self, record: SessionRecord, entries: Sequence[Entry] = (), snapshot: Snapshot | None = None) -> None:
        """Add a session, with the log of one that was forked or imported. Raises SessionExistsError."""
        check_new(record, entries, snapshot)
        texts = [part for entry in entries for part in (entry.utterance_id, _encode(entry))]
        self._run(
            "create",
            record.session_id,
            _token(),
            record.version,
            record.bundle,
            json_of(record.options),
            repr(record.created),
            repr(record.used),
            record.base,
            record.entries,
            *texts,
            *(_snapshot_parts(snapshot) if snapshot is not None else ()),
        )

    def record(self, session_id: str) -> SessionRecord:
        """A session without its log."""
        return _record(session_id, self._run("record", session_id))

    def entries(self, session_id: str, first: int = 0) -> list[Entry]:
        """The log from entry number `first` on, in order."""
        (texts,) = self._run("entries", session_id, max(first, 0))
        return [_decode(text) for text in texts]

    def entry(self, session_id: str, utterance_id: str) -> tuple[int, Entry] | None:
        """The number and the entry of an utterance; None where the log has none of that id."""
        found = self._run("entry", session_id, utterance_id)
        return (int(found[0]), _decode(found[1])) if found else None

    def append(self, session_id: str, version: int, entry: Entry, used: float) -> SessionRecord:
        """Add an entry to the log of a session at `version`, which becomes one more. Raises StaleVersionError."""
        change = (_token(), version, repr(used), entry.utterance_id, _encode(entry))
        return _record(session_id, self._run("append", session_id, *change))

    def confirm(self, session_id: str, version: int, number: int, words: Sequence[str], used: float) -> SessionRecord:
        """Set the confirmed words of an entry. Snapshots that have taken it in are dropped with it.

        Raises StaleVersionError.
        """
        if number < 0:
            raise ValueError("the log has no entry of this number")
        change = (_token(), version, repr(used), number, json_of(words))
        return _record(session_id, self._run("confirm", session_id, *change))

    def reset(self, session_id: str, version: int, used: float) -> SessionRecord:
        """Empty the log and drop the snapshot. Raises StaleVersionError."""
        record = _record(session_id, self._run("reset", session_id, _token(), version, repr(used)))
        # The log counts no more; it only takes up room until it is overwritten.
        with contextlib.suppress(StoreUnavailableError):
            self._run("sweep", session_id)
        return record

    def snapshot(self, session_id: str) -> Snapshot | None:
        """The newest snapshot, if there is one; a damaged one counts as none, for the log says all that it said."""
        found = self._run("snapshot", session_id)
        if not found:
            return None
        version, entries, sha256, state = found[0]
        with contextlib.suppress(TypeError, ValueError):
            snapshot = Snapshot(int(version), int(entries), state)
            if digest(snapshot).encode() == sha256:
                return snapshot
        _LOG.warning("a session's snapshot is damaged and is dropped; its log is learnt anew")
        with contextlib.suppress(StoreUnavailableError):
            self._run("drop_snapshot", session_id, sha256 or b"")
        return None

    def save_snapshot(self, session_id: str, snapshot: Snapshot) -> bool:
        """Keep a snapshot in place of an older one. False, and nothing is changed, where it is out of date.

        Out of date is one of an older version than the newest snapshot, or of a log that was reset or changed since.
        """
        (kept,) = self._run("save_snapshot", session_id, *_snapshot_parts(snapshot))
        return bool(kept)

    def touch(self, session_id: str, used: float) -> None:
        """Note that a session was used; a time before the one that is known changes nothing."""
        self._run("touch", session_id, repr(used))

    def delete(self, session_id: str) -> None:
        """Delete a session; it is remembered as deleted for a while."""
        self._run("delete", session_id, _token(), self._remembered)

    def expire(self, before: float) -> list[str]:
        """Delete the sessions not used since `before`, and remember them as expired. Returns their ids.

        Where the connection was lost before the answer, the ids that went then are not among those returned.
        """
        (expired,) = self._run("expire", "", repr(before), self._remembered)
        return [session_id.decode() for session_id in expired]

    def count(self) -> int:
        """How many sessions there are."""
        (sessions,) = self._run("count", "")
        return int(sessions)

    def close(self) -> None:
        """Let go of the connections. Every later call but another `close` raises StoreUnavailableError."""
        self._closed = True
        self._client.close()
        self._client.connection_pool.disconnect()

    def _run(self, script: str, session_id: str, *arguments: str | bytes | int) -> list[Any]:
        """What a script answered after "ok"; any other answer is raised as the error that it stands for."""
        if self._closed:
            raise StoreUnavailableError("the session store is closed")
        call = self._scripts[script]
        answer: list[Any] = _insist(lambda: call(keys=[self._root], args=[session_id, *arguments]))
        outcome, *values = answer
        if outcome != b"ok":
            _refuse(outcome, values)
        return values

    def _check_server(self) -> None:
        try:
            (known,) = self._run("open", "", _FORMAT)
            settings = _insist(self._settings)
        except StoreUnavailableError as error:
            raise StartError(str(error)) from None
        except UnicodeError:
            raise StartError("the session store's redis address is malformed") from None
        if known != str(_FORMAT).encode():
            raise StartError(
                f"the session store is of format {known.decode(errors='replace')}; this release knows format {_FORMAT}"
            )
        if settings.get("appendonly") == "no":
            _LOG.warning("a restart of Redis will lose all sessions: its appendonly is no")
        elif settings.get("appendfsync", "always") != "always":
            _LOG.warning(
                "what was answered in the last two seconds before Redis dies may be lost: its appendfsync is %s",
                settings["appendfsync"],
            )
        if settings.get("maxmemory-policy", "").startswith("allkeys"):
            _LOG.warning("Redis may drop sessions when it is full: its maxmemory-policy is one for all keys")

    def _settings(self) -> dict[str, str]:
        """Settings by name; none where Redis does not tell this account."""
        settings: dict[str, str] = {}
        with contextlib.suppress(redis.ResponseError):
            for pattern in ("append*", "maxmemory-policy"):
                settings |= {str(name): str(value) for name, value in self._client.config_get(pattern).items()}
        return settings


def _pool(url: str) -> redis.BlockingConnectionPool:
    # redis-py has no types for these.
    parse: Callable[[str], dict[str, Any]] = redis.connection.parse_url
    make: Callable[..., redis.BlockingConnectionPool] = redis.BlockingConnectionPool
    try:
        options = parse(url)
        path = urlsplit(url).path
    except ValueError:
        raise StartError("the session store's redis address is malformed") from None
    if path.strip("/") and "db" not in options:
        raise StartError("the session store's redis address names a database that is no number")
    defaults = {
        "socket_connect_timeout": _CONNECT_S,
        "socket_timeout": _ANSWER_S,
        "socket_keepalive": True,
        "max_connections": _CONNECTIONS,
        "timeout": _ANSWER_S,
    }
    # Not for the address to say. Nothing is sent again by redis-py itself: only this module knows what may be.
    fixed = {"decode_responses": False, "encoding": "utf-8", "protocol": 2, "retry": Retry(NoBackoff(), 0)}
    pool = make(**{**defaults, **options, **fixed})
    try:
        pool.connection_class(**pool.connection_kwargs)
    except TypeError:
        raise StartError("the session store's redis address has an option that redis-py does not know") from None
    return pool


def _insist(call: Callable[[], Any]) -> Any:
    """What a call returns. It is made again, for a moment, where the connection fails, and must bear that."""
    deadline = time.monotonic() + _PATIENCE_S
    pauses = iter(_PAUSES_S)
    while True:
        try:
            return call()
        except redis.RedisError as error:
            pause = next(pauses, None)
            if pause is None or not _may_pass(error) or time.monotonic() > deadline:
                # redis-py's messages, which would be shown as the cause, hold the address.
                raise StoreUnavailableError(_trouble(error)) from None
        time.sleep(pause)


def _may_pass(error: redis.RedisError) -> bool:
    return isinstance(error, redis.ConnectionError | redis.TimeoutError) and not isinstance(
        error, redis.AuthenticationError | redis.exceptions.AuthorizationError
    )


def _trouble(error: redis.RedisError) -> str:
    """What is wrong, in words of our own: Redis's may repeat the address or what a command was given."""
    if isinstance(error, redis.OutOfMemoryError):
        return "the session store has no memory left"
    if isinstance(error, redis.ConnectionError | redis.TimeoutError):
        root: BaseException = error
        while root.__cause__ or root.__context__:
            root = root.__cause__ or root.__context__ or root
        return f"the session store cannot be reached ({type(root).__name__})"
    code = re.match("[A-Z]+(?= )", str(error))
    return f"the session store refuses ({code[0] if code else type(error).__name__})"


def _refuse(outcome: bytes, values: Sequence[Any]) -> NoReturn:
    match outcome:
        case b"unknown":
            raise UnknownSessionError("there is no such session")
        case b"gone":
            raise GoneSessionError(values[0].decode().split()[0])
        case b"stale":
            raise StaleVersionError(int(values[0]))
        case b"exists":
            raise SessionExistsError("there is a session of this id already")
        case b"taken":
            raise ValueError("the log holds this utterance already")
        case b"beyond":
            raise ValueError("the log has no entry of this number")
        case _:
            raise AssertionError(outcome)


def _token() -> str:
    return uuid.uuid4().hex


def _record(session_id: str, values: Sequence[Any]) -> SessionRecord:
    ((version, bundle, options, created, used, entries, base),) = values
    return SessionRecord(
        session_id,
        int(version),
        bundle.decode(),
        value_of(options),
        float(created),
        float(used),
        int(entries),
        int(base),
    )


def _snapshot_parts(snapshot: Snapshot) -> tuple[str | bytes | int, ...]:
    return snapshot.version, snapshot.entries, digest(snapshot), snapshot.state


def _encode(entry: Entry) -> bytes:
    """Lines: the confirmed words, which alone may change; what was asked; the winner; and the answer's own lines."""
    confirmed = "" if entry.confirmed is None else json_of(entry.confirmed)
    asked = json_of((entry.utterance_id, entry.request))
    return f"{confirmed}\n{asked}\n{json_of(entry.words)}\n".encode() + entry.answer


def _decode(text: bytes) -> Entry:
    try:
        confirmed, asked, words, answer = text.split(b"\n", 3)
        utterance_id, request = value_of(asked)
    except (TypeError, ValueError) as error:
        raise DamagedStoreError from error
    return Entry(utterance_id, request, words_of(words) or (), words_of(confirmed), answer)
