"""uvicorn's HTTP protocol with the limits it lacks: on headers, slow senders and open connections."""

import asyncio
from http import HTTPStatus
from typing import ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service import problems
from service.problems import Kind
from service.settings import Limits

_BAD = Kind(HTTPStatus.BAD_REQUEST, "bad-request", "Bad request")
_LARGE = Kind(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers-too-large", "Headers too large")
_SLOW = Kind(HTTPStatus.REQUEST_TIMEOUT, "slow-request", "Request too slow")
_CROWDED = Kind(HTTPStatus.SERVICE_UNAVAILABLE, "too-many-connections", "Too many connections")


class LimitedProtocol(HttpToolsProtocol):
    """One connection.

    Counted is what the parser has swallowed without a result: bytes of a head that does not end, of a chunk's
    extension or of trailers. A head, or what is no part of a body, has `receive_timeout_s` to become
    complete.
    """

    limits: ClassVar[Limits] = Limits()

    _unparsed = 0
    _head_bytes = 0
    _refusal: Kind | None = None
    _timer: asyncio.TimerHandle | None = None
    _message_ended = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Turn a connection away where there are too many; else wait for a request, but not for ever."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self._refuse(_CROWDED, "too many connections; try again later")
            return
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless the connection is being closed."""
        if self.transport.is_closing():
            return
        self._unparsed += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unparsed > self.limits.max_header_bytes:
            self._refuse(_LARGE, self._too_large())
        elif self._message_ended and (self.cycle is None or self.cycle.response_complete):
            # Line ends alone begin no request, and uvicorn has already stopped its keep-alive clock for them.
            self._start_timer()

    def on_message_begin(self) -> None:
        """Note that a request began, and by when its head must be complete."""
        super().on_message_begin()
        self._message_ended = False
        self._head_bytes = 0
        self._start_timer()

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, or a trailer."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete: the request begins to be served."""
        self._unparsed = 0
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request has been received as a whole."""
        self._unparsed = 0
        self._message_ended = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Close the connection where the answer came before the request ended."""
        super().on_response_complete()
        if not self._message_ended and self.cycle.response_complete:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or what this class refused while it was parsed."""
        if self._refusal is not None:
            self._refuse(self._refusal, self._too_large())
        else:
            self._refuse(_BAD, msg)

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self.limits.max_header_bytes:
            self._refusal = _LARGE
            raise httptools.HttpParserError(self._too_large())

    def _too_large(self) -> str:
        return f"request line and headers have more than {self.limits.max_header_bytes} bytes"

    def _timed_out(self) -> None:
        self._timer = None
        if self._message_ended:
            self.transport.close()
        else:
            self._refuse(_SLOW, f"the headers did not arrive within {self.limits.receive_timeout_s:g} s")

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.limits.receive_timeout_s, self._timed_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, kind: Kind, detail: str) -> None:
        """Answer with a problem and close, unless another answer is on its way: then only close."""
        self._stop_timer()
        if self.cycle is None or self.cycle.response_complete:
            body = problems.document(kind, detail)
            head = (
                f"HTTP/1.1 {kind.status.value} {kind.status.phrase}\r\n"
                f"content-type: {problems.MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
                "connection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


def limited_protocol(limits: Limits) -> type[LimitedProtocol]:
    """The protocol with these limits."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})
