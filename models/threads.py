"""Work shared among threads of our own, each of which runs torch's operations by itself.

torch divides every single operation among OpenMP threads, which meet again at its end: when one of them shares its
core with anything else, all wait for it, many times a millisecond. Here a thread takes the next piece of the work when
it is done with its last, so a core that is half busy does half as many pieces.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

_Piece = TypeVar("_Piece")


class _Alone:
    """How deep the block below is nested, and the thread count that was set outside of it."""

    lock = threading.RLock()
    depth = 0
    count = 1


@contextmanager
def one_thread_an_operation() -> Iterator[int]:
    """Keep torch from dividing operations among threads inside the block; gives the count it was set to.

    torch's setting belongs to the whole process, so such blocks of several threads run one after another.
    """
    with _Alone.lock:
        if not _Alone.depth:
            _Alone.count = torch.get_num_threads()
            torch.set_num_threads(1)
        _Alone.depth += 1
        try:
            yield _Alone.count
        finally:
            _Alone.depth -= 1
            if not _Alone.depth:
                torch.set_num_threads(_Alone.count)


def thread_count() -> int:
    """How many threads `share_out` uses: as many as torch is set to, outside of such blocks."""
    with one_thread_an_operation() as count:
        return count


def share_out(work: Callable[[_Piece], None], pieces: Iterable[_Piece]) -> None:
    """Call `work` on every piece, on as many threads as torch is set to, the calling one among them.

    `work` runs in inference mode and must not share out work of its own.
    Raises what `work` raises, when every thread has stopped.
    """
    with one_thread_an_operation() as count:
        waiting = iter(list(pieces))

        def take() -> None:
            torch.set_num_threads(1)
            with torch.inference_mode():
                # Threads draw from one list iterator: its next() is a single step under the interpreter lock.
                for piece in waiting:
                    work(piece)

        others = [_pool(os.getpid()).submit(take) for _ in range(count - 1)]
        try:
            take()
        finally:
            for other in others:
                other.result()


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """The threads of a process: those of its parent do not live on in a fork."""
    del process
    return ThreadPoolExecutor(max_workers=max(os.cpu_count() or 1, 256), thread_name_prefix="scoring")
