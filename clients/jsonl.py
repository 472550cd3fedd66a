"""JSON Lines read strictly and one line at a time, from plain, gzip or xz files or standard input.

Decided here: the file is UTF-8, a byte order mark at its very beginning is skipped; lines end with LF or CR
LF and nothing else; blank lines are skipped but counted; NaN, Infinity and doubled keys are errors.
"""

import gzip
import json
import lzma
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Self

from .errors import InputFileError

MAX_LINE_BYTES = 64 * 2**20
_MOST_DIGITS = 1000  # beyond any finite score; Python itself refuses a few thousand
_BOM = b"\xef\xbb\xbf"
_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonLines:
    """The objects of a JSON Lines file, in order and once; at most one line is held in memory.

    path: a file's name; ending in .gz or .xz it is decompressed; "-" is standard input

    Iterating raises InputFileError, naming file and line, for what is no object in strict JSON.
    """

    def __init__(self, path: str) -> None:
        self.name = "<stdin>" if path == "-" else path
        self._raw: IO[bytes] | None = None
        try:
            if path == "-":
                self._lines: IO[bytes] = sys.stdin.buffer
                return
            self._raw = Path(path).open("rb")  # noqa: SIM115 - held for the iteration; close() or __exit__ ends it
        except OSError as error:
            raise InputFileError(f"{path}: cannot be read: {error.strerror}") from error
        if path.endswith(".gz"):
            self._lines = gzip.GzipFile(fileobj=self._raw)  # type: ignore[assignment]  # readable, which is enough
        elif path.endswith(".xz"):
            self._lines = lzma.LZMAFile(self._raw)  # noqa: SIM115 - as above
        else:
            self._lines = self._raw

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self._raw is not None:
            self._lines.close()
            self._raw.close()

    @property
    def total_bytes(self) -> int | None:
        """The size of the file as it lies on disk; None where it is not known, as of standard input."""
        if self._raw is None:
            return None
        return Path(self._raw.name).stat().st_size or None

    @property
    def position(self) -> int:
        """How many of `total_bytes` have been read."""
        return 0 if self._raw is None or self._raw.closed else self._raw.tell()

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        number = 0
        while raw := self._line(number):
            number += 1
            if number == 1:
                raw = raw.removeprefix(_BOM)
            if raw.isspace() or not raw:
                continue
            where = f"{self.name}:{number}"
            try:
                document = json_object(raw)
            except ValueError as error:
                raise InputFileError(f"{where}: {error}") from error
            yield number, document

    def _line(self, number: int) -> bytes:
        where = f"{self.name}:{number + 1}"
        try:
            raw = self._lines.readline(MAX_LINE_BYTES + 1)
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise InputFileError(f"{where}: the compressed file is broken or cut short here") from error
        except OSError as error:
            raise InputFileError(f"{where}: cannot be read: {error.strerror}") from error
        if len(raw) > MAX_LINE_BYTES:
            raise InputFileError(f"{where}: the line is longer than {MAX_LINE_BYTES >> 20} MiB")
        return raw


def strict_json(raw: bytes) -> Any:
    """The value of a JSON text. Raises ValueError, saying where, for all that is not strict JSON in UTF-8."""
    try:
        return json.loads(
            raw.decode("utf-8"), parse_constant=_no_constant, parse_int=_integer, object_pairs_hook=_unique
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start + 1} of the line)") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} (column {error.colno})") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def json_object(raw: bytes) -> dict[str, Any]:
    """The object of a JSON text. Raises ValueError for what is none."""
    document = strict_json(raw)
    if not isinstance(document, dict):
        raise ValueError(f"must hold an object, not {kind(document)}")  # noqa: TRY004 - one error for bad text
    return document


def kind(value: Any) -> str:
    """What a JSON value is, in words."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def text_fault(text: str) -> str | None:
    """What makes a string no text that can be sent or scored; None where nothing does."""
    if "\0" in text:
        return "holds a NUL character"
    if not text.isascii() and _SURROGATE.search(text):
        return "holds a lone surrogate, which is no character"
    return None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number; scores must be finite")


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is given twice in one object")
    return document
