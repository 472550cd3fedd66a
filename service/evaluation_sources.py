"""Where an evaluation's utterances come from: a document that has arrived, or the lines of a body as they arrive."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Protocol, TypeVar

from pydantic_core import from_json

from service.engine import SMALL_BYTES, Engine
from service.errors import FieldError, InvalidRequestError, NotJSONError
from service.evaluation import Given
from service.evaluation_lines import Line, Lines
from service.evaluation_schemas import EvaluationSettings, unknown_in_line, unknown_in_settings
from service.request_reader import RequestReader, id_of
from service.schemas import Utterance

T = TypeVar("T")

_SETTINGS = RequestReader(EvaluationSettings, unknown_in_settings)
_UTTERANCE = RequestReader(Utterance, unknown_in_line)
_LINE = "line {}"


class Source(Protocol):
    """Gives utterances, once."""

    @property
    def ended(self) -> bool:
        """Whether all that they come from has been received."""
        ...

    def __aiter__(self) -> AsyncIterator[Given]:
        """The utterances, in order."""
        ...


class Listed:
    """The utterances of one document. size: of the document, in bytes."""

    ended = True

    def __init__(self, utterances: list[Utterance], size: int) -> None:
        self._utterances = utterances
        self._size = size // len(utterances)

    async def __aiter__(self) -> AsyncIterator[Given]:
        for number, utterance in enumerate(self._utterances):
            yield Given(utterance, number, "utterances[{}]", self._size)


class Streamed:
    """The utterances of the lines after the first; each is checked before the next is read."""

    def __init__(self, lines: Lines, engine: Engine) -> None:
        self._lines = lines
        self._engine = engine

    @property
    def ended(self) -> bool:
        """Whether the whole body has been received."""
        return self._lines.ended

    async def __aiter__(self) -> AsyncIterator[Given]:
        while (line := await self._lines.next()) is not None:
            size = len(line.content)
            utterance = await self._engine.aside(size > SMALL_BYTES, partial(_read, _UTTERANCE, line))
            yield Given(utterance, line.number, _LINE, size)


async def read_settings(lines: Lines) -> EvaluationSettings:
    """The settings in the first line. Raises InvalidRequestError or NotJSONError, naming line and field."""
    line = await lines.next()
    if line is None:
        raise InvalidRequestError("the body is empty; its first line holds the settings, such as {}")
    try:
        return _read(_SETTINGS, line)
    except InvalidRequestError as error:
        if any(".hypotheses" in found.field for found in error.errors):
            raise InvalidRequestError(
                f"{_LINE.format(line.number)}: the first line holds the settings, such as {{}}, and no utterance"
            ) from error
        raise


def _read(reader: RequestReader[T], line: Line) -> T:
    where = _LINE.format(line.number)
    try:
        return reader.read(line.content)
    except NotJSONError as error:
        raise NotJSONError(f"{where}: {error}") from error
    except InvalidRequestError as error:
        name = id_of(from_json(line.content))
        found = [FieldError(f"{where}.{entry.field}", entry.message, name) for entry in error.errors]
        raise InvalidRequestError(f"{where}: {error}", errors=found) from error
