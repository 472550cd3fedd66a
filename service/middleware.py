"""What stands before the routes, as plain ASGI: nothing buffers a body or hides that a caller left."""

import asyncio
import contextlib
import hashlib
import hmac
import re
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import problems
from service.errors import (
    BodyTooLargeError,
    ClientLeftError,
    InternalError,
    QueueFullError,
    SlowRequestError,
    UnauthorisedError,
)
from service.settings import Limits
from service.telemetry import RequestRecord, Telemetry

T = TypeVar("T")

RECORD = "nbest.record"
OPEN_PATHS = frozenset({"/health/live", "/health/ready"})
IMPORT_PATH = "/v1/sessions/import"
EVALUATE_PATH = "/v1/evaluate"
NDJSON = "application/x-ndjson"

# What the log calls a request whose caller left; no such status is ever sent.
CLIENT_LEFT_STATUS = 499
_LINGER_S = 1.0
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Observe:
    """The outermost layer: request ids, metrics, the log, and an answer to what nobody foresaw.

    draining: whether the service is about to stop; connections are then closed after their answer
    """

    def __init__(self, app: ASGIApp, telemetry: Telemetry, draining: Callable[[], bool], *, log_requests: bool) -> None:
        self._app = app
        self._telemetry = telemetry
        self._draining = draining
        self._log_requests = log_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        record = scope[RECORD] = RequestRecord(_request_id(scope))
        status = CLIENT_LEFT_STATUS
        started = False

        async def observed(message: Message) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = record.request_id
                headers["x-content-type-options"] = "nosniff"
                headers.setdefault("cache-control", "no-store")
                if self._draining():
                    headers["connection"] = "close"
            await send(message)

        try:
            await self._app(scope, receive, observed)
        except (ClientLeftError, ClientDisconnect):
            status = CLIENT_LEFT_STATUS
        except Exception:
            self._telemetry.log.exception("request failed", request_id=record.request_id)
            if started:
                raise
            await problems.response(InternalError("the service failed; its log says more"))(scope, receive, observed)
        finally:
            self._finish(scope, record, status, time.perf_counter() - begin)

    def _finish(self, scope: Scope, record: RequestRecord, status: int, seconds: float) -> None:
        # Pages of the documentation are routed, but by no route with a template.
        route = getattr(scope.get("route"), "path", "documentation" if "endpoint" in scope else "unmatched")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._telemetry.observe_request(route, method, status, seconds)
        if self._log_requests:
            # A log that cannot be written to is no reason to fail a request that was answered.
            with contextlib.suppress(OSError, ValueError):
                self._telemetry.log.info(
                    "request",
                    request_id=record.request_id,
                    method=method,
                    route=route,
                    status=status,
                    ms=round(seconds * 1000, 3),
                    **record.fields,
                )


class RequireKey:
    """Lets a request pass that brings the API key, or that asks after the service's health.

    What is open is decided by the path that is routed, never by Host or another header. Keys are compared by
    their digests, in constant time.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._digest = hashlib.sha256(key.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        error = UnauthorisedError('an API key is needed: send it as "Authorization: Bearer KEY"')
        await problems.response(error)(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        matches = hmac.compare_digest(hashlib.sha256(key.strip()).digest(), self._digest)
        return matches and scheme.lower() == b"bearer"


class LimitBody:
    """Refuses bodies that are too large, too slow, or too many at once, whatever they say of their length."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits
        self._inflight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(scope, receive, self._limits, self._room)
        try:
            if body.announced > body.limit:
                await problems.response(body.too_large())(scope, receive, body.lingering(send))
            else:
                await self._app(scope, body.receive, body.lingering(send))
        finally:
            self._inflight -= body.size

    def _room(self, size: int) -> bool:
        if self._inflight + size > self._limits.max_inflight_bytes:
            return False
        self._inflight += size
        return True


class _Body:
    """One request's body on its way in. One that is read line by line is let through: its reader has limits of its own.

    limit:     bytes that it may have
    announced: bytes, as its Content-Length says; 0 where there is none, or none that matters
    size:      bytes received and held so far
    """

    def __init__(self, scope: Scope, receive: Receive, limits: Limits, room: Callable[[int], bool]) -> None:
        self._receive = receive
        self._limits = limits
        self._room = room
        self._deadline: float | None = None
        self.limit = limits.max_import_bytes if scope["path"] == IMPORT_PATH else limits.max_body_bytes
        self._by_lines = scope["path"] == EVALUATE_PATH and media_type(scope) == NDJSON
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        # A number of twenty digits is larger than any limit, and int() is slow on a number of ten thousand.
        announced = int(length[:20]) if length.isdigit() else 0
        self._ended = not announced and b"transfer-encoding" not in headers
        self.announced = 0 if self._by_lines else announced
        self.size = 0

    def too_large(self) -> BodyTooLargeError:
        """The refusal of a body over the limit."""
        return BodyTooLargeError(f"the body has more than {self.limit} bytes")

    async def receive(self) -> Message:
        """The next message; once the body has ended, as late as it comes."""
        if self._ended:
            return await self._receive()
        if self._by_lines:
            message = await self._receive()
            self._ended = not message.get("more_body", False)
            return message
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._limits.receive_timeout_s
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            allowed = f"{self._limits.receive_timeout_s:g} s"
            raise SlowRequestError(f"the body did not arrive within {allowed}") from None
        size = len(message.get("body", b""))
        if self.size + size > self.limit:
            raise self.too_large()
        if not self._room(size):
            raise QueueFullError("too many request bodies at once; try again later", retry_after_s=1)
        self.size += size
        self._ended = not message.get("more_body", False)
        return message

    def lingering(self, send: Send) -> Send:
        """`send`; but where the answer comes before the body has, read on for a moment, then close.

        Closing at once would reset the connection while the client still writes, and the answer could be
        lost.
        """

        async def linger(message: Message) -> None:
            if self._ended:
                await send(message)
            elif message["type"] == "http.response.start":
                MutableHeaders(scope=message)["connection"] = "close"
                await send(message)
            elif message.get("more_body", False):
                await send(message)
            else:
                await send({**message, "more_body": True})
                await self._discard()
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        return linger

    async def _discard(self) -> None:
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while size <= self.limit:
                    message = await self._receive()
                    size += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return


def media_type(scope: Scope) -> str:
    """What a request says that its body is, without parameters; empty where it says nothing."""
    given = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    return given.decode("latin-1").partition(";")[0].strip().lower()


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await work, but cancel it and raise ClientLeftError as soon as the caller closes the connection.

    receive: the request's channel, its body already read
    """
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(until_disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientLeftError
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def until_disconnected(receive: Receive) -> None:
    """Return when the caller has closed the connection. receive: the request's channel, its body already read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _request_id(scope: Scope) -> str:
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    text = given.decode("latin-1")
    return text if _REQUEST_ID.fullmatch(text) else uuid.uuid4().hex
