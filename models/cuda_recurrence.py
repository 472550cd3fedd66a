"""The recurrent step over a tree in few launches: levels padded to a few sizes, a CUDA graph for each size.

A level of a prefix tree takes four launches of small kernels, and a launch takes longer than what it starts. Here
eight consecutive levels, padded to the next size of a few, are one step over buffers that stay where they are. On a GPU
such a step is recorded once and replayed with one launch; with what brings numbers in and states out, eight levels take
four launches instead of thirty-two.

CUDA graphs rather than torch.compile: what is recorded are the very operations of the plain path, so nothing has to be
compiled or trusted anew, and it takes milliseconds, where a compiler would take seconds in the middle of a request.
Everything here but the recording is plain torch, which runs on any device.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.cuda_transfers import sent
from models.prefix_tree import PrefixTree

LEVELS = 8
# Rows of a level, padded: to the largest level of its stretch, which costs little where the output layer has fifty
# times the work. Beyond the last size a level is worth its launches.
SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
# A size is recorded when it has been used so often: networks that are made for one text never get there.
_USES = 4

_LOG = logging.getLogger(__name__)
# torch records one graph at a time in a process.
_RECORDING = threading.Lock()

Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Up to LEVELS consecutive levels of a tree, laid out in the rows of a buffer.

    The buffer has LEVELS + 1 parts of `size` rows: the level before the first, then the levels.

    size:    rows of a part
    bounds:  the first node of each of its levels, and behind the last
    inputs:  (LEVELS, size) the input class of each row; 0 where no node stands
    parents: (LEVELS, size) the row of the buffer from which each row goes on; 0 where no node stands
    places:  (nodes,) the row of the buffer where each of its nodes stands
    """

    size: int
    bounds: tuple[int, ...]
    inputs: NDArray[np.int64]
    parents: NDArray[np.int64]
    places: NDArray[np.int64]


def fits(tree: PrefixTree) -> bool:
    """Whether every level of the tree has a size for it."""
    return max((end - begin for begin, end in pairwise(tree.levels)), default=0) <= SIZES[-1]


def stretches(tree: PrefixTree, inputs: NDArray[np.int64]) -> list[Stretch]:
    """Lay out a tree that fits. inputs: (nodes,) the class that leads to each node."""
    out = []
    # Roots go on from the start states, which stand before them as a level of their own, in the same order.
    before, base = tree.roots, 0
    for first in range(0, len(tree.levels) - 1, LEVELS):
        bounds = tree.levels[first : first + LEVELS + 1]
        sizes = np.diff(bounds)
        size = next(size for size in SIZES if size >= max(before, int(sizes.max())))
        nodes = slice(bounds[0], bounds[-1])
        level = np.repeat(np.arange(len(sizes)), sizes)
        rows = level * size + np.arange(nodes.start, nodes.stop) - np.array(bounds)[level]
        above = np.array([base, *bounds[:-2]])
        laid = np.zeros((2, LEVELS * size), np.int64)
        laid[0, rows] = inputs[nodes]
        laid[1, rows] = level * size + tree.parents[nodes] - above[level]
        classes, parents = laid.reshape(2, LEVELS, size)
        out.append(Stretch(size, bounds, classes, parents, rows + size))
        before, base = int(sizes[-1]), bounds[-2]
    return out


class _Buffer:
    """The memory of a size, and the step over it.

    states:  ((LEVELS + 1) size, H) see Stretch
    numbers: (2, LEVELS, size) inputs and parents
    """

    def __init__(self, U: Tensor, W: Tensor, size: int) -> None:
        self._U, self._W, self._size = U, W, size
        self.states = U.new_zeros((LEVELS + 1) * size, len(W))
        self.numbers = torch.zeros(2, LEVELS, size, dtype=torch.int64, device=U.device)
        self._before = U.new_zeros(size, len(W))
        self._uses = 0
        self._replay: Step | None = None

    def step(self) -> None:
        """Fill the levels of `states` from the part before them: s = sigmoid(U[w] + W s')."""
        size = self._size
        inputs, parents = self.numbers.unbind()
        torch.index_select(self._U, 0, inputs.reshape(-1), out=self.states[size:])
        for level in range(LEVELS):
            torch.index_select(self.states, 0, parents[level], out=self._before)
            here = self.states[(level + 1) * size : (level + 2) * size]
            here.addmm_(self._before, self._W.T).sigmoid_()

    def run(self) -> None:
        """The step, replayed where it is worth recording and can be recorded."""
        self._uses += 1
        if self._uses == _USES and self.states.device.type == "cuda":
            self._replay = _recorded(self.step, self.states.device)
        (self._replay or self.step)()


class BucketedRecurrence:
    """The recurrent layer of a network; may be used from any thread.

    U, W: as in ElmanWeights, on one device, and staying where they are
    """

    def __init__(self, U: Tensor, W: Tensor) -> None:
        self._U, self._W = U, W
        self._buffers: dict[int, _Buffer] = {}
        self._lock = threading.Lock()

    @torch.inference_mode()
    def states(self, tree: PrefixTree, inputs: NDArray[np.int64], previous: Tensor) -> Tensor:
        """(nodes, H) the hidden state after each history. To be called while `working`.

        tree:     one that fits
        inputs:   (nodes,) the class that leads to each node
        previous: (roots, H) the states before the sentence boundary
        """
        laid = stretches(tree, inputs)
        numbers = sent(_end_to_end(laid), self._U.device)
        out = self._U.new_empty(tree.nodes, len(self._W))
        used = 0
        above = previous
        # Buffers are shared; who comes next queues behind on the same stream of the device.
        with self._lock:
            for stretch in laid:
                buffer = self._buffer(stretch.size)
                first, last = stretch.bounds[0], stretch.bounds[-1]
                both, nodes = buffer.numbers.numel(), last - first
                buffer.numbers.view(-1).copy_(numbers[used : used + both])
                buffer.states[: len(above)].copy_(above)
                buffer.run()
                places = numbers[used + both : used + both + nodes]
                torch.index_select(buffer.states, 0, places, out=out[first:last])
                used += both + nodes
                above = out[stretch.bounds[-2] : last]
        return out

    def _buffer(self, size: int) -> _Buffer:
        if size not in self._buffers:
            self._buffers[size] = _Buffer(self._U, self._W, size)
        return self._buffers[size]


def _end_to_end(laid: Sequence[Stretch]) -> NDArray[np.int64]:
    """All numbers of a tree, to be sent at once: inputs, parents and places, stretch by stretch."""
    return np.concatenate([part.ravel() for s in laid for part in (s.inputs, s.parents, s.places)])


def _recorded(step: Step, device: torch.device) -> Step | None:
    """A function that replays the step with one launch, or None where it cannot be recorded."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    graph = torch.cuda.CUDAGraph()
    current = torch.cuda.current_stream(device)
    try:
        # The outer block leaves the thread on its own stream, even where the recording breaks off half-way.
        with _RECORDING, torch.cuda.stream(current):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                # Libraries set themselves up in the first call on a stream, which must not be recorded.
                step()
            # Other threads go on as they please meanwhile.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                step()
            current.wait_stream(stream)
    except RuntimeError:
        _LOG.warning("a CUDA graph could not be recorded; the recurrent layer takes more launches", exc_info=True)
        return None
    return graph.replay
