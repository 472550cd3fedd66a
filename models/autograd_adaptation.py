"""Adaptation of networks with a class-factored output: one step of gradient descent an accepted utterance.

Dynamic evaluation word by word (models/dynamic.py) is written out for the full softmax. Other networks learn more
coarsely: hypotheses are scored with the session's weights as they stand, and an accepted text is learnt by one step on
its summed cross-entropy, the errors propagated back to the utterance's beginning whatever tau says. The gradients come
from autograd, but only those at the logits and before the sigmoid: with them the step is a sum of outer products, a low
rank difference from the shared weights like any other session's (models/weight_delta.py).
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.base import FloatArray
from models.class_factored import ClassFactored
from models.errors import ModelFailedError
from models.learning import LearningOptions, Start
from models.prefix_tree import IntArray, PrefixTree
from models.rnnlm import ElmanLM, ElmanWeights
from models.vocabulary import EOS_ID
from models.weight_delta import Steps


class AutogradElman:
    """Learning of a class-factored network, behind the interface of DynamicElman. The network is never changed.

    options: rate and decay; a step has the rate times the gradient of the summed cross-entropy of an utterance, which
             is as far as about as many word by word steps lead, and decay counts utterances
    """

    def __init__(self, model: ElmanLM, options: LearningOptions) -> None:
        if not isinstance(model.output, ClassFactored):
            raise ModelFailedError("adaptation through autograd is for class-factored networks")
        self.model, self.options = model, options
        self._groups = model.output.groups

    def score(self, tree: PrefixTree, starts: Sequence[Start]) -> FloatArray:
        """(events,) ln P(word | history) under the weights of each root's start; nothing is learnt along a path."""
        hidden = np.stack([start.hidden for start in starts])
        fresh = np.array([start.delta.empty for start in starts])
        out = self.model.score(tree, hidden)[0] if fresh.any() else np.empty(tree.events)
        root_of = np.arange(tree.nodes)
        for first, last in zip(tree.levels[1:], tree.levels[2:], strict=False):
            root_of[first:last] = root_of[tree.parents[first:last]]
        for root in np.flatnonzero(~fresh).tolist():
            events = np.flatnonzero(root_of[tree.histories] == root)
            branch = _branch(tree, root_of == root, events)
            out[events] = self._adapted(starts[root]).score(branch, hidden[root : root + 1])[0]
        return out

    def read(self, words: Sequence[int], start: Start) -> tuple[FloatArray, Start]:
        """See DynamicElman."""
        tree = PrefixTree.build([words])
        log_probs, states = self._adapted(start).score(tree, start.hidden[None])
        # A single path: nodes and events stand in the order of the text.
        taken = torch.from_numpy(states).to(start.state.states.device, start.state.states.dtype)
        state = start.state.followed_by(taken, self._classes(EOS_ID, *words)).recent(self.options.tau)
        return log_probs, Start(start.delta, state)

    def learn(self, words: Sequence[int], start: Start) -> tuple[FloatArray, Start]:
        """Score a text, then learn it by one step; see DynamicElman."""
        log_probs, after = self.read(words, start)
        weights = start.delta.applied(self.model.weights)
        steps = self._steps(weights, start, self._classes(EOS_ID, *words), self._classes(*words, EOS_ID))
        with torch.no_grad():
            return log_probs, Start(start.delta.learnt(steps, self.options.kept), after.state)

    def _steps(self, weights: ElmanWeights, start: Start, inputs: Tensor, targets: Tensor) -> Steps:
        """One step on the summed cross-entropy of the targets, as outer products."""
        with torch.enable_grad():
            # Zeros whose gradients are those before the sigmoid.
            before = torch.zeros(len(inputs), len(weights.W), dtype=weights.W.dtype, device=weights.W.device)
            before.requires_grad_()
            states = [start.state.states[-1]]
            for read, zero in zip(inputs, before, strict=True):
                states.append(torch.sigmoid(weights.U[read] + weights.W @ states[-1] + zero))
            hidden = torch.stack(states[1:])
            logits = hidden @ weights.V.T
            loss = -self._log_probs(logits, targets).sum()
            hidden_errors, output_errors = torch.autograd.grad(loss, [before, logits])
        rate = -self.options.rate
        previous = torch.stack(states[:-1]).detach()
        return Steps(output_errors * rate, hidden.detach(), hidden_errors * rate, previous, inputs)

    def _log_probs(self, logits: Tensor, targets: Tensor) -> Tensor:
        """(n, C + groups) logits -> (n,) ln P(group) P(class | group) of the targets."""
        of_class = torch.from_numpy(self._groups.of_class).to(logits.device)
        C, group = len(of_class), of_class[targets]
        others = of_class != group[:, None]
        in_group = torch.log_softmax(logits[:, :C].masked_fill(others, -torch.inf), dim=1)
        among_groups = torch.log_softmax(logits[:, C:], dim=1)
        return (in_group.gather(1, targets[:, None]) + among_groups.gather(1, group[:, None]))[:, 0]

    def _adapted(self, start: Start) -> ElmanLM:
        """The network with a session's weights. Raises ModelFailedError where they are not finite."""
        if start.delta.empty:
            return self.model
        if not start.delta.finite:
            raise ModelFailedError("learning drove the recurrent network to weights that are no numbers")
        with torch.no_grad():
            weights = start.delta.applied(self.model.weights)
            layer = ClassFactored(weights.V, self._groups)
            return ElmanLM(weights, self.model.classes, self.model.initial_state, output=layer)

    def _classes(self, *events: int) -> Tensor:
        return torch.from_numpy(self.model.classes.of_event[list(events)]).to(self.model.weights.V.device)


def _branch(tree: PrefixTree, inside: NDArray[np.bool_], events: IntArray) -> PrefixTree:
    """The part of a tree that grows from one root, whose sentences are not kept apart.

    inside: (nodes,) which nodes are in it
    events: which events
    """
    number = np.cumsum(inside) - 1
    ends = np.concatenate([[0], np.cumsum(inside)])[list(tree.levels)]
    return PrefixTree(
        roots=1,
        parents=number[tree.parents[inside]],
        node_words=tree.node_words[inside],
        levels=tuple(np.unique(ends).tolist()),
        histories=number[tree.histories[events]],
        event_words=tree.event_words[events],
        sentences=(),
    )
