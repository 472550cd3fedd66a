"""The walk of dynamic evaluation over a prefix tree: a shared prefix is scored and learnt once.

The formulas are those of models/dynamic.py; what concerns V is in models/taught_output.py.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from models.learning import LearningOptions, Start
from models.prefix_tree import IntArray, PrefixTree
from models.rnnlm import ElmanLM
from models.row_sums import row_dots, row_sums
from models.scratch import ThreadScratch
from models.taught_output import Span, Taught, TaughtOutput, Wanted

_NO_INPUT = -1
# Walks of one thread come one after another.
_SCRATCH = ThreadScratch()


class Walk:
    """One pass over a tree, depth by depth.

    Rows of `_states` and `_inputs` are numbered: first, per root, tau positions that lie before it, oldest first; then
    the tree's nodes. A path holds the rows of a node's positions: those before the root, the root, and so on to the
    node. Step r of a path is the learning of the word that leads to its node at depth r.

    scores, event_classes: (events,) ln P of each event's class, and that class
    """

    def __init__(self, model: ElmanLM, options: LearningOptions, tree: PrefixTree, starts: Sequence[Start]) -> None:
        weights, classes = model.weights, model.classes
        self._weights, self._options, self._tree = weights, options, tree
        self._deltas = [start.delta for start in starts]
        V = weights.V
        self._device = V.device
        H, tau = V.shape[1], options.tau
        self.event_classes = self._tensor(classes.of_event[tree.event_words])
        self._histories = self._tensor(tree.histories)
        self._parents = self._tensor(tree.parents)
        self._first_node = tree.roots * tau
        rows = self._first_node + tree.nodes
        self._states = V.new_zeros(rows, H)
        self._inputs = torch.full((rows,), _NO_INPUT, dtype=torch.int64, device=self._device)
        self._inputs[self._first_node :] = self._tensor(classes.of_event[tree.node_words])
        for root, start in enumerate(starts):
            recent = start.state.recent(tau)
            end = (root + 1) * tau
            self._states[end - len(recent.states) : end] = recent.states
            self._inputs[end - len(recent.inputs) : end] = recent.inputs
        # Node by node, of the step that led to it: the tau errors at the hidden layer, the rows of the positions that
        # they arrive at, and of the positions before those.
        self._errors = V.new_zeros(tree.nodes * tau, H)
        self._reached = torch.zeros(tree.nodes * tau, dtype=torch.int64, device=self._device)
        self._before = torch.zeros(tree.nodes * tau, dtype=torch.int64, device=self._device)
        self._output = TaughtOutput(V, tree.nodes, _SCRATCH.own)
        # Something is learnt where a word follows. There, y^T V, V being what it was.
        inner = np.zeros(tree.nodes, bool)
        inner[tree.parents[tree.roots :]] = True
        self._inner = torch.from_numpy(inner).to(self._device)
        self._back = V.new_empty(tree.nodes, H)
        self.scores = V.new_empty(tree.events)
        self._events = np.searchsorted(tree.histories, tree.levels)
        self._roots_of_levels = _roots_of_levels(tree)

    def _tensor(self, array: IntArray) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def run(self) -> "Walk":
        """Walk the tree."""
        levels, tau = self._tree.levels, self._options.tau
        paths = torch.arange(self._first_node, device=self._device).view(self._tree.roots, tau)
        for depth, (first, last) in enumerate(pairwise(levels)):
            if depth:
                paths = paths[self._parents[first:last] - levels[depth - 1]]
                self._learn(depth, slice(first, last), paths)
            own = torch.arange(first, last, device=self._device) + self._first_node
            paths = torch.cat([paths, own[:, None]], dim=1)
            self._states[own] = self._read(depth, paths)
            self._predict(depth, slice(first, last), paths)
        return self

    def _spans(self, depth: int, steps: int) -> list[Span]:
        """The sessions that differ from the shared weights at a level, after some steps of learning."""
        kept = self._options.kept**steps
        return [
            Span(rows, self._deltas[root], kept)
            for root, rows in self._roots_of_levels[depth]
            if not self._deltas[root].empty
        ]

    def _learn(self, depth: int, nodes: slice, paths: Tensor) -> None:
        """Step `depth`: the errors of the words that lead to `nodes`, whose parents' paths are given."""
        tau, steps = self._options.tau, depth - 1
        words = self._inputs[nodes.start + self._first_node : nodes.stop + self._first_node]
        back = self._back[paths[:, -1] - self._first_node] - self._output_rows(depth, words, paths)
        for k in range(tau):
            column = tau + steps - k
            reached = paths[:, column]
            states = self._states[reached]
            error = back * states * (1 - states)
            if k:
                error *= (self._inputs[reached] != _NO_INPUT)[:, None]
            rows = slice(nodes.start * tau + k, nodes.stop * tau + k, tau)
            self._errors[rows], self._reached[rows], self._before[rows] = error, reached, paths[:, column - 1]
            if k + 1 < tau:
                back = self._through_recurrence(depth, error, paths)

    def _output_rows(self, depth: int, words: Tensor, paths: Tensor) -> Tensor:
        """(m, H) the rows of V for `words` before step `depth`."""
        tau, steps = self._options.tau, depth - 1
        rows = self._weights.V[words]
        for span in self._spans(depth, steps):
            rows[span.rows].addmm_(span.delta.G[:, words[span.rows]].T, span.delta.S, alpha=span.kept)
        if steps:
            learnt_at, led_to = paths[:, tau : tau + steps], paths[:, tau + 1 : tau + 1 + steps]
            errors = self._output.y(learnt_at - self._first_node, words[:, None])
            errors -= (self._inputs[led_to] == words[:, None]).to(errors.dtype)
            rows += row_sums(self._states, learnt_at, errors * self._options.shares(steps, self._states))
        return rows

    def _through_recurrence(self, depth: int, error: Tensor, paths: Tensor) -> Tensor:
        """(m, H) -> (m, H): W^T error with W as it stood before step `depth`."""
        steps = depth - 1
        back = error @ self._weights.W
        for span in self._spans(depth, steps):
            back[span.rows].addmm_(error[span.rows], span.delta.W, alpha=span.kept)
        if steps:
            factors = self._recurrent_factors(steps, paths)
            shares = row_dots(self._errors, factors, error) * self._factor_shares(steps)
            back += row_sums(self._states, self._before[factors], shares)
        return back

    def _recurrent_factors(self, steps: int, paths: Tensor) -> Tensor:
        """(m, steps * tau) the rows of `_errors`, `_reached` and `_before` that the first steps of each path filled."""
        tau = self._options.tau
        led_to = paths[:, tau + 1 : tau + 1 + steps] - self._first_node
        return (led_to[:, :, None] * tau + torch.arange(tau, device=self._device)).flatten(1)

    def _factor_shares(self, steps: int) -> Tensor:
        return self._options.shares(steps, self._states).repeat_interleave(self._options.tau)

    def _read(self, depth: int, paths: Tensor) -> Tensor:
        """(m, H) the hidden states of nodes at `depth`, whose own rows end their paths."""
        previous, words = self._states[paths[:, -2]], self._inputs[paths[:, -1]]
        pre = torch.addmm(self._weights.U[words], previous, self._weights.W.T)
        for span in self._spans(depth, depth):
            added = span.delta.input_rows(words[span.rows]).addmm_(previous[span.rows], span.delta.W.T)
            pre[span.rows] += added * span.kept
        if depth:
            factors = self._recurrent_factors(depth, paths)
            reach = row_dots(self._states, self._before[factors], previous)
            reach += (self._inputs[self._reached[factors]] == words[:, None]).to(pre.dtype)
            pre += row_sums(self._errors, factors, reach * self._factor_shares(depth))
        return torch.sigmoid(pre)

    def _predict(self, depth: int, nodes: slice, paths: Tensor) -> None:
        """The distributions at the nodes of a level: ln P of their events, and y^T V where words follow."""
        tau = self._options.tau
        states, learnt_at = self._states[paths[:, -1]], paths[:, tau:-1]
        shares = self._options.shares(depth, self._states)
        weights = row_dots(self._states, learnt_at, states) * shares
        taught = Taught(learnt_at - self._first_node, self._inputs[paths[:, tau + 1 :]], weights)
        events = slice(self._events[depth], self._events[depth + 1])
        wanted = Wanted(self._histories[events] - nodes.start, self.event_classes[events])
        learnt = torch.nonzero(self._inner[nodes])[:, 0]
        out = self._output.predict(nodes, states, self._spans(depth, depth), taught, wanted, learnt)
        self.scores[events] = out.log_probs
        self._back[learnt + nodes.start] = out.back + row_sums(self._states, learnt_at[learnt], out.overlap * shares)


def _roots_of_levels(tree: PrefixTree) -> list[list[tuple[int, slice]]]:
    """Per level, the roots that reach it, each with the rows of its nodes."""
    roots = tree.root_of_nodes()
    out = []
    for first, last in pairwise(tree.levels):
        found, begins = np.unique(roots[first:last], return_index=True)
        ends = [*begins[1:].tolist(), last - first]
        out.append([(int(r), slice(int(b), e)) for r, b, e in zip(found, begins, ends, strict=True)])
    return out
