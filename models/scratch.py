"""Memory for large intermediate results that come again and again."""

import threading

import torch
from torch import Tensor


class Scratch:
    """Memory used again, step after step: to be given megabytes by the system takes longer than to fill them."""

    def __init__(self) -> None:
        self._flat: dict[str, Tensor] = {}

    def take(self, name: str, rows: int, columns: int, like: Tensor) -> Tensor:
        """(rows, columns) of the kind of `like`, whatever they hold; what was taken by that name before is lost."""
        flat = self._flat.get(name)
        if flat is None or flat.numel() < rows * columns or (flat.dtype, flat.device) != (like.dtype, like.device):
            flat = self._flat[name] = torch.empty(rows * columns, dtype=like.dtype, device=like.device)
        return flat[: rows * columns].view(rows, columns)


class ThreadScratch(threading.local):
    """Such memory for each thread that asks; it is kept as long as the thread lives.

    own: the memory of the thread that asks
    """

    def __init__(self) -> None:
        self.own = Scratch()
