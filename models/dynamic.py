"""Dynamic evaluation: the recurrent network goes on learning while it is tested (Mikolov et al. 2010, section 2.2).

A word is scored, then learnt by one step of stochastic gradient descent, then read. In an N-best list every hypothesis
starts from the session's weights, and what it learns word by word is its own. Copying the weights per hypothesis is not
needed: a step changes V by one outer product and W and U by tau, so the weights after t words are the session's plus a
difference of rank t, and every product with them is a product with the shared weights plus a thin correction. With

    s_t = sigmoid(U[x_t] + W s_{t-1})      y_t = softmax(V s_t)      g_t = y_t - onehot(w_t)

and learning rate eta, for tau = 1 and without decay:

    pre_t    = U[x_t] + W s_{t-1} - eta sum_{r<t} d_r (s_{r-1} . s_{t-1} + [x_r = x_t])
    logits_t = V s_t              - eta sum_{r<t} g_r (s_r . s_t)
    d_t      = (V^T g_t           - eta sum_{r<t} s_r (g_r . g_t)) * s_t * (1 - s_t)

For tau > 1 the error goes on as e_{t,0} = d_t, e_{t,k} = (W_t^T e_{t,k-1}) * s_{t-k} * (1 - s_{t-k}), and each of the
tau errors is one more term of the first sum. With decay beta towards the shared weights, a difference shrinks by
1 - eta beta a word. Hypotheses are walked as a prefix tree: a shared prefix is scored and learnt once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.base import FloatArray
from models.class_factored import ClassFactored
from models.errors import ModelFailedError
from models.learning import LearningOptions, Start
from models.online import TextLearner
from models.prefix_tree import IntArray, PrefixTree
from models.rnnlm import RARE_CLASS, ElmanLM
from models.vocabulary import EOS_ID

# A text is folded into the session every so many words: the cost of the corrections grows with the square of them.
_WORDS_A_FOLD = 32
_NO_INPUT = -1
# A log probability may exceed 0 by float32 rounding; it is then 0.
_ROUNDING = 1e-4


class DynamicElman:
    """Dynamic evaluation of an Elman network. The network itself is never changed.

    Of all learning, only the recurrent and input and output matrices take part, as in the paper; the value of the
    initial state is fixed.
    """

    def __init__(self, model: ElmanLM, options: LearningOptions) -> None:
        if isinstance(model.output, ClassFactored):
            raise ModelFailedError("dynamic evaluation word by word is defined for the full softmax")
        self.model = model
        self.options = options

    def score(self, tree: PrefixTree, starts: Sequence[Start]) -> FloatArray:
        """Score every event of a prefix tree while learning along each of its paths.

        starts:  per root, what it starts from
        returns: (events,) ln P(word | history) under the weights that the history has taught

        The result for a root does not depend on the other roots, up to float rounding.
        """
        with torch.no_grad():
            walk = _Walk(self.model, self.options, tree, starts).run()
            return self._log_probs(walk.scores, walk.event_classes)

    def learn(self, words: Sequence[int], start: Start) -> tuple[FloatArray, Start]:
        """Score a text and learn it, the sentence end included.

        words:   word ids without </s>
        returns: (T + 1,) ln P of each word when it came and of </s>; and what the next text starts from if the hidden
                 state is carried on

        The same text from the same start gives the same bits, whatever else goes on, for one number of threads.
        """
        inputs, targets = self._classes(EOS_ID, *words), self._classes(*words, EOS_ID)
        log_probs: list[FloatArray] = []
        with torch.no_grad():
            for first in range(0, len(targets), _WORDS_A_FOLD):
                part = slice(first, first + _WORDS_A_FOLD)
                learner = TextLearner(self.model.weights, self.options, start)
                scores, start = learner.run(inputs[part], targets[part])
                log_probs.append(self._log_probs(scores, targets[part]))
        return np.concatenate(log_probs), start

    def read(self, words: Sequence[int], start: Start) -> tuple[FloatArray, Start]:
        """Score a text without learning anything from it, under the weights of `start`.

        returns: (T + 1,) ln P of each word and of </s>; and what the next text starts from if the hidden state is
                 carried on. The same bits every time, as `learn`.
        """
        weights, delta = self.model.weights, start.delta
        with torch.no_grad():
            inputs, targets = self._classes(EOS_ID, *words), self._classes(*words, EOS_ID)
            fed = weights.U[inputs] + delta.input_rows(inputs)
            recurrent = weights.W if delta.empty else weights.W + delta.W
            states = weights.V.new_empty(len(inputs) + 1, len(recurrent))
            states[0] = start.state.states[-1]
            for position in range(len(inputs)):
                states[position + 1] = torch.sigmoid(torch.addmv(fed[position], recurrent, states[position]))
            logits = states[1:] @ weights.V.T
            if delta.rank:
                logits.addmm_(states[1:] @ delta.S.T, delta.G)
            scores = logits.gather(1, targets[:, None])[:, 0] - torch.logsumexp(logits, dim=1)
            state = start.state.followed_by(states[1:], inputs).recent(self.options.tau)
            return self._log_probs(scores, targets), Start(delta, state)

    def _classes(self, *events: int) -> Tensor:
        return torch.from_numpy(self.model.classes.of_event[list(events)]).to(self.model.weights.V.device)

    def _log_probs(self, scores: Tensor, classes: Tensor) -> FloatArray:
        """(n,) ln P of events from ln P of their classes."""
        out = scores.double()
        out[classes == RARE_CLASS] -= math.log(self.model.classes.rare_members)
        log_probs: FloatArray = out.cpu().numpy()
        if not np.all(np.isfinite(log_probs) & (log_probs <= _ROUNDING)):
            raise ModelFailedError("learning drove the recurrent network to a number that is no log probability")
        return np.minimum(log_probs, 0.0)


@dataclass(frozen=True, slots=True)
class _Span:
    """The nodes of one root inside a level: where they stand among the level's nodes."""

    root: int
    rows: slice


class _Walk:
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
        C, H = V.shape
        tau = options.tau
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
        # Per node, of the step that led to it: the tau errors at the hidden layer, the rows of the positions that they
        # arrive at, and of the positions before those.
        self._errors = V.new_zeros(tree.nodes, tau, H)
        self._reached = torch.zeros(tree.nodes, tau, dtype=torch.int64, device=self._device)
        self._before = torch.zeros(tree.nodes, tau, dtype=torch.int64, device=self._device)
        # A node that is learnt at keeps its y and V^T y.
        inner = np.zeros(tree.nodes, bool)
        inner[tree.parents[tree.roots :]] = True
        self._inner, self._y_row = self._tensor(inner), self._tensor(np.cumsum(inner) - 1)
        self._y = V.new_empty(int(inner.sum()), C)
        self._back = V.new_empty(len(self._y), H)
        self.scores = V.new_empty(tree.events)
        self._events = np.searchsorted(tree.histories, tree.levels)
        self._spans = _spans(tree)

    def _tensor(self, array: IntArray) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def run(self) -> "_Walk":
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

    def _session_factor(self, steps: int) -> float:
        """What is left of the session's difference after some steps."""
        return self._options.kept**steps

    def _learn(self, depth: int, nodes: slice, paths: Tensor) -> None:
        """Step `depth`: the errors of the words that lead to `nodes`, whose parents' paths are given."""
        tau, steps = self._options.tau, depth - 1
        words = self._inputs[nodes.start + self._first_node : nodes.stop + self._first_node]
        back = self._back[self._y_row[paths[:, -1] - self._first_node]] - self._output_rows(depth, words, paths)
        for k in range(tau):
            column = tau + steps - k
            reached = paths[:, column]
            states = self._states[reached]
            error = back * states * (1 - states)
            if k:
                error *= (self._inputs[reached] != _NO_INPUT)[:, None]
            self._errors[nodes, k] = error
            self._reached[nodes, k], self._before[nodes, k] = reached, paths[:, column - 1]
            if k + 1 < tau:
                back = self._through_recurrence(depth, error, paths)

    def _output_rows(self, depth: int, words: Tensor, paths: Tensor) -> Tensor:
        """(m, H) the rows of V for `words` before step `depth`."""
        tau, steps = self._options.tau, depth - 1
        rows = self._weights.V[words]
        for span in self._spans[depth]:
            delta = self._deltas[span.root]
            if delta.rank:
                rows[span.rows] += (delta.G[:, words[span.rows]].T @ delta.S) * self._session_factor(steps)
        if steps:
            learnt_at, led_to = paths[:, tau : tau + steps], paths[:, tau + 1 : tau + 1 + steps]
            errors = self._y[self._y_row[learnt_at - self._first_node], words[:, None]]
            errors = errors - (self._inputs[led_to] == words[:, None]).to(errors.dtype)
            rows += torch.bmm((errors * self._options.shares(steps, self._states))[:, None], self._states[learnt_at])[
                :, 0
            ]
        return rows

    def _through_recurrence(self, depth: int, error: Tensor, paths: Tensor) -> Tensor:
        """(m, H) -> (m, H): W^T error with W as it stood before step `depth`."""
        steps = depth - 1
        back = error @ self._weights.W
        for span in self._spans[depth]:
            delta = self._deltas[span.root]
            if not delta.empty:
                back[span.rows] += (error[span.rows] @ delta.W) * self._session_factor(steps)
        if steps:
            errors, before, _ = self._recurrent_factors(steps, paths)
            share = torch.bmm(errors, error[:, :, None])[:, :, 0] * self._factor_shares(steps)
            back += torch.bmm(share[:, None], before)[:, 0]
        return back

    def _recurrent_factors(self, steps: int, paths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The terms of W and U that the first `steps` steps of each path have added, up to their shares.

        returns: (m, steps * tau, H) errors, (m, steps * tau, H) states they are multiplied with, and the (m, steps *
                 tau) classes of the inputs they arrive at
        """
        tau = self._options.tau
        led_to = paths[:, tau + 1 : tau + 1 + steps] - self._first_node
        errors = self._errors[led_to].flatten(1, 2)
        before = self._states[self._before[led_to].flatten(1)]
        return errors, before, self._inputs[self._reached[led_to].flatten(1)]

    def _factor_shares(self, steps: int) -> Tensor:
        return self._options.shares(steps, self._states).repeat_interleave(self._options.tau)

    def _read(self, depth: int, paths: Tensor) -> Tensor:
        """(m, H) the hidden states of nodes at `depth`, whose own rows end their paths."""
        previous, words = self._states[paths[:, -2]], self._inputs[paths[:, -1]]
        pre = torch.addmm(self._weights.U[words], previous, self._weights.W.T)
        for span in self._spans[depth]:
            delta = self._deltas[span.root]
            if not delta.empty:
                added = delta.input_rows(words[span.rows]).addmm_(previous[span.rows], delta.W.T)
                pre[span.rows] += added * self._session_factor(depth)
        if depth:
            errors, before, classes = self._recurrent_factors(depth, paths)
            reach = torch.bmm(before, previous[:, :, None])[:, :, 0] + (classes == words[:, None]).to(pre.dtype)
            pre += torch.bmm((reach * self._factor_shares(depth))[:, None], errors)[:, 0]
        return torch.sigmoid(pre)

    def _predict(self, depth: int, nodes: slice, paths: Tensor) -> None:
        """The distributions at the nodes of a level: ln P of their events, and y and V^T y of those learnt at."""
        tau = self._options.tau
        states = self._states[paths[:, -1]]
        learnt_at, taught = paths[:, tau:-1], self._inputs[paths[:, tau + 1 :]]
        shares, taught_states = self._options.shares(depth, self._states), self._states[learnt_at]
        logits = states @ self._weights.V.T
        for span in self._spans[depth]:
            delta = self._deltas[span.root]
            if delta.rank:
                reduced = states[span.rows] @ delta.S.T
                logits[span.rows].addmm_(reduced, delta.G, alpha=self._session_factor(depth))
        if depth:
            reach = torch.bmm(taught_states, states[:, :, None])[:, :, 0] * shares
            mixed = _MixedRows(reach, self._y_row[learnt_at - self._first_node], self._y)
            logits += mixed.rows
            logits.scatter_add_(1, taught, -reach)
        events = slice(self._events[depth], self._events[depth + 1])
        local = self._histories[events] - nodes.start
        wanted = logits[local, self.event_classes[events]]
        largest = logits.amax(dim=1, keepdim=True)
        y = logits.sub_(largest).exp_()
        sums = y.sum(dim=1, keepdim=True)
        self.scores[events] = wanted - (largest + sums.log())[local, 0]
        inner = torch.nonzero(self._inner[nodes])[:, 0]
        if not len(inner):
            return
        y /= sums
        overlap = mixed.dots(y) - y.gather(1, taught) if depth else None
        own = self._y_row[nodes][inner]
        learnt_y = self._y[int(own[0]) : int(own[-1]) + 1]
        torch.index_select(y, 0, inner, out=learnt_y)
        back = learnt_y @ self._weights.V
        for span in self._spans[depth]:
            delta = self._deltas[span.root]
            if delta.rank:
                rows = (inner >= span.rows.start) & (inner < span.rows.stop)
                back[rows] += (learnt_y[rows] @ delta.G.T) @ delta.S * self._session_factor(depth)
        if overlap is not None:
            back += torch.bmm((overlap * shares)[inner][:, None], taught_states[inner])[:, 0]
        self._back[own] = back


class _MixedRows:
    """Weighted sums of a few rows of a large table each, and scalar products with those same rows.

    Far fewer rows take part in a sum than the table has, so neither is worth a matrix product; and gathering them first
    would write out what need only be read. The products are the sums' derivative with respect to the weights, which is
    how they are had without a gather.

    weights, places: (m, d) the weights, and which rows they belong to
    table:           (rows, C); it must not change before `dots`
    rows:            (m, C) the sums
    """

    def __init__(self, weights: Tensor, places: Tensor, table: Tensor) -> None:
        with torch.enable_grad():
            self._weights = weights.detach().requires_grad_()
            self._sums = functional.embedding_bag(places, table, per_sample_weights=self._weights, mode="sum")
        self.rows = self._sums.detach()

    def dots(self, vectors: Tensor) -> Tensor:
        """(m, C) -> (m, d) the scalar product of each vector with each row of its sum."""
        return torch.autograd.grad(self._sums, self._weights, vectors)[0]


def _spans(tree: PrefixTree) -> list[list[_Span]]:
    """Per level, the spans of the roots that reach it; inside a level nodes stand in the order of their roots."""
    roots = np.arange(tree.nodes)
    out = []
    for depth, (first, last) in enumerate(pairwise(tree.levels)):
        if depth:
            roots[first:last] = roots[tree.parents[first:last]]
        here = roots[first:last]
        found, begins = np.unique(here, return_index=True)
        ends = [*begins[1:].tolist(), len(here)]
        out.append([_Span(int(r), slice(int(b), e)) for r, b, e in zip(found, begins, ends, strict=True)])
    return out
