"""A small result into a file: wholly or not at all."""

import sys
from pathlib import Path

from .errors import OutputFileError


def write_whole(path: str, raw: bytes) -> None:
    """Write bytes to a file, to what stands there in a file's place (a pipe, a device), or for "-" to standard output.

    Raises OutputFileError naming the file, which is then as it was.
    """
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(raw)
        sys.stdout.buffer.flush()
        return
    target = Path(path).resolve()
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(raw)
            return
        part = target.with_name(target.name + ".part")
        part.write_bytes(raw)
        part.replace(target)
    except OSError as error:
        raise OutputFileError(f"{path}: cannot be written: {error.strerror}") from error
