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
1 - eta beta a word. Hypotheses are walked as a prefix tree (models/dynamic_walk.py).
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from models.base import FloatArray
from models.class_factored import ClassFactored
from models.dynamic_walk import Walk
from models.errors import ModelFailedError
from models.learning import LearningOptions, Start
from models.online import TextLearner
from models.prefix_tree import PrefixTree
from models.rnnlm import RARE_CLASS, ElmanLM
from models.threads import share_out, thread_count
from models.vocabulary import EOS_ID

# A text is folded into the session every so many words: the cost of the corrections grows with the square of them.
_WORDS_A_FOLD = 32
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
        if self.model.weights.V.device.type != "cpu" or len(groups := _groups(tree, thread_count())) == 1:
            return self._walked(tree, starts)
        out = np.empty(tree.events)

        def walk(roots: tuple[int, int]) -> None:
            part, events = tree.part(*roots)
            out[events] = self._walked(part, starts[slice(*roots)])

        share_out(walk, groups)
        return out

    def _walked(self, tree: PrefixTree, starts: Sequence[Start]) -> FloatArray:
        with torch.inference_mode():
            walk = Walk(self.model, self.options, tree, starts).run()
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


def _groups(tree: PrefixTree, threads: int) -> list[tuple[int, int]]:
    """Ranges of roots to be walked by themselves, of about as many nodes each; one where there is nothing to share."""
    sizes = np.bincount(tree.root_of_nodes(), minlength=tree.roots)
    wanted = min(threads, tree.roots)
    middle = np.cumsum(sizes) - sizes / 2
    firsts = np.searchsorted(middle, tree.nodes * np.arange(wanted) / wanted)
    bounds = np.unique(np.append(firsts, tree.roots)).tolist()
    return list(pairwise(bounds))
