"""What the service keeps of sessions, and what it asks of a place to keep it.

A session's state is a function of its options and of its log, so the log is what must never be lost; a snapshot only
saves the time of learning it anew. Every change names the version it was made from and fails with StaleVersionError
when the session has moved on, so two processes that share a store cannot overwrite each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class SessionStoreError(Exception):
    """A store cannot do what was asked; the message says why, without addresses or paths."""


class UnknownSessionError(SessionStoreError):
    """There is no session of this id, and none is remembered."""


class GoneSessionError(SessionStoreError):
    """The session was deleted or has expired. reason: "deleted" or "expired"."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the session has been {reason}" if reason == "deleted" else "the session has expired")
        self.reason = reason


class SessionExistsError(SessionStoreError):
    """A session of this id exists already."""


class StaleVersionError(SessionStoreError):
    """The session is no longer at the version that a change was made from. current: the version it is at."""

    def __init__(self, current: int) -> None:
        super().__init__(f"the session is at version {current}")
        self.current = current


class StoreUnavailableError(SessionStoreError):
    """The store cannot be reached or has no room; nothing was changed. The caller may retry."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One accepted utterance.

    utterance_id: unique within the session since its last reset
    request:      SHA-256 of what was asked, by which a repeated request is known from another of the same id
    words:        the winner, as the normaliser's words
    confirmed:    the confirmed words, where a text was confirmed
    answer:       the answer that was sent, as bytes that only the service reads; sent again on repetition
    """

    utterance_id: str
    request: str
    words: tuple[str, ...]
    confirmed: tuple[str, ...] | None
    answer: bytes


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session without its log.

    session_id: what the client calls it
    version:    0 when made; each accepted utterance, confirmation or reset is one more
    bundle:     SHA-256 of the bundle whose networks it is a difference from
    options:    the session's options and weights, as JSON, fixed when it was made
    created, used: seconds since 1970, when it was made and last changed or read
    entries:    how many utterances its log holds
    base:       version at which the log began: 0, or that of the last reset
    """

    session_id: str
    version: int
    bundle: str
    options: Mapping[str, Any]
    created: float
    used: float
    entries: int
    base: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A session's state at some moment.

    version: of the session when the state was reached
    entries: how many entries of the log the state has taken in, in order
    state:   safetensors bytes of models.session_file
    """

    version: int
    entries: int
    state: bytes


class SessionStore(Protocol):
    """A durable place for sessions. Called from worker threads; every method is atomic and may block.

    When a method returns, what it was given survives the death of this process. Any method may raise
    StoreUnavailableError, and any but `create` UnknownSessionError or GoneSessionError.
    """

    def create(self, record: SessionRecord, entries: Sequence[Entry] = (), snapshot: Snapshot | None = None) -> None:
        """Add a session, with the log of one that was forked or imported. Raises SessionExistsError."""
        ...

    def record(self, session_id: str) -> SessionRecord:
        """A session without its log."""
        ...

    def entries(self, session_id: str, first: int = 0) -> list[Entry]:
        """The log from entry number `first` on, in order."""
        ...

    def entry(self, session_id: str, utterance_id: str) -> tuple[int, Entry] | None:
        """The number and the entry of an utterance; None where the log has none of that id."""
        ...

    def append(self, session_id: str, version: int, entry: Entry, used: float) -> SessionRecord:
        """Add an entry to the log of a session at `version`, which becomes one more. Raises StaleVersionError."""
        ...

    def confirm(self, session_id: str, version: int, number: int, words: Sequence[str], used: float) -> SessionRecord:
        """Set the confirmed words of an entry. Snapshots that have taken it in are dropped with it.

        Raises StaleVersionError.
        """
        ...

    def reset(self, session_id: str, version: int, used: float) -> SessionRecord:
        """Empty the log and drop the snapshot. Raises StaleVersionError."""
        ...

    def snapshot(self, session_id: str) -> Snapshot | None:
        """The newest snapshot, if there is one."""
        ...

    def save_snapshot(self, session_id: str, snapshot: Snapshot) -> bool:
        """Keep a snapshot in place of an older one. False, and nothing is changed, where it is out of date.

        Out of date is one of an older version than the newest snapshot, or of a log that was reset or changed since.
        """
        ...

    def touch(self, session_id: str, used: float) -> None:
        """Note that a session was used."""
        ...

    def delete(self, session_id: str) -> None:
        """Delete a session; it is remembered as deleted for a while."""
        ...

    def expire(self, before: float) -> list[str]:
        """Delete the sessions not used since `before`, and remember them as expired. Returns their ids."""
        ...

    def count(self) -> int:
        """How many sessions there are."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...
