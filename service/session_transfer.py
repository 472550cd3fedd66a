"""A session as one file: its state, its options and its log, as sealed safetensors."""

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from models.bundle import Bundle
from models.errors import SessionError
from models.session import SessionState
from models.session_file import dump_state, load_metadata, load_state
from service.errors import CorruptSnapshotError, ForeignBundleError, RefusedListError
from service.schemas import Name, Rescoring
from service.session_kinds import SessionKinds
from service.session_schemas import SessionSwitches, unknown_in_create
from service.session_store import Entry, SessionRecord

_FORMAT = 1
_STRICT = ConfigDict(strict=True, extra="forbid")


@with_config(_STRICT)
class _Settled(TypedDict):
    options: SessionSwitches
    rescoring: Rescoring


@with_config(_STRICT)
class _LogEntry(TypedDict):
    """answer: base64 of what the log holds."""

    id: Name
    request: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    words: list[str]
    confirmed: list[str] | None
    answer: str


@with_config(_STRICT)
class _Document(TypedDict):
    format: Literal[1]
    bundle: str
    version: Annotated[int, Field(ge=0, lt=2**53)]
    base: Annotated[int, Field(ge=0)]
    settled: _Settled
    log: list[_LogEntry]


_DOCUMENT: TypeAdapter[_Document] = TypeAdapter(_Document)


@dataclass(frozen=True, slots=True)
class Imported:
    """What a file holds: the parts of a record, the log, and the state after it."""

    version: int
    base: int
    settled: Mapping[str, Any]
    entries: tuple[Entry, ...]
    state: SessionState


def export(record: SessionRecord, entries: Sequence[Entry], state: SessionState) -> bytes:
    """A session as a file. Sessions that differ in nothing but their names and times give equal bytes."""
    document = {
        "format": _FORMAT,
        "bundle": record.bundle,
        "version": record.version,
        "base": record.base,
        "settled": dict(record.options),
        "log": [
            {
                "id": entry.utterance_id,
                "request": entry.request,
                "words": entry.words,
                "confirmed": entry.confirmed,
                "answer": base64.b64encode(entry.answer).decode(),
            }
            for entry in entries
        ],
    }
    text = orjson.dumps(document, option=orjson.OPT_SORT_KEYS).decode()
    return dump_state(state, {"session": text, "seal": _seal(text, state)})


def read(data: bytes, bundle: Bundle, kinds: SessionKinds) -> Imported:
    """The session in a file. Raises CorruptSnapshotError or ForeignBundleError."""
    text, seal = _metadata(data)
    try:
        document = _DOCUMENT.validate_json(text)
    except ValidationError as error:
        raise CorruptSnapshotError("the file's description of the session is not one") from error
    if document["bundle"] != bundle.sha256:
        raise ForeignBundleError("the session belongs to another bundle than the one served here")
    entries = tuple(map(_entry, document["log"]))
    _check_log(document, entries, bundle.rescorer.limits.max_words)
    settled = _settle(document["settled"], kinds)
    try:
        state = load_state(data, kinds.model(settled))
    except (SessionError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise CorruptSnapshotError(f"the session's state cannot be read: {error}") from error
    if _seal(text, state) != seal:
        raise CorruptSnapshotError("the file was changed after it was made")
    return Imported(document["version"], document["base"], settled, entries, state)


def _seal(text: str, state: SessionState) -> str:
    """SHA-256 of all that a file says."""
    return hashlib.sha256(dump_state(state, {"session": text})).hexdigest()


def _metadata(data: bytes) -> tuple[str, str]:
    try:
        metadata = load_metadata(data)
    except SessionError as error:
        raise CorruptSnapshotError(str(error)) from error
    text, seal = metadata.get("session"), metadata.get("seal")
    if not isinstance(text, str) or not isinstance(seal, str):
        raise CorruptSnapshotError("the file holds a state, but no session")
    return text, seal


def _entry(logged: _LogEntry) -> Entry:
    try:
        answer = base64.b64decode(logged["answer"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise CorruptSnapshotError("an answer in the file's log cannot be read") from error
    confirmed = logged["confirmed"]
    return Entry(
        logged["id"],
        logged["request"],
        tuple(logged["words"]),
        None if confirmed is None else tuple(confirmed),
        answer,
    )


def _check_log(document: _Document, entries: Sequence[Entry], max_words: int) -> None:
    if len({entry.utterance_id for entry in entries}) < len(entries):
        raise CorruptSnapshotError("the file's log holds an utterance twice")
    if document["version"] - document["base"] < len(entries):
        raise CorruptSnapshotError("the file's log is longer than its version allows")
    if any(max(len(entry.words), len(entry.confirmed or ())) > max_words for entry in entries):
        raise CorruptSnapshotError(f"the file's log holds a text of more than {max_words} words")


def _settle(settled: _Settled, kinds: SessionKinds) -> dict[str, Any]:
    try:
        if any(unknown_in_create({"options": settled["options"], "rescoring": settled["rescoring"]})):
            raise CorruptSnapshotError("the file's options are not those of a session")
        return kinds.settle({"options": settled["options"], "rescoring": settled["rescoring"]})
    except RefusedListError as error:
        raise CorruptSnapshotError(f"the file's options are not those of a session: {error}") from error
