"""Requests that come all at once: the event loop answers others between any two of them."""

import asyncio
import io
import threading

import pytest

from models.bundle import Bundle
from service.engine import Engine
from service.settings import Limits
from service.telemetry import Telemetry, make_log

pytestmark = pytest.mark.anyio


@pytest.fixture
def engine(bundle: Bundle) -> Engine:
    return Engine(bundle, Limits(), Telemetry(make_log(io.StringIO())))


async def test_between_the_work_of_two_requests_the_event_loop_goes_round(engine: Engine) -> None:
    rounds = 0
    seen: list[int] = []

    async def go_round() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    watching = asyncio.create_task(go_round())
    await asyncio.gather(*(engine.aside(False, lambda: seen.append(rounds)) for _ in range(40)))
    watching.cancel()
    assert len(set(seen)) == 40


async def test_work_is_done_in_the_order_it_came_and_gives_what_it_gives(engine: Engine) -> None:
    order: list[int] = []

    def work(number: int) -> int:
        order.append(number)
        return -number

    assert await asyncio.gather(*(engine.aside(False, lambda n=n: work(n)) for n in range(9))) == [  # type: ignore[misc] # mypy cannot type such a lambda
        -n for n in range(9)
    ]
    assert order == list(range(9))


async def test_work_that_fails_or_whose_caller_left_keeps_nobody(engine: Engine) -> None:
    leaving = asyncio.create_task(engine.aside(False, lambda: None))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(ZeroDivisionError):
        await engine.aside(False, lambda: 1 // 0)
    assert await engine.aside(False, lambda: "done") == "done"


async def test_large_work_is_done_on_another_thread(engine: Engine) -> None:
    assert await engine.aside(True, threading.get_ident) != threading.get_ident()
    assert await engine.aside(False, threading.get_ident) == threading.get_ident()
