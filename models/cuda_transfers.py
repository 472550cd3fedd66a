"""To a GPU and back without waiting: pinned memory, a stream for the work and one for the way back.

All work on a device runs on one stream of ours, in the order in which it was handed over. Results leave on a second
one, so the next network's work begins while the last one's results are still on their way. On a processor, whose
memory this is already, nothing is copied and nothing is waited for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


@contextmanager
def working(device: torch.device) -> Iterator[None]:
    """Hand over what is done in the block to the device's stream, behind what the thread's own stream has so far."""
    if device.type != "cuda":
        yield
        return
    stream, _ = _streams(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    # This makes the device the thread's current one, too.
    with torch.cuda.stream(stream):
        yield


@cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    work, back = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]
    return work, back


def sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """An array as a tensor of the device, on its way there; to be called while `working`."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor
    # The pinned copy is kept by torch until the transfer is over.
    return tensor.pin_memory().to(device, non_blocking=True)


class Fetched:
    """Tensors of one device on their way to the host; to be made while `working`, and waited for anywhere."""

    def __init__(self, *tensors: Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        device = tensors[0].device
        if device.type != "cuda":
            self._here = list(tensors)
            return
        _, back = _streams(device)
        back.wait_stream(torch.cuda.current_stream(device))
        self._here = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
        # Waiting sleeps: other threads of the process need the core.
        self._arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(back):
            for here, tensor in zip(self._here, tensors, strict=True):
                here.copy_(tensor, non_blocking=True)
                # The tensor's memory is not given to others before the copy is over, whoever drops it.
                tensor.record_stream(back)
            self._arrived.record(back)

    def arrays(self) -> list[NDArray[Any]]:
        """The values, when they have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return [tensor.numpy() for tensor in self._here]
