"""Recipe mikolov2010: the paper's own training, one word at a time.

Mikolov et al., Interspeech 2010, section 2: stochastic gradient descent on the cross-entropy of each word, in the
order of the text, with the error propagated tau steps back through the recurrent weights (tau = 1 in that paper).
The learning rate starts at 0.1 and is halved at the start of each epoch from the first that does not improve the
validation log-likelihood significantly; at the second such epoch training ends.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from models.deferred_updates import OutputMatrix
from models.recipe import RecipeState, perplexity_of
from models.rnnlm import ElmanWeights
from models.training_text import ClassStream

# An epoch helps when the validation entropy falls by more than this factor.
_SIGNIFICANT = 1.003
_WORDS_PER_YIELD = 500


@dataclass(frozen=True, slots=True)
class Mikolov2010Options:
    """The paper's settings.

    rate:          initial learning rate
    tau:           how many steps back an error is propagated
    max_epochs:    stop here even when validation still improves
    weight_spread: standard deviation of the initial weights; the paper draws them with variance 0.1
    """

    rate: float = 0.1
    tau: int = 1
    max_epochs: int = 50
    weight_spread: float = 0.1


class Mikolov2010:
    """Online training of (U, W, V) on a stream of classes.

    stream: the training text
    start:  the initial weights; they are copied
    """

    initial_state = 0.1
    groups = None

    def __init__(self, stream: ClassStream, start: ElmanWeights, options: Mikolov2010Options) -> None:
        self._U, self._W = start.U.clone(), start.W.clone()
        self._V = OutputMatrix(start.V)
        self._targets = stream.targets.tolist()
        self._inputs = stream.inputs.tolist()
        self._options = options
        self._position = 0
        self._epoch = 0
        self._rate = options.rate
        self._halving = False
        self._settled = False
        self._best = math.inf
        self._loss = 0.0
        self._reset_history()

    @classmethod
    def initial_weights(cls, classes: int, hidden_size: int, options: Mikolov2010Options, seed: int) -> ElmanWeights:
        """Small Gaussian weights, mean 0, drawn with the seed."""
        generator = torch.Generator().manual_seed(seed)
        sizes = ((classes, hidden_size), (hidden_size, hidden_size), (classes, hidden_size))
        U, W, V = (torch.randn(size, generator=generator) * options.weight_spread for size in sizes)
        return ElmanWeights(U, W, V)

    def _reset_history(self) -> None:
        start = torch.full((self._W.shape[0],), self.initial_state, dtype=self._W.dtype)
        # The last tau + 1 states, newest last, and the last tau inputs.
        self._states: deque[Tensor] = deque([start], maxlen=self._options.tau + 1)
        self._read: deque[int] = deque(maxlen=self._options.tau)

    def epoch(self) -> Iterator[int]:
        """Learn from each word in turn; see Recipe."""
        if self._position == 0:
            self._loss = 0.0
            self._reset_history()
        while self._position < len(self._targets):
            last = min(self._position + _WORDS_PER_YIELD, len(self._targets))
            # Not held over the yield: the mode would then be that of whoever is yielded to.
            with torch.inference_mode():
                for t in range(self._position, last):
                    self._loss -= self.learn(self._inputs[t], self._targets[t])
                # Applied at every yield, saved or not, so that saving does not change a bit of what follows.
                self._V.apply()
            words, self._position = last - self._position, last
            yield words
        self._epoch += 1

    def learn(self, read: int, target: int) -> float:
        """One word: predict it, then one gradient step. Returns ln P(target) before the step."""
        U, W, V, rate = self._U, self._W, self._V, self._rate
        state = torch.sigmoid(torch.addmv(U[read], W, self._states[-1]))
        self._states.append(state)
        self._read.append(read)
        log_probs = torch.log_softmax(V.logits(state), dim=0)
        log_prob = float(log_probs[target])
        # error = desired - y, as in the paper: added, not subtracted
        error = log_probs.exp_().neg_()
        error[target] += 1.0
        hidden_errors = self._through_time(V.back(error))
        V.add(error, state, rate)
        for back, hidden_error in enumerate(hidden_errors, 1):
            U[self._read[-back]] += rate * hidden_error
            W.addr_(hidden_error, self._states[-back - 1], alpha=rate)
        return log_prob

    def _through_time(self, arriving: Tensor) -> list[Tensor]:
        """The error at the hidden layer now, one step back, and so on, tau of them, under the weights as they were."""
        errors = []
        for back in range(1, len(self._read) + 1):
            state = self._states[-back]
            errors.append(arriving * state * (1.0 - state))
            if back < len(self._read):
                arriving = self._W.T @ errors[-1]
        return errors

    @property
    def done(self) -> bool:
        """At the second epoch that does not help, or after the most epochs allowed; see Recipe."""
        return self._settled or self._epoch >= self._options.max_epochs

    def validated(self, perplexity: float) -> None:
        """Halve the rate from the first epoch that does not help, stop at the second; see Recipe."""
        entropy = math.log(perplexity)
        helps = entropy * _SIGNIFICANT < self._best
        self._settled = self._halving and not helps
        self._halving = self._halving or not helps
        if self._halving:
            self._rate /= 2
        self._best = min(self._best, entropy)
        self._position = 0

    def progress(self) -> tuple[int, int | None]:
        """See Recipe; how many epochs there will be is not known."""
        return self._position, None

    def report(self) -> dict[str, float]:
        """See Recipe."""
        return {"train_perplexity": perplexity_of(self._loss / max(1, self._position)), "rate": self._rate}

    def weights(self) -> ElmanWeights:
        """See Recipe."""
        return ElmanWeights(self._U.clone(), self._W.clone(), self._V.value())

    def state(self) -> RecipeState:
        """See Recipe."""
        tensors = {"U": self._U, "W": self._W, "V": self._V.value(), "states": torch.stack(list(self._states))}
        values = {
            "position": self._position,
            "epoch": self._epoch,
            "rate": self._rate,
            "halving": self._halving,
            "settled": self._settled,
            "best": self._best if math.isfinite(self._best) else None,
            "loss": self._loss,
            "read": list(self._read),
        }
        return RecipeState({name: tensor.clone() for name, tensor in tensors.items()}, values)

    def restore(self, state: RecipeState) -> None:
        """See Recipe."""
        values = state.values
        self._U, self._W = state.tensors["U"].clone(), state.tensors["W"].clone()
        self._V = OutputMatrix(state.tensors["V"])
        self._states = deque(state.tensors["states"].clone().unbind(), maxlen=self._options.tau + 1)
        self._read = deque(values["read"], maxlen=self._options.tau)
        self._position, self._epoch = values["position"], values["epoch"]
        self._rate, self._halving, self._loss = values["rate"], values["halving"], values["loss"]
        self._settled = values["settled"]
        self._best = math.inf if values["best"] is None else values["best"]
