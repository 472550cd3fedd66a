"""The lines of a request's body as they arrive; no more of it is held than the line that is being read."""

import asyncio
from dataclasses import dataclass

from starlette.types import Receive

from service.errors import ClientLeftError, RequestTooLargeError, SlowRequestError
from service.settings import Limits


@dataclass(frozen=True, slots=True)
class Line:
    """One line. number: its place among all lines of the body, blank ones too, from 1."""

    number: int
    content: bytes


class Lines:
    """The lines of a body that are not blank, in order and once.

    Nothing is asked of the channel while nobody asks for a line, so a sender waits when its reader does.

    receive: the request's channel, of which nothing has been read

    Reading raises RequestTooLargeError for a line, or a number of lines, above the limits, SlowRequestError where a
    line does not arrive in time, and ClientLeftError.
    """

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive = receive
        self._limits = limits
        self._held = bytearray()
        self._searched = 0
        self._number = 0
        self.ended = False

    async def next(self) -> Line | None:
        """The next line; None after the last."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.receive_timeout_s
        while True:
            content = self._cut()
            if content is None:
                if self.ended:
                    return None
                await self._read(deadline)
                continue
            self._number += 1
            # The first line holds the settings.
            if self._number > self._limits.max_evaluation_lines + 1:
                raise RequestTooLargeError(
                    f"the body has more than {self._limits.max_evaluation_lines} lines after the first"
                )
            if content.strip():
                return Line(self._number, content)

    def _cut(self) -> bytes | None:
        """Take a line out of what is held; None where there is no whole one."""
        end = self._held.find(b"\n", self._searched)
        whole = end >= 0
        if not whole:
            self._searched = end = len(self._held)
        if end > self._limits.max_evaluation_line_bytes:
            raise RequestTooLargeError(
                f"line {self._number + 1} has more than {self._limits.max_evaluation_line_bytes} bytes"
            )
        if not whole and not (self.ended and end):
            return None
        content = bytes(self._held[:end])
        del self._held[: end + 1]
        self._searched = 0
        return content

    async def _read(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                message = await self._receive()
        except TimeoutError:
            allowed = f"{self._limits.receive_timeout_s:g} s"
            raise SlowRequestError(f"line {self._number + 1} did not arrive within {allowed}") from None
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        self._held += message.get("body", b"")
        self.ended = not message.get("more_body", False)
