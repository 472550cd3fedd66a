"""An evaluation answered as it goes: a line of JSON for each event, the last one the result or what went wrong."""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from models.errors import RescoringError
from service import problems
from service.errors import ClientLeftError, NotReadyError, RefusedListError, ServiceError
from service.evaluation import Evaluation
from service.evaluation_sources import Source
from service.middleware import NDJSON, RECORD, until_disconnected
from service.telemetry import RequestRecord, Telemetry

PROGRESS_S = 1.0

_HEADERS = [
    (b"content-type", NDJSON.encode()),
    # A proxy that gathers what it passes on would keep the progress for itself.
    (b"x-accel-buffering", b"no"),
]
_STOPPING = "the service is stopping before all of the set was sent; send it again later"


@dataclass(frozen=True, slots=True)
class Running:
    """An evaluation and what it will be given."""

    evaluation: Evaluation
    source: Source


Open = Callable[[Receive], AbstractAsyncContextManager[Running]]


class EventStream(Response):
    """An answer that reads its request while it is sent.

    What is wrong before there is an evaluation is answered as any error is. After that the status has been sent, and
    an error is the last event.

    open_:    makes the evaluation, given the request's channel, and closes what it needed
    draining: whether the service is about to stop; then no more of a body is waited for
    """

    def __init__(self, open_: Open, telemetry: Telemetry, draining: Callable[[], bool]) -> None:
        super().__init__()
        self._open = open_
        self._telemetry = telemetry
        self._draining = draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Evaluate and answer."""
        record: RequestRecord = scope[RECORD]
        async with self._open(receive) as running:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            try:
                last = _event("result", await self._follow(running, receive, send))
            except ClientLeftError:
                raise
            except asyncio.CancelledError:
                with contextlib.suppress(OSError):
                    await _end(send, _problem(NotReadyError(_STOPPING)))
                raise
            except Exception as error:
                if not isinstance(error, RescoringError | RefusedListError | ServiceError):
                    self._telemetry.log.exception("evaluation failed", request_id=record.request_id)
                last = _problem(error)
            finally:
                record.fields |= running.evaluation.record()
            await _end(send, last)

    async def _follow(self, running: Running, receive: Receive, send: Send) -> dict[str, Any]:
        """Run an evaluation to its end, and say now and then how far it is.

        It goes on while a line that is sent is not read: a caller that first sends all and then reads must not wait
        for itself.
        """
        work = asyncio.create_task(running.evaluation.run(running.source))
        tasks: list[asyncio.Task[Any]] = [work]
        try:
            while True:
                if running.source.ended and len(tasks) == 1:
                    # Until then it is the reading that notices.
                    tasks.append(asyncio.create_task(until_disconnected(receive)))
                await asyncio.wait(tasks, timeout=PROGRESS_S, return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    return work.result()
                if any(task.done() for task in tasks):
                    raise ClientLeftError
                if self._draining() and not running.source.ended:
                    raise NotReadyError(_STOPPING)
                progress = _event("progress", asdict(running.evaluation.progress))
                await send({"type": "http.response.body", "body": progress, "more_body": True})
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _end(send: Send, line: bytes) -> None:
    await send({"type": "http.response.body", "body": line, "more_body": False})


def _problem(error: Exception) -> bytes:
    return _event("error", orjson.loads(bytes(problems.response(error).body)))


def _event(kind: str, members: dict[str, Any]) -> bytes:
    return orjson.dumps({"event": kind, **members}) + b"\n"
