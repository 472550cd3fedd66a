"""How the bytes of a request are read, whatever its kind.

Reading is strict: true and "1.0" are no scores, NaN and infinity are refused however they are written, and so
are fields that are not documented. JSON leaves two things open, and both are decided here: of a key that an
object names twice the last one counts, and a NUL character is refused wherever a text may stand. A lone
surrogate is no JSON text.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any, Generic, TypeVar, cast

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from service.errors import FieldError, InvalidRequestError, NotJSONError
from service.json_pieces import cut
from service.problems import MAX_ERRORS
from service.settings import UTTERANCES_CAP

T = TypeVar("T")

MAX_NAME = 256
# Parsing this much takes a few milliseconds.
_LARGE_BYTES = 2**18
_MAX_SHOWN_KEY = 64
# What pydantic puts behind a path when it is the key itself that is wrong.
_OF_THE_KEY = "[key]"


class RequestReader(Generic[T]):
    """Turns the bytes of a body into a request of one kind.

    kind:    the TypedDict that the body is
    unknown: names the fields of a request that are not documented
    parts:   a field that holds an array of objects, and the TypedDict of these; a large body is read one by one
    """

    def __init__(
        self, kind: type[T], unknown: Callable[[T], Iterator[FieldError]], parts: tuple[str, type] | None = None
    ) -> None:
        self._adapter: TypeAdapter[T] = TypeAdapter(kind)
        self._unknown = unknown
        self._field = parts[0] if parts else ""
        self._part: TypeAdapter[Any] | None = TypeAdapter(parts[1]) if parts else None

    def read(self, body: bytes) -> T:
        """The request in a body. Raises NotJSONError, or InvalidRequestError naming fields and utterances."""
        request = self._read_by_parts(body, self._part) if self._part and len(body) > _LARGE_BYTES else None
        if request is None:
            try:
                request = self._adapter.validate_json(body)
            except ValidationError as error:
                raise _refusal(error, body) from None
        found = list(islice(self._unknown(request), MAX_ERRORS))
        if found:
            raise InvalidRequestError(f"{found[0].field}: {found[0].message}", errors=found)
        return request

    def _read_by_parts(self, body: bytes, part: TypeAdapter[Any]) -> T | None:
        """The request in a large body; None where it must be read as a whole.

        Of several parts that are wrong the first alone is reported.
        """
        pieces = cut(body, self._field)
        if pieces is None or len(pieces.items) > UTTERANCES_CAP:
            return None
        read, number, piece = [], 0, pieces.frame
        try:
            request: Any = self._adapter.validate_json(piece)
            for number, piece in enumerate(pieces.items):  # noqa: B007 - the refusal names it
                read.append(part.validate_json(piece))
        except ValidationError as error:
            if error.errors(include_url=False, include_input=False, include_context=False)[0]["type"] == "json_invalid":
                # Where it is no JSON is told by its place in the whole body.
                return None
            raise _refusal(error, piece, () if piece is pieces.frame else (self._field, number)) from None
        request[self._field] = read
        return cast("T", request)


def unknown(fields: Mapping[str, Any], kind: type, prefix: str, utterance: str | None = None) -> Iterator[FieldError]:
    """The fields of an object that its kind does not have. prefix: of their paths in the request."""
    known = field_names(kind)
    for name in fields:
        if name not in known:
            yield FieldError(prefix + field_path((name,)), "no such field", utterance)


@cache
def field_names(kind: type) -> frozenset[str]:
    """The names of a TypedDict's fields."""
    return frozenset(kind.__annotations__)


def field_path(location: tuple[int | str, ...]) -> str:
    """utterances[0].hypotheses[3] for ("utterances", 0, "hypotheses", 3); long keys are cut short."""
    out = ""
    for part in location:
        if isinstance(part, int):
            out += f"[{part}]"
        elif part != _OF_THE_KEY:
            name = part if len(part) <= _MAX_SHOWN_KEY else f"{part[:_MAX_SHOWN_KEY]}..."
            # Nobody's terminal shall act on a field's name.
            name = name if name.isprintable() else ascii(name)[1:-1]
            out += f".{name}" if out else name
    return out


def _refusal(
    error: ValidationError, body: bytes, where: tuple[int | str, ...] = ()
) -> NotJSONError | InvalidRequestError:
    """What is wrong with a body, or with a part of one. where: the part's place in the whole."""
    entries = error.errors(include_url=False, include_input=False, include_context=False)
    if entries[0]["type"] == "json_invalid":
        return NotJSONError(f"the body is no JSON: {entries[0]['msg'].removeprefix('Invalid JSON: ')}")
    found = []
    sent = pydantic_core.from_json(body)
    for entry in entries[:MAX_ERRORS]:
        location = where + entry["loc"]
        utterance = id_of(sent) if where else _utterance_id(sent, location)
        found.append(FieldError(field_path(location) or "the body", entry["msg"], utterance))
    more = f" (and {len(entries) - 1} more)" if len(entries) > 1 else ""
    return InvalidRequestError(f"{found[0].field}: {found[0].message}{more}", errors=found)


def _utterance_id(sent: Any, location: tuple[int | str, ...]) -> str | None:
    match location:
        case ("utterances", int(index), *_):
            utterance = sent["utterances"][index]
        case ("utterance", _, *_):
            utterance = sent["utterance"]
        case _:
            return None
    return id_of(utterance)


def id_of(utterance: Any) -> str | None:
    """The id of what should be an utterance; None where it has none that can be repeated."""
    name = utterance.get("id") if isinstance(utterance, dict) else None
    return name if isinstance(name, str) and len(name) <= MAX_NAME else None
