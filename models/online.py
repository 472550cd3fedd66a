"""Learning one text word by word: how an accepted text enters a session.

The same steps as in models/dynamic.py along a single path, where less is needed: W and the few rows of U that are read
are small enough to be changed in place, in copies; only V stays as it is, the words' outer products kept beside it.
"""

import torch
from torch import Tensor

from models.learning import HiddenState, LearningOptions, Start
from models.rnnlm import ElmanWeights
from models.weight_delta import Steps


class TextLearner:
    """Learns a short text from a start; see `run`.

    weights: the shared weights
    """

    def __init__(self, weights: ElmanWeights, options: LearningOptions, start: Start) -> None:
        self._weights, self._options, self._start = weights, options, start
        delta, H = start.delta, len(weights.W)
        self._V, self._G, self._S = weights.V, delta.G, delta.S
        if delta.rank == H and not options.decay:
            # At full rank what V differs by is as large as V: then the words are multiplied with their sum. Where
            # differences decay word by word, they have to stand apart.
            self._V, self._G, self._S = weights.V + delta.G.T, delta.G[:0], delta.S[:0]
        self._W = weights.W.clone() if delta.empty else weights.W + delta.W

    def run(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Start]:
        """Score and learn n words.

        inputs:  (n,) the class read before each word
        targets: (n,) the word's class
        returns: (n,) ln P of each class when it came; and what the next text starts from if the state is carried on
        """
        o, weights, recent = self._options, self._weights, self._start.state.recent(self._options.tau)
        n, known = len(inputs), len(recent.inputs)
        read = torch.cat([recent.inputs, inputs])
        states = torch.cat([recent.states, weights.W.new_empty(n, len(weights.W))])
        classes, place = torch.unique(read, return_inverse=True)
        shared_rows = weights.U[classes]
        rows = shared_rows + self._start.delta.input_rows(classes)
        places, wanted = place.tolist(), targets.tolist()
        shares = o.shares(n, states)
        learnt = weights.V.new_empty(n, len(weights.V))
        scores = weights.V.new_empty(n)
        errors: list[Tensor] = []
        reached: list[int] = []
        for t in range(n):
            position = known + t
            state = torch.sigmoid(torch.addmv(rows[places[position]], self._W, states[position]))
            states[position + 1] = state
            since, taught = shares[n - t :], states[known + 1 : position + 1]
            logits = self._V @ state
            if len(self._S):
                logits.addmv_(self._G.T, self._S @ state, alpha=o.kept**t)
            if t:
                logits.addmv_(learnt[:t].T, (taught @ state) * since)
            log_probs = torch.log_softmax(logits, dim=0)
            scores[t] = log_probs[wanted[t]]
            error = torch.exp(log_probs, out=learnt[t])
            error[wanted[t]] -= 1
            back = error @ self._V
            if len(self._S):
                back.addmv_(self._S.T, self._G @ error, alpha=o.kept**t)
            if t:
                back.addmv_(taught.T, (learnt[:t] @ error) * since)
            reach = min(o.tau, position + 1)
            for k in range(reach):
                passed = states[position + 1 - k]
                errors.append(back * passed * (1 - passed))
                reached.append(position - k)
                if k + 1 < reach:
                    back = errors[-1] @ self._W
            if o.decay:
                self._W.sub_(weights.W).mul_(o.kept).add_(weights.W)
                rows.sub_(shared_rows).mul_(o.kept).add_(shared_rows)
            for hidden, at in zip(errors[-reach:], reached[-reach:], strict=True):
                step = hidden * -o.rate
                self._W.addr_(step, states[at])
                rows[places[at]].add_(step)
        words = torch.tensor([min(o.tau, known + t + 1) for t in range(n)], device=states.device)
        steps = Steps(
            learnt.mul_(shares[:, None]),
            states[known + 1 :],
            torch.stack(errors) * shares.repeat_interleave(words)[:, None],
            states[reached],
            read[reached],
        )
        state_after = HiddenState(states, read).recent(o.tau)
        return scores, Start(self._start.delta.learnt(steps, o.kept**n), state_after)
