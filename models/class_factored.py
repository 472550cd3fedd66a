"""The class-factored output layer of Mikolov, Kombrink, Burget, Cernocky and Khudanpur, ICASSP 2011.

    P(c | s) = P(g(c) | s) P(c | g(c), s)

Each class belongs to one group; a softmax over the groups (the paper's "classes", its matrix X) and one over the
members of the group wanted (matrix V) replace the softmax over everything. This is exact: it sums to 1 by construction,
at the cost of about 2 sqrt(C) logits an event where the full softmax has C.

What the network calls classes are words of its shortlist, </s> and the rare class (models/rnnlm.py); the paper's
classes are called groups here.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.errors import BundleError, TrainingError
from models.threads import share_out

# What a network with this layer is called in files and answers.
NAME = "class-factored"

# In-group logits computed at once: half a megabyte in float32, which stays in a core's cache.
_LOGITS = 2**17
# States whose group logits are computed at once.
_ROWS = 512
# Below this, neither exp nor a sum of millions of them leaves the range of float32.
_SAFE_LOGIT = 60.0


@dataclass(frozen=True, slots=True)
class ClassGroups:
    """Which group each class belongs to. Raises BundleError where a group has no member.

    of_class: (C,) group numbers, 0 to groups - 1
    """

    of_class: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.of_class.ndim != 1 or not len(self.of_class) or self.of_class.dtype != np.int64:
            raise BundleError("the groups of an output layer are not one integer a class")
        if self.of_class.min() < 0 or self.of_class.max() >= len(self.of_class):
            raise BundleError("a class belongs to a group that is none")
        if not np.all(np.bincount(self.of_class)):
            raise BundleError("a group of the output layer has no member")

    @classmethod
    def by_frequency(cls, counts: NDArray[np.int64], groups: int = 0) -> "ClassGroups":
        """Groups of about equal frequency: classes from the commonest down, a new group at each share of the tokens.

        counts: (C,) how often each class occurs in the training text
        groups: how many are wanted, about sqrt(C) for 0; fewer come out where single classes outweigh a share

        With equal shares, an event has C / groups in-group logits on average over the text. Raises TrainingError for
        more groups than classes.
        """
        C = len(counts)
        wanted = groups or max(1, round(math.sqrt(C)))
        if wanted > C:
            raise TrainingError(f"{wanted} groups are more than the {C} classes that could be in them")
        order = np.argsort(-counts, kind="stable")
        # Classes that were never seen count a little, so that they do not all go to waste in one group of no weight.
        mass = np.cumsum(counts[order] + 1.0)
        middle = (mass - (counts[order] + 1.0) / 2) / mass[-1]
        group = np.unique(np.minimum((middle * wanted).astype(np.int64), wanted - 1), return_inverse=True)[1]
        of_class = np.empty(C, np.int64)
        of_class[order] = group
        return cls(of_class)

    @property
    def count(self) -> int:
        """The number of groups."""
        return int(self.of_class.max()) + 1


class GroupOrder:
    """Classes in the order of their groups, so that a group's members stand side by side.

    order:   (C,) the classes, group by group
    rank:    (C,) where among its group's members each class stands
    starts:  per group, where in `order` its members begin; C at the end
    """

    def __init__(self, groups: ClassGroups) -> None:
        self.order = np.argsort(groups.of_class, kind="stable")
        sizes = np.bincount(groups.of_class)
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        self.sizes = sizes
        self.starts: list[int] = bounds.tolist()
        self.rank = np.empty(len(self.order), np.int64)
        self.rank[self.order] = np.arange(len(self.order)) - np.repeat(bounds[:-1], sizes)


class ClassFactored:
    """The layer with frozen weights; see OutputLayer.

    V:      (C + groups, H) from the hidden state to the logits of the classes inside their groups, and below them to
            those of the groups: the paper's V over its X
    groups: which group each class belongs to

    Raises BundleError where they do not fit each other.
    """

    def __init__(self, V: Tensor, groups: ClassGroups) -> None:
        C = len(groups.of_class)
        if V.ndim != 2 or len(V) != C + groups.count:  # noqa: PLR2004 - a matrix
            needed = f"{C} classes in {groups.count} groups need {C + groups.count} rows"
            raise BundleError(f"matrix V has shape {tuple(V.shape)}; {needed}")
        self.groups = groups
        self._order = GroupOrder(groups)
        # Numbers of 16 bits are sorted by a faster algorithm.
        self._of_class = groups.of_class.astype(np.int16 if groups.count < 2**15 else np.int64)
        self._X = V[C:]
        members = V[:C][torch.from_numpy(self._order.order).to(V.device)]
        self._members = [members[a:b].T for a, b in pairwise(self._order.starts)]

    @property
    def classes(self) -> int:
        """C."""
        return len(self.groups.of_class)

    def log_probs(self, states: Tensor, histories: Tensor, classes: Tensor) -> Tensor:
        """See OutputLayer. Each group's softmax is computed once for each history that an event of it continues."""
        device = states.device
        wanted = classes.cpu().numpy()
        group = self._of_class[wanted]
        order = np.argsort(group, kind="stable")
        pairs = _Pairs.of(group[order], histories.cpu().numpy()[order], self._order.rank[wanted[order]])
        paired = states.index_select(0, torch.from_numpy(pairs.histories).to(device))
        of_group = states.new_empty(len(states), self.groups.count)
        in_group = states.new_empty(len(wanted))
        pieces: list[Callable[[], None]] = [
            partial(self._of_group, states[first : first + _ROWS], of_group[first : first + _ROWS])
            for first in range(0, len(states), _ROWS)
        ]
        pieces += [partial(self._in_group, paired, pairs, blocks, in_group) for blocks in self._portions(pairs)]
        if device.type == "cpu":
            share_out(_call, pieces)
        else:
            for piece in pieces:
                piece()
        place = histories * of_group.shape[1] + torch.from_numpy(group.astype(np.int64)).to(device)
        out = of_group.view(-1).index_select(0, place)
        return out.index_add_(0, torch.from_numpy(order).to(device), in_group)

    def describe(self) -> dict[str, Any]:
        """See OutputLayer."""
        # Of sessions that learn: see models/autograd_adaptation.py.
        return {"output": NAME, "groups": self.groups.count, "learns": "one step an utterance"}

    def _of_group(self, states: Tensor, out: Tensor) -> None:
        """(rows, groups) ln P(group | state)."""
        torch.log_softmax(states @ self._X.T, dim=1, out=out)

    def _portions(self, pairs: "_Pairs") -> Iterator[list[tuple[int, int, int]]]:
        """Group and range of pairs of blocks that have about _LOGITS logits together, however many pairs there are."""
        portion: list[tuple[int, int, int]] = []
        used = 0
        for group, begin, end in pairs.blocks:
            width = self._members[group].shape[1]
            rows = max(1, _LOGITS // width)
            for start in range(begin, end, rows):
                stop = min(start + rows, end)
                size = (stop - start) * width
                if portion and used + size > _LOGITS:
                    yield portion
                    portion, used = [], 0
                portion.append((group, start, stop))
                used += size
        if portion:
            yield portion

    def _in_group(self, states: Tensor, pairs: "_Pairs", blocks: list[tuple[int, int, int]], out: Tensor) -> None:
        """Ln P(class | group, history) of the events of some consecutive pairs.

        states: (pairs, H) the hidden state of each pair's history
        out:    (events,) in the order of the pairs; those of these pairs are written
        """
        first, last = blocks[0][1], blocks[-1][2]
        widths = self._order.sizes[pairs.groups[first:last]]
        ends = np.cumsum(widths)
        # The logits of the pairs lie end to end: one operation then does for all groups what comes after.
        logits = states.new_empty(int(ends[-1]))
        used = 0
        for group, start, stop in blocks:
            columns = self._members[group]
            size = (stop - start) * columns.shape[1]
            block = logits[used : used + size].view(stop - start, columns.shape[1])
            torch.mm(states[start:stop], columns, out=block)
            used += size
        events = slice(pairs.first_event[first], pairs.first_event[last])
        of_pair = pairs.of_event[events] - first
        places, at, lengths = (
            torch.from_numpy(array).to(logits.device)
            for array in ((ends - widths)[of_pair] + pairs.rank[events], of_pair, widths)
        )
        wanted = logits.index_select(0, places)
        low, high = torch.aminmax(logits)
        if max(-float(low), float(high)) < _SAFE_LOGIT:
            normaliser = torch.segment_reduce(logits.exp_(), "sum", lengths=lengths, unsafe=True).log_()
        else:
            peaks = torch.segment_reduce(logits, "max", lengths=lengths, unsafe=True)
            logits.sub_(peaks.repeat_interleave(lengths)).exp_()
            normaliser = torch.segment_reduce(logits, "sum", lengths=lengths, unsafe=True).log_().add_(peaks)
        torch.sub(wanted, normaliser.index_select(0, at), out=out[events])


def _call(piece: Callable[[], None]) -> None:
    piece()


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Distinct neighbours among (group, history) pairs of events that are ordered by group.

    groups, histories: (pairs,)
    of_event:          (events,) the pair of each event
    rank:              (events,) where among its group's members the class of each event stands
    first_event:       (pairs + 1,) the first event of each pair; the number of events at the end
    blocks:            per group that occurs, its number and its range of pairs
    """

    groups: NDArray[np.int64]
    histories: NDArray[np.int64]
    of_event: NDArray[np.int64]
    rank: NDArray[np.int64]
    first_event: NDArray[np.int64]
    blocks: list[tuple[int, int, int]]

    @classmethod
    def of(cls, groups: NDArray[np.integer[Any]], histories: NDArray[np.int64], rank: NDArray[np.int64]) -> "_Pairs":
        """Of events ordered by group, one entry each."""
        new = np.ones(len(groups), bool)
        new[1:] = (groups[1:] != groups[:-1]) | (histories[1:] != histories[:-1])
        first = np.flatnonzero(new)
        own = groups[first].astype(np.int64)
        starts = np.flatnonzero(np.diff(own, prepend=-1))
        blocks = zip(own[starts].tolist(), starts.tolist(), [*starts[1:].tolist(), len(own)], strict=False)
        ends = np.append(first, len(groups))
        return cls(own, histories[first], np.cumsum(new) - 1, rank, ends, list(blocks))
