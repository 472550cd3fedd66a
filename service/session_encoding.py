"""How the parts of a session are written down, whichever store keeps them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from service.session_store import Entry, SessionRecord, Snapshot, StoreUnavailableError

# Deleted and expired sessions are told from unknown ones as long as fewer than this many went after them.
REMEMBERED = 100_000


class DamagedStoreError(StoreUnavailableError):
    """What the store holds cannot be read back."""

    def __init__(self) -> None:
        super().__init__("what the session store holds is damaged")


def check_new(record: SessionRecord, entries: Sequence[Entry], snapshot: Snapshot | None) -> None:
    """Raise ValueError where the parts of a new session do not fit each other."""
    if record.entries != len(entries):
        raise ValueError(f"the record counts {record.entries} entries, there are {len(entries)}")
    if len({entry.utterance_id for entry in entries}) != len(entries):
        raise ValueError("two entries are of the same utterance")
    if not 0 <= record.base <= record.version:
        raise ValueError(f"version {record.version} is before the log's beginning at {record.base}")
    if snapshot is not None and not (
        record.base <= snapshot.version <= record.version and 0 <= snapshot.entries <= len(entries)
    ):
        raise ValueError("the snapshot is of another log")


def json_of(value: Mapping[str, Any] | Sequence[str]) -> str:
    """JSON in one line of ASCII. Raises ValueError where a number is not finite."""
    return json.dumps(
        dict(value) if isinstance(value, Mapping) else list(value), allow_nan=False, separators=(",", ":")
    )


def words_of(text: str | bytes | None) -> tuple[str, ...] | None:
    """Words that json_of has written; None where there are none. Raises DamagedStoreError."""
    if not text:
        return None
    words = value_of(text)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise DamagedStoreError
    return tuple(words)


def value_of(text: str | bytes) -> Any:
    """What json_of has written. Raises DamagedStoreError."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise DamagedStoreError from error


def digest(snapshot: Snapshot) -> str:
    """SHA-256 of all parts of a snapshot, in hexadecimal digits."""
    sha256 = hashlib.sha256(f"{snapshot.version} {snapshot.entries}\n".encode())
    sha256.update(snapshot.state)
    return sha256.hexdigest()
