"""What an accepted utterance leaves in a session's log, and how it is read back."""

import hashlib
import zlib
from collections.abc import Mapping
from typing import Any

import orjson

from service.errors import CorruptSnapshotError
from service.session_schemas import SessionRescoreRequest
from service.session_store import Entry

# Beside texts and answer: a hash, numbers, and what a store adds.
_ENTRY_BYTES = 256
# An imported log is somebody else's word; an answer that unpacks into more than this was never given.
_MAX_ANSWER_BYTES = 2**28
_LEVEL = 1


def fingerprint(request: SessionRescoreRequest) -> str:
    """SHA-256 of what is asked, however it was written down: one that is equal is the same request repeated."""
    asked = {"log_base": "e", "word_scores": False, "compact": False, **request}
    if not request.get("best_only", True):
        # As if unsaid: logs are older than the option.
        del asked["best_only"]
    return hashlib.sha256(orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)).hexdigest()


def pack(answer: Mapping[str, Any]) -> bytes:
    """What of an answer is kept: all but whose it is, for a forked or imported session has another name.

    Packed, since a log holds one for each utterance and they repeat themselves.
    """
    return zlib.compress(orjson.dumps(dict(answer)), _LEVEL)


def unpack(packed: bytes) -> dict[str, Any]:
    """What was kept of an answer. Raises CorruptSnapshotError where these bytes never were an answer."""
    try:
        unpacker = zlib.decompressobj()
        answer = orjson.loads(unpacker.decompress(packed, _MAX_ANSWER_BYTES))
    except (zlib.error, orjson.JSONDecodeError) as error:
        raise CorruptSnapshotError("the session's log holds an answer that cannot be read") from error
    if not isinstance(answer, dict) or not isinstance(answer.get("version"), int):
        raise CorruptSnapshotError("the session's log holds an answer that is none")
    return answer


def answer_of(session_id: str, kept: Mapping[str, Any], *, repeated: bool) -> bytes:
    """The answer to a request, from what is kept of it."""
    return orjson.dumps({"session": session_id, "repeated": repeated, **kept})


def size_of(entry: Entry) -> int:
    """Bytes that an entry counts for in a log."""
    texts = (*entry.words, *(entry.confirmed or ()))
    return _ENTRY_BYTES + len(entry.answer) + len(entry.utterance_id) + sum(len(word) + 1 for word in texts)
