"""Threads of the evaluations' own: aligning and resampling take long, and nobody else's work shall wait for them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class EvaluationThreads:
    """So many threads, for work that is waited for on the event loop."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="evaluating")
        self._given: set[Future[Any]] = set()

    @property
    def busy(self) -> bool:
        """Whether some work is being done, though nobody may wait for it any longer: it cannot be interrupted."""
        return any(future.running() for future in list(self._given))

    async def do(self, work: Callable[[], T]) -> T:
        """Do some work; what was not begun yet is dropped with its caller."""
        future = self._pool.submit(work)
        self._given.add(future)
        future.add_done_callback(self._given.discard)
        return await asyncio.wrap_future(future)

    def stop(self) -> None:
        """Take no more work."""
        self._pool.shutdown(wait=False, cancel_futures=True)
