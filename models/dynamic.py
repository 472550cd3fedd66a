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
from numpy.typing import NDArray
from torch import Tensor

from models.base import FloatArray
from models.errors import InvalidOptionError, ModelFailedError
from models.prefix_tree import IntArray, PrefixTree
from models.rnnlm import RARE_CLASS, ElmanLM
from models.vocabulary import EOS_ID
from models.weight_delta import Steps, WeightDelta

# A text is folded into the session every so many words: the cost of the corrections grows with the square of them.
_WORDS_A_FOLD = 32
_NO_INPUT = -1
# A log probability may exceed 0 by float32 rounding; it is then 0.
_ROUNDING = 1e-4


@dataclass(frozen=True, slots=True)
class LearningOptions:
    """How the network learns while it is tested.

    rate:  learning rate eta, 0.1 in the paper
    tau:   how many steps back an error is propagated, 1 in the paper
    decay: beta, how strongly weights are drawn back towards the shared ones; 0 in the paper

    Raises InvalidOptionError naming the field.
    """

    rate: float = 0.1
    tau: int = 1
    decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.rate < float("inf"):
            raise InvalidOptionError(f"rate is {self.rate}; it must be finite and not negative")
        if self.tau < 1:
            raise InvalidOptionError(f"tau is {self.tau}; it must be at least 1")
        if not 0 <= self.decay < float("inf") or self.rate * self.decay > 1:
            raise InvalidOptionError(f"decay is {self.decay}; it must be finite, not negative, and at most 1 / rate")

    @property
    def kept(self) -> float:
        """The share of a difference from the shared weights that is left after a word."""
        return 1.0 - self.rate * self.decay


@dataclass(frozen=True, slots=True)
class HiddenState:
    """Where a session's text stands: the hidden state after its last word, and how it came about.

    states: (n + 1, H) the last hidden states, oldest first; the last is the state that a text goes on from
    inputs: (n,) the class that was read between two of them; n may be less than tau, and is 0 at a fresh start
    """

    states: Tensor
    inputs: Tensor

    @classmethod
    def initial(cls, model: ElmanLM) -> "HiddenState":
        """The state before any text."""
        V = model.weights.V
        states = torch.full((1, V.shape[1]), model.initial_state, dtype=V.dtype, device=V.device)
        return cls(states, torch.empty(0, dtype=torch.int64, device=V.device))

    def recent(self, tau: int) -> "HiddenState":
        """As much of it as an error that goes back tau steps can reach beyond the next input."""
        reach = min(len(self.inputs), tau - 1)
        return HiddenState(self.states[len(self.states) - 1 - reach :], self.inputs[len(self.inputs) - reach :])


@dataclass(frozen=True, slots=True)
class Start:
    """What a list is scored from.

    delta: the session's difference from the shared weights
    state: where the session's text stands
    """

    delta: WeightDelta
    state: HiddenState


class DynamicElman:
    """Dynamic evaluation of an Elman network. The network itself is never changed.

    Of all learning, only the recurrent and input and output matrices take part, as in the paper; the value of the
    initial state is fixed.
    """

    def __init__(self, model: ElmanLM, options: LearningOptions) -> None:
        self.model = model
        self.options = options

    def score(self, tree: PrefixTree, starts: Sequence[Start]) -> FloatArray:
        """Score every event of a prefix tree while learning along each of its paths.

        starts:  per root, what it starts from
        returns: (events,) ln P(word | history) under the weights that the history has taught

        The result for a root does not depend on the other roots, up to float rounding.
        """
        with torch.inference_mode():
            return _Walk(self.model, self.options, tree, starts).run().event_log_probs()

    def learn(self, words: Sequence[int], start: Start) -> tuple[FloatArray, Start]:
        """Score a text and learn it, the sentence end included.

        words:   word ids without </s>
        returns: (T + 1,) ln P of each word when it came and of </s>; and what the next text starts from if the hidden
                 state is carried on

        The same text from the same start gives the same bits, whatever else goes on, for one number of threads.
        """
        log_probs: list[FloatArray] = []
        with torch.inference_mode():
            events = [*words, EOS_ID]
            inputs = [EOS_ID, *words]
            for first in range(0, len(events), _WORDS_A_FOLD):
                rows = slice(first, first + _WORDS_A_FOLD)
                walk = _Walk(self.model, self.options, _chain(inputs[rows], events[rows]), [start]).run()
                log_probs.append(walk.event_log_probs())
                start = walk.end(start)
        return np.concatenate(log_probs), start


def _chain(inputs: Sequence[int], targets: Sequence[int]) -> PrefixTree:
    """A tree of one path of which the last target, too, is a node, so that it is learnt.

    inputs:  the words read, the first by the root
    targets: the word that follows each
    """
    count = len(inputs)
    nodes = np.arange(count)
    return PrefixTree(
        roots=1,
        parents=np.append(np.maximum(nodes - 1, 0), count - 1),
        node_words=np.array([*inputs, targets[-1]], np.int64),
        levels=tuple(range(count + 2)),
        histories=nodes,
        event_words=np.asarray(targets, np.int64),
        sentences=(nodes,),
    )


@dataclass(frozen=True, slots=True)
class _Span:
    """The nodes of one root inside a level.

    rows, inner_rows: where they stand among the level's nodes, and among those that are learnt at
    y_first, y_end:   the rows of y that the root's earlier levels hold
    """

    root: int
    rows: slice
    inner_rows: slice
    y_first: int
    y_end: int


class _Walk:
    """One pass over a tree, depth by depth.

    Rows of `_states` and `_inputs` are numbered: first, per root, tau positions that lie before it, oldest first; then
    the tree's nodes. A path holds the rows of a node's positions: those before the root, the root, and so on to the
    node. Step r of a path is the learning of the word that leads to its node at depth r.
    """

    def __init__(self, model: ElmanLM, options: LearningOptions, tree: PrefixTree, starts: Sequence[Start]) -> None:
        self._weights, self._options, self._tree = model.weights, options, tree
        self._deltas = [start.delta for start in starts]
        self._rare_members = model.classes.rare_members
        V = model.weights.V
        self._device = V.device
        C, H = V.shape
        tau = options.tau
        self._event_classes = self._tensor(model.classes.of_event[tree.event_words])
        self._histories = self._tensor(tree.histories)
        self._parents = self._tensor(tree.parents)
        self._first_node = tree.roots * tau
        rows = self._first_node + tree.nodes
        self._states = V.new_zeros(rows, H)
        self._inputs = torch.full((rows,), _NO_INPUT, dtype=torch.int64, device=self._device)
        self._inputs[self._first_node :] = self._tensor(model.classes.of_event[tree.node_words])
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
        # A node that is learnt at keeps its y and V^T y; those of one root stand together, in the order of their depth.
        root_of = _roots(tree)
        inner = np.zeros(tree.nodes, bool)
        inner[tree.parents[tree.roots :]] = True
        order = np.flatnonzero(inner)[np.argsort(root_of[inner], kind="stable")]
        y_row = np.full(tree.nodes, -1)
        y_row[order] = np.arange(len(order))
        self._inner, self._y_row = self._tensor(inner), self._tensor(y_row)
        self._y = V.new_empty(len(order), C)
        self._back = V.new_empty(len(order), H)
        self._log_probs = V.new_empty(tree.events)
        self._events = np.searchsorted(tree.histories, tree.levels)
        self._spans = _spans(tree, root_of, inner)

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
            if self._events[depth] == self._events[depth + 1]:
                break
            own = torch.arange(first, last, device=self._device) + self._first_node
            paths = torch.cat([paths, own[:, None]], dim=1)
            self._states[own] = self._read(depth, paths)
            self._predict(depth, slice(first, last), paths)
        return self

    def event_log_probs(self) -> FloatArray:
        """(events,) ln P of each event; see DynamicElman.score."""
        out = self._log_probs.double()
        out[self._event_classes == RARE_CLASS] -= math.log(self._rare_members)
        log_probs: FloatArray = out.cpu().numpy()
        if not np.all(log_probs <= _ROUNDING):
            raise ModelFailedError("learning drove the recurrent network to a number that is no log probability")
        return np.minimum(log_probs, 0.0)

    def end(self, start: Start) -> Start:
        """What comes after a chain from `start`: its steps folded in, and the state after its last input."""
        o = self._options
        steps = self._tree.nodes - 1
        shares = self._shares(steps)
        output_errors = self._y * shares[:, None]
        predicted = self._inputs[self._first_node + 1 :]
        output_errors[torch.arange(steps, device=self._device), predicted] -= shares
        errors = (self._errors[1:] * shares[:, None, None]).flatten(0, 1)
        reached, before = self._reached[1:].flatten(), self._before[1:].flatten()
        real = self._inputs[reached] != _NO_INPUT
        last = self._first_node + steps
        taught = Steps(
            output_errors,
            self._states[self._first_node : last],
            errors[real],
            self._states[before[real]],
            self._inputs[reached[real]],
        )
        known = int((self._inputs[:last] != _NO_INPUT).sum())
        state = HiddenState(self._states[last - known - 1 : last], self._inputs[last - known : last]).recent(o.tau)
        delta = start.delta.learnt(taught, o.kept**steps)
        return Start(delta, HiddenState(state.states.clone(), state.inputs.clone()))

    def _shares(self, steps: int) -> Tensor:
        """(steps,) what of each step's gradient stands in the weights after the last: -eta (1 - eta beta)^age."""
        age = torch.arange(steps - 1, -1, -1, dtype=self._states.dtype, device=self._device)
        return -self._options.rate * self._options.kept**age

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
            rows += torch.bmm((errors * self._shares(steps))[:, None], self._states[learnt_at])[:, 0]
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
        return self._shares(steps).repeat_interleave(self._options.tau)

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
        shares, taught_states = self._shares(depth), self._states[learnt_at]
        y_rows = self._y_row[learnt_at - self._first_node]
        logits = states @ self._weights.V.T
        reach = torch.bmm(taught_states, states[:, :, None])[:, :, 0] * shares
        for span in self._spans[depth]:
            part, delta = logits[span.rows], self._deltas[span.root]
            if delta.rank:
                part.addmm_(states[span.rows] @ delta.S.T, delta.G, alpha=self._session_factor(depth))
            if depth:
                spread = states.new_zeros(len(part), span.y_end - span.y_first)
                spread.scatter_(1, y_rows[span.rows] - span.y_first, reach[span.rows])
                part.addmm_(spread, self._y[span.y_first : span.y_end])
        logits.scatter_add_(1, taught, -reach)
        normaliser = torch.logsumexp(logits, dim=1)
        events = slice(self._events[depth], self._events[depth + 1])
        local = self._histories[events] - nodes.start
        self._log_probs[events] = logits[local, self._event_classes[events]] - normaliser[local]
        inner = self._inner[nodes]
        if not bool(inner.any()):
            return
        y = torch.exp_(logits[inner].sub_(normaliser[inner][:, None]))
        own = self._y_row[nodes][inner]
        back = y @ self._weights.V
        overlap = torch.zeros_like(reach[inner])
        for span in self._spans[depth]:
            rows, delta = span.inner_rows, self._deltas[span.root]
            part = y[rows]
            if delta.rank:
                back[rows].addmm_(part @ delta.G.T, delta.S, alpha=self._session_factor(depth))
            if depth and len(part):
                dots = part @ self._y[span.y_first : span.y_end].T
                overlap[rows] = dots.gather(1, y_rows[inner][rows] - span.y_first)
        if depth:
            overlap -= y.gather(1, taught[inner])
            back += torch.bmm((overlap * shares)[:, None], taught_states[inner])[:, 0]
        self._y[own], self._back[own] = y, back


def _roots(tree: PrefixTree) -> IntArray:
    """(nodes,) the root of each node."""
    roots = np.arange(tree.nodes)
    for first, last in pairwise(tree.levels[1:]):
        roots[first:last] = roots[tree.parents[first:last]]
    return roots


def _spans(tree: PrefixTree, root_of: IntArray, inner: NDArray[np.bool_]) -> list[list[_Span]]:
    """Per level, the spans of the roots that reach it; inside a level nodes stand in the order of their roots."""
    counts = np.bincount(root_of[inner], minlength=tree.roots)
    y_first = np.concatenate([[0], np.cumsum(counts)])[:-1]
    y_end = y_first.copy()
    out = []
    for first, last in pairwise(tree.levels):
        roots, inside = root_of[first:last], inner[first:last]
        before = np.concatenate([[0], np.cumsum(inside)])
        level = []
        for root in np.unique(roots):
            begin, end = np.searchsorted(roots, [root, root + 1])
            inner_rows = slice(int(before[begin]), int(before[end]))
            level.append(
                _Span(int(root), slice(int(begin), int(end)), inner_rows, int(y_first[root]), int(y_end[root]))
            )
            y_end[root] += inner_rows.stop - inner_rows.start
        out.append(level)
    return out
