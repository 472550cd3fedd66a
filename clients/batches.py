"""Which utterances travel in one request: bounded in number and bytes, and never a session cut in two."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .errors import InputFileError
from .exchange import encode
from .files import NBestLine
from .types import State

_FRAME_BYTES = 4096  # what a request holds beside its utterances: settings and brackets


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may hold.

    utterances: at most so many, except that a session whose state is carried stays whole
    body_bytes: at most so many bytes of JSON; None where nothing limits them
    """

    utterances: int
    body_bytes: int | None

    def fits(self, size: int) -> bool:
        """Whether utterances of so many bytes fit in one request."""
        return self.body_bytes is None or size + _FRAME_BYTES <= self.body_bytes


@dataclass(frozen=True, slots=True)
class Unit:
    """Utterances that must travel together: one, or all of a session whose state is carried.

    size: bytes of JSON
    """

    lines: tuple[NBestLine, ...]
    size: int


def units(name: str, lines: Iterable[NBestLine], state: State | None, limits: Limits) -> Iterator[Unit]:
    """Group utterances into units, in order.

    Carried state needs a session's lines to stand together; lines without a session_id are one session.
    Raises InputFileError naming the lines of `name` where they do not, or where a unit fits in no request.
    """
    if state != "carried":
        for line in lines:
            size = _size(line)
            if not limits.fits(size):
                raise InputFileError(f"{name}:{line.line}: the utterance takes {size:,} bytes of JSON; {_most(limits)}")
            yield Unit((line,), size)
        return
    seen: dict[str | None, int] = {}
    held: list[NBestLine] = []
    total = 0
    for line in lines:
        session = line.utterance.get("session_id")
        if held and session != held[0].utterance.get("session_id"):
            yield Unit(tuple(held), total)
            held, total = [], 0
        if not held and session in seen:
            raise InputFileError(
                f"{name}:{line.line}: session_id: {_named(session)} goes on here after others (it began "
                f"in line {seen[session]}); with --state carried the lines of a session must stand together"
            )
        seen.setdefault(session, line.line)
        held.append(line)
        total += _size(line)
        if not limits.fits(total):
            raise InputFileError(
                f"{name}:{line.line}: {_named(session)} does not fit in one request, as --state carried "
                f"needs: from line {held[0].line} to here it takes {total:,} bytes of JSON; {_most(limits)}. "
                "Cut the session in two, or use --bundle, which has no such limit"
            )
    if held:
        yield Unit(tuple(held), total)


def batches(every: Iterable[Unit], limits: Limits) -> Iterator[list[NBestLine]]:
    """Pack whole units into requests, in order, each as full as the limits allow."""
    batch: list[NBestLine] = []
    total = 0
    for unit in every:
        full = len(batch) + len(unit.lines) > limits.utterances or not limits.fits(total + unit.size)
        if batch and full:
            yield batch
            batch, total = [], 0
        batch.extend(unit.lines)
        total += unit.size
        if len(batch) >= limits.utterances:
            # Full: it need not wait for the next line of a slow pipe.
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def _size(line: NBestLine) -> int:
    return len(encode(line.utterance)) + 1


def _most(limits: Limits) -> str:
    return f"a request takes at most {limits.body_bytes or 0:,} (--max-request-mib)"


def _named(session: str | None) -> str:
    return "the session of the lines without session_id" if session is None else f"session {session!r}"
