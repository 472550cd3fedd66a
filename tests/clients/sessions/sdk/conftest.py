import asyncio
import inspect
from collections.abc import Iterator
from typing import Any, Self

import httpx
import pytest

from clients.retry import RetryPolicy
from clients.sdk import AsyncClient, Client
from clients.session import AsyncSession


class Blocking:
    """An asynchronous client or session, called as the synchronous one is."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._loop = inner, loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            result = value(*arguments, **options)
            if inspect.iscoroutine(result):
                result = self._loop.run_until_complete(result)
            return Blocking(result, self._loop) if isinstance(result, AsyncSession) else result

        return call

    def __enter__(self) -> Self:
        self._loop.run_until_complete(self._inner.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.run_until_complete(self._inner.__aexit__(*error))


class Wire:
    """Carries calls to the fake in process. outcomes: of the next ones; "lost" is done and not answered."""

    def __init__(self, fake: Any) -> None:
        self.fake = fake
        self.outcomes: list[Any] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        outcome = self.outcomes.pop(0) if self.outcomes else "answered"
        if isinstance(outcome, httpx.Response):
            return outcome
        if outcome == "refused":
            raise httpx.ConnectError("connection refused")
        target = request.url.raw_path.decode()
        status, document = self.fake.answer(request.method, target, dict(request.headers), request.content)
        if outcome == "lost":
            raise httpx.ReadError("connection reset")
        kind, content = self.fake.encoded(document)
        return httpx.Response(status, content=content, headers={"Content-Type": kind})


@pytest.fixture
def wire(fake: Any) -> Wire:
    return Wire(fake)


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, wire: Wire) -> Iterator[Any]:
    """A client of the fake; nothing is waited for."""
    pauses: list[float] = []
    options: Any = {
        "transport": httpx.MockTransport(wire),
        "retry": RetryPolicy(total_seconds=60, jitter=lambda: 1.0),
        "now": lambda: sum(pauses),
    }
    if request.param == "sync":
        with Client("http://test/base", sleep=pauses.append, **options) as client:
            yield client
        return

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    loop = asyncio.new_event_loop()
    with Blocking(AsyncClient("http://test/base", sleep=sleep, **options), loop) as blocking:
        yield blocking
    loop.close()
