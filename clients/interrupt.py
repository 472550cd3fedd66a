"""Ctrl-C in a program that runs an event loop and, in between, calls that block."""

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any


class _InterruptedError(Exception):
    """Ctrl-C came during a call that blocks. An Exception, for a KeyboardInterrupt tears an event loop apart."""


def run_until_interrupted(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end. Ctrl-C cancels it, lets it clean up, and then raises KeyboardInterrupt."""
    try:
        asyncio.run(work)
    except _InterruptedError as error:
        raise KeyboardInterrupt from error


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end a call that blocks, within `run_until_interrupted`.

    asyncio alone would note it and wait for the call: for the next line of standard input, or for the engine.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _stop_if_cancelled()
        yield
    except KeyboardInterrupt as error:
        raise _InterruptedError from error
    finally:
        signal.signal(signal.SIGINT, before)


def _stop_if_cancelled() -> None:
    """A Ctrl-C just before would be delivered at the next await, which may be a long time off."""
    if (task := asyncio.current_task()) is not None and task.cancelling():
        raise KeyboardInterrupt
