"""Who is next in a session, and work that is done wholly or not at all."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from service.errors import WaitedTooLongError

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Line:
    """Who waits for one session. count: of those who wait, and of the one whose turn it is."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int = 0


class Turns:
    """Lets one request at a time at each session, in the order they came.

    Sessions that nobody asks for take no room.
    """

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def take(self, session_id: str, deadline: float) -> AsyncIterator[None]:
        """A turn at a session. deadline: time of the event loop's clock, in seconds.

        Raises WaitedTooLongError when the turn does not come before the deadline.
        """
        line = self._lines.setdefault(session_id, _Line())
        line.count += 1
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    await line.lock.acquire()
            except TimeoutError:
                message = "earlier requests of the session took too long; nothing was changed"
                raise WaitedTooLongError(message, retry_after_s=1) from None
            try:
                yield
            finally:
                line.lock.release()
        finally:
            line.count -= 1
            if not line.count:
                del self._lines[session_id]


async def wholly(work: Coroutine[Any, Any, T]) -> T:
    """Await work to its end, even when whoever awaits it is cancelled meanwhile; the cancellation comes after it."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        # Retrieved, so that nobody is told of a failure that nobody waits for.
        task.exception()
        raise cancelled
    return task.result()
