"""What the machine can do at most: its rate of matrix products, its bandwidth, and the memory a piece of work takes."""

import ctypes
import time
from collections.abc import Callable
from pathlib import Path

import torch

from models.threads import share_out

_ROWS = 512
_MOST_CLASSES = 16_384
_BYTES_READ = 2**28


class MatrixRate:
    """Products of 512 states and the output matrix alone, logits written and nothing done with them.

    Measured twice, by torch's own division of a product among threads and with a product a thread; the better counts.
    """

    def __init__(self, hidden: int, classes: int) -> None:
        threads = torch.get_num_threads()
        self._states = torch.rand(_ROWS, hidden)
        self._V = torch.rand(min(classes, _MOST_CLASSES), hidden)
        self._logits = [torch.empty(_ROWS, len(self._V)) for _ in range(threads)]

    def measure(self) -> float:
        """Operations a second, a multiplication and an addition being two."""
        threads = len(self._logits)
        operations = 2 * self._states.numel() * len(self._V) * threads

        def by_torch() -> None:
            for _ in range(threads):
                torch.mm(self._states, self._V.T, out=self._logits[0])

        def by_thread() -> None:
            share_out(lambda number: torch.mm(self._states, self._V.T, out=self._logits[number]), range(threads))

        return operations / min(seconds(by_torch), seconds(by_thread))


def bandwidth() -> float:
    """Bytes a second of reading memory that no cache holds."""
    numbers = torch.ones(_BYTES_READ // 4)
    return _BYTES_READ / min(seconds(numbers.sum) for _ in range(5))


def seconds(work: Callable[[], object]) -> float:
    """How long it takes, once."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def peak_mebibytes(work: Callable[[], object]) -> float:
    """How far the memory of this process rises above where it stood; NaN where the system does not tell."""
    # What the allocator keeps for later would hide what is taken now.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = _status("VmRSS")
        work()
        return max(_status("VmHWM") - before, 0.0)
    except OSError:
        work()
        return float("nan")


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024
