"""Several processes, started by torchrun, that train one network together.

Each process reads its share of the parallel streams; gradients are summed over all, so each takes the same step as one
process with all streams would take. The leader, process 0, writes files and talks.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from models.errors import TrainingError

_LOST = "another process of this training has ended; see its own message"


@dataclass(frozen=True, slots=True)
class Group:
    """The processes of a training. One process alone is a group of one, and says nothing to anybody.

    rank: this process's number, from 0
    size: how many processes there are

    What says something to the others must be called by all of them; it raises TrainingError when one has ended.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes and talks."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Which of `count` streams are this process's; shares differ by one at most."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor, all of one kind, by its sum over the processes: the same bits in each process."""
        if self.size == 1:
            return
        message = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with _company():
            dist.all_reduce(message)
        parts = torch.split(message, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def gather(self, part: Tensor, count: int) -> Tensor:
        """The processes' shares of `count` rows, put together: (count, ...)."""
        if self.size == 1:
            return part
        whole = torch.zeros(count, *part.shape[1:], dtype=part.dtype, device=part.device)
        whole[self.share(count)] = part
        self.sum([whole])
        return whole

    def any(self, said: bool) -> bool:
        """Whether any process says yes; it waits for all of them."""
        if self.size == 1:
            return said
        votes = torch.tensor(float(said))
        self.sum([votes])
        return bool(votes)

    def wait(self) -> None:
        """Return once every process has come here."""
        self.any(False)

    def leaders(self, value: float) -> float:
        """The leader's value, in every process."""
        if self.size == 1:
            return value
        message = torch.tensor(value if self.leads else 0.0, dtype=torch.float64)
        with _company():
            dist.broadcast(message, 0)
        return float(message)


@contextmanager
def _company() -> Iterator[None]:
    """Torch says that a process is lost by a RuntimeError of many words."""
    try:
        yield
    except RuntimeError as error:
        raise TrainingError(_LOST) from error


@contextmanager
def joined(device: torch.device) -> Iterator[tuple[Group, torch.device]]:
    """Meet the processes that torchrun started with this one, if it did, and part from them at the end.

    Gives the group and this process's device: on CUDA each process of a machine has one of its own. Raises
    TrainingError when they cannot meet, or when a machine has fewer devices than processes.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Group(), device
        return
    if device.type == "cuda":
        local = int(os.environ["LOCAL_RANK"])
        if local >= torch.cuda.device_count():
            raise TrainingError(f"{torch.cuda.device_count()} CUDA devices are too few: each process needs its own")
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    try:
        # Yes and no go through the processor's memory, gradients through the device's.
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    except (RuntimeError, ValueError) as error:
        raise TrainingError(f"the processes of this training could not meet: {error}") from error
    try:
        yield Group(dist.get_rank(), size), device
    finally:
        dist.destroy_process_group()
