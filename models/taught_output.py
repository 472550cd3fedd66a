"""The output layer along the paths of a prefix tree, each path having taught it something of its own.

Before a node at depth d is predicted, the words on the path to it have changed V by d outer products:

    V_t = V - sum_{r<t} share_r g_r s_r^T        g_r = y_r - onehot(w_r)

so that logits V_t s and errors V_t^T y are products with the shared V plus sums over the path (models/dynamic.py).
Those sums run over the distributions y of earlier nodes, which are therefore kept, all of them: the layer works on a
block of classes at a time, so that what is added, raised to a power, summed and multiplied again stays in the cache.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from models.output_layer import LOG2_E
from models.row_sums import row_dots, row_sums
from models.scratch import Scratch
from models.weight_delta import WeightDelta

# Classes that are worked on at a time.
_BLOCK = 1500


@dataclass(frozen=True, slots=True)
class Span:
    """The nodes of one root inside a level: their rows among the level's nodes, and the session's own difference.

    kept: what is left of the difference after the words before this level
    """

    rows: slice
    delta: WeightDelta
    kept: float


@dataclass(frozen=True, slots=True)
class Taught:
    """What the paths to m nodes of one depth d have taught, d words each.

    learnt_at: (m, d) the nodes at which the words were learnt
    words:     (m, d) the classes of the words
    weights:   (m, d) the share of each step in V_t, times the scalar product of its state with the node's: what
               g_r is multiplied with in the node's logits
    """

    learnt_at: Tensor
    words: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class Wanted:
    """(events,) rows among the nodes of a level, and (events,) classes: which node's probability of which class."""

    rows: Tensor
    classes: Tensor


@dataclass(frozen=True, slots=True)
class Predicted:
    """At the nodes of a level, n of which are learnt at.

    log_probs: (events,) ln P of the wanted classes
    back:      (n, H) y^T V where something is learnt, V being the session's: without what the path has taught
    overlap:   (n, d) g_r . y of each step r of the path, there
    """

    log_probs: Tensor
    back: Tensor
    overlap: Tensor


@dataclass(frozen=True, slots=True)
class _Block:
    """Some of the classes: their rows of V, and of every node the powers of its logits, once it is predicted.

    V:      (width, H)
    powers: (nodes, width) y times a factor of the node's
    """

    classes: slice
    V: Tensor
    powers: Tensor


class TaughtOutput:
    """See above. Nodes have to be predicted depth by depth, those of a level together.

    V:       (C, H) the shared output matrix
    nodes:   how many the tree has
    scratch: where the distributions are kept, all nodes x C numbers of them; nobody else's as long as this is used
    """

    def __init__(self, V: Tensor, nodes: int, scratch: Scratch) -> None:
        C = len(V)
        self._classes, self._nodes = C, nodes
        self._width = min(_BLOCK, C) if V.device.type == "cpu" else C
        # Powers of two nodes are multiplied with each other and summed: within these bounds of their sums no product
        # overflows, and those that are lost are less than rounding does.
        kind = torch.finfo(V.dtype)
        self._range = (math.sqrt(kind.tiny * C) / kind.eps, math.sqrt(kind.max))
        # Block by block, then node by node.
        self._powers = scratch.take("powers", nodes, C, V).view(-1)
        self._factors = V.new_empty(nodes)
        self._blocks = tuple(
            _Block(
                slice(first, last), V[first:last], self._powers[nodes * first : nodes * last].view(nodes, last - first)
            )
            for first, last in pairwise([*range(0, C, self._width), C])
        )

    def y(self, nodes: Tensor, classes: Tensor) -> Tensor:
        """P(class) at nodes that have been predicted; of the shape that both broadcast to."""
        first = classes // self._width * self._width
        width = (self._classes - first).clamp_(max=self._width)
        return self._powers[self._nodes * first + nodes * width + classes - first] * self._factors[nodes]

    def predict(
        self, nodes: slice, states: Tensor, spans: Sequence[Span], taught: Taught, wanted: Wanted, learnt: Tensor
    ) -> Predicted:
        """The distributions at the nodes of one level.

        states: (m, H) their hidden states
        spans:  the sessions among them that differ from the shared weights
        learnt: (n,) which of the nodes are learnt at
        """
        factors = self._factors[taught.learnt_at]
        weights = taught.weights * factors * LOG2_E
        level = _Level(self._blocks, nodes, states, spans, taught, weights, learnt)
        sums, logits, back, overlap = level.sum_up(wanted)
        log_sums = torch.log2(sums)
        if not bool(((sums > self._range[0]) & (sums < self._range[1])).all()):
            largest = level.largest()
            sums, logits, back, overlap = level.sum_up(wanted, less=largest)
            log_sums = torch.log2(sums) + largest
        self._factors[nodes] = own = torch.reciprocal(sums)
        own = own[learnt, None]
        overlap *= factors[learnt] * own
        overlap -= self.y((learnt + nodes.start)[:, None], taught.words[learnt])
        return Predicted((logits - log_sums[wanted.rows]) / LOG2_E, back * own, overlap)


class _Level:
    """The nodes of one depth, block of classes by block; exponents are of 2, for that is the cheaper function.

    weights: (m, d) what the rows of powers are multiplied with in the nodes' logits
    """

    def __init__(
        self,
        blocks: Sequence[_Block],
        nodes: slice,
        states: Tensor,
        spans: Sequence[Span],
        taught: Taught,
        weights: Tensor,
        learnt: Tensor,
    ) -> None:
        self._learnt = learnt
        self._blocks, self._nodes, self._taught, self._weights = blocks, nodes, taught, weights
        self._states = states * LOG2_E
        self._spans = [span for span in spans if span.delta.rank]
        self._reduced = [(self._states[span.rows] @ span.delta.S.T) * span.kept for span in self._spans]
        bounds = [bound for span in self._spans for bound in (span.rows.start, span.rows.stop)]
        found = torch.searchsorted(learnt, torch.tensor(bounds, device=learnt.device)).tolist()
        self._learnt_spans = [
            (span, slice(first, last)) for span, first, last in zip(self._spans, found[::2], found[1::2], strict=True)
        ]
        m, d = weights.shape
        rows = torch.arange(m, device=states.device)[:, None].expand(m, d)
        self._corrections = self._places(rows.reshape(-1), taught.words.reshape(-1))
        self._corrected_by = taught.weights.reshape(-1) * -LOG2_E

    def _places(self, rows: Tensor, classes: Tensor) -> list[tuple[Tensor, tuple[Tensor, Tensor]]]:
        """Per block, which of some entries of the logits lie in it, and where."""
        block = classes // len(self._blocks[0].V)
        order = torch.argsort(block)
        sizes = torch.bincount(block, minlength=len(self._blocks)).tolist()
        rows, inside = rows[order], classes[order] - block[order] * len(self._blocks[0].V)
        parts = (torch.split(part, sizes) for part in (order, rows, inside))
        return [(chosen, (row, column)) for chosen, row, column in zip(*parts, strict=True)]

    def _logits(self) -> Iterator[Tensor]:
        """Per block the logits, where its powers will be."""
        for block, (chosen, places) in zip(self._blocks, self._corrections, strict=True):
            logits = block.powers[self._nodes]
            torch.mm(self._states, block.V.T, out=logits)
            for span, reduced in zip(self._spans, self._reduced, strict=True):
                logits[span.rows].addmm_(reduced, span.delta.G[:, block.classes])
            if self._weights.shape[1]:
                logits += row_sums(block.powers, self._taught.learnt_at, self._weights)
                logits.index_put_(places, self._corrected_by[chosen], accumulate=True)
            yield logits

    def largest(self) -> Tensor:
        """(m,) the largest logit of each node."""
        return torch.stack([logits.amax(dim=1) for logits in self._logits()]).amax(dim=0)

    def sum_up(self, wanted: Wanted, less: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Fill the nodes' rows of powers.

        less:    (m,) what the logits are lessened by before they are raised; nothing when left out
        returns: (m,) the sums of each node's powers, (events,) the wanted classes' logits as they are, (n, H) the
                 powers times the session's V, (n, d) the scalar products with the rows of powers on the path
        """
        states, learnt = self._states, self._learnt
        n = len(learnt)
        out = states.new_empty(len(wanted.rows))
        sums, back = states.new_zeros(len(states)), states.new_zeros(n, states.shape[1])
        places_learnt = self._taught.learnt_at[learnt]
        overlap = torch.zeros_like(places_learnt, dtype=states.dtype)
        in_session = [states.new_zeros(rows.stop - rows.start, span.delta.rank) for span, rows in self._learnt_spans]
        for block, (chosen, places), logits in zip(
            self._blocks, self._places(wanted.rows, wanted.classes), self._logits(), strict=True
        ):
            out[chosen] = logits[places]
            powers = (logits if less is None else logits.sub_(less[:, None])).exp2_()
            sums += powers.sum(dim=1)
            if not n:
                continue
            if n < len(powers):
                powers = powers.index_select(0, learnt)
            back.addmm_(powers, block.V)
            overlap += row_dots(block.powers, places_learnt, powers)
            for (span, rows), product in zip(self._learnt_spans, in_session, strict=True):
                product.addmm_(powers[rows], span.delta.G[:, block.classes].T)
        for (span, rows), product in zip(self._learnt_spans, in_session, strict=True):
            back[rows].addmm_(product, span.delta.S, alpha=span.kept)
        return sums, out, back, overlap
