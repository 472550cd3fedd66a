"""Where results go: a file that appears whole or not at all, or a stream of whole lines."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

from .errors import InputFileError, OutputFileError, UsageError
from .files import ResultLine, result_line
from .jsonl import json_object


class Sink(Protocol):
    """Takes whole lines, in order."""

    def write(self, lines: bytes) -> None:
        """Take lines, the last one ended too."""

    def commit(self) -> None:
        """All lines have been taken."""


class StreamSink:
    """A stream, such as standard output, or a device: lines go out as they come."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def write(self, lines: bytes) -> None:
        """Write and flush."""
        self._stream.write(lines)
        self._stream.flush()

    def commit(self) -> None:
        """Nothing is left to do."""


class PartFile:
    """A file written beside its target, as TARGET.part, and renamed to it when all is written.

    Whatever ends the work early leaves TARGET.part with whole lines only, and TARGET as it was. A kill may
    cut the last line of TARGET.part; `whole_lines` leaves such a half line out.
    """

    def __init__(self, target: Path) -> None:
        # Through a link, the file it points to is replaced, not the link.
        self.target = target.resolve()
        self.path = self.target.with_name(self.target.name + ".part")
        self._file: IO[bytes] | None = None
        self._size = 0

    def whole_lines(self) -> Iterator[tuple[ResultLine, int]]:
        """The results of an earlier run, each with the number of bytes up to the end of its line.

        Raises OutputFileError for a whole line that is no result.
        """
        if not self.path.exists():
            return
        end = 0
        with self.path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if not raw.endswith(b"\n"):
                    return
                end += len(raw)
                where = f"{self.path}:{number}"
                try:
                    line = result_line(json_object(raw), number, where)
                except (ValueError, InputFileError) as error:
                    raise OutputFileError(f"{where}: no result that could be continued; delete the file") from error
                yield line, end

    def open(self, keep: int = 0) -> None:
        """Start to write after the first `keep` bytes of what is there."""
        try:
            self._file = self.path.open("r+b" if keep else "wb")
            self._file.truncate(keep)
            self._file.seek(keep)
        except OSError as error:
            raise OutputFileError(f"{self.path}: cannot be written: {error.strerror}") from error
        self._size = keep

    def write(self, lines: bytes) -> None:
        """Append lines and hand them to the operating system."""
        assert self._file is not None
        self._file.write(lines)
        self._file.flush()
        self._size += len(lines)

    def commit(self) -> None:
        """Make the file durable and give it the target's name."""
        assert self._file is not None
        os.fsync(self._file.fileno())
        self._file.close()
        self.path.replace(self.target)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None and not self._file.closed:
            try:
                self._file.close()
            finally:
                # An interrupt, or a full disk, may have stopped a write in the middle of a line.
                os.truncate(self.path, self._size)
                if not self._size:
                    self.path.unlink()


def part_file(output: str, source: str) -> PartFile | None:
    """The part file of an output; None for standard output and for devices, which take lines as they come.

    Raises UsageError for an output that cannot be meant: the input itself, or a compressed file.
    """
    if output == "-":
        return None
    target = Path(output)
    if target.suffix in {".gz", ".xz"}:
        raise UsageError(f"--output {output}: results are written as plain JSON Lines; compress them afterwards")
    if target.is_dir():
        raise UsageError(f"--output {output}: is a folder; name a file")
    if target.exists() and source != "-" and Path(source).exists() and target.samefile(source):
        raise UsageError(f"--output {output}: is the input file")
    if target.exists() and not target.is_file():
        return None
    if not target.resolve().parent.is_dir():
        raise UsageError(f"--output {output}: there is no folder {target.parent}")
    return PartFile(target)


def stream_sink(output: str) -> tuple[StreamSink, IO[Any] | None]:
    """A sink for standard output or a device, and what has to be closed after it."""
    if output == "-":
        return StreamSink(sys.stdout.buffer), None
    stream = Path(output).open("wb")  # noqa: SIM115 - handed to the caller, who closes it
    return StreamSink(stream), stream
