"""How a network learns while it is tested, and from where: what lists and texts have in common."""

from dataclasses import dataclass

import torch
from torch import Tensor

from models.base import FloatArray
from models.errors import InvalidOptionError
from models.rnnlm import ElmanLM
from models.weight_delta import WeightDelta


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

    def shares(self, steps: int, like: Tensor) -> Tensor:
        """(steps,) what of each step's gradient stands in the weights after the last: -eta (1 - eta beta)^age.

        like: a tensor of the kind and on the device wanted
        """
        return -self.rate * self.kept ** torch.arange(steps - 1, -1, -1, dtype=like.dtype, device=like.device)


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

    def followed_by(self, states: Tensor, inputs: Tensor) -> "HiddenState":
        """(n, H) and (n,) more states, and what was read on the way to each."""
        return HiddenState(torch.cat([self.states, states]), torch.cat([self.inputs, inputs]))

    def recent(self, tau: int) -> "HiddenState":
        """As much of it as an error that goes back tau steps can reach beyond the next input."""
        reach = min(len(self.inputs), tau - 1)
        states, inputs = self.states[len(self.states) - 1 - reach :], self.inputs[len(self.inputs) - reach :]
        return HiddenState(states.clone(), inputs.clone())


@dataclass(frozen=True, slots=True)
class Start:
    """What a list is scored from.

    delta: the session's difference from the shared weights
    state: where the session's text stands
    """

    delta: WeightDelta
    state: HiddenState

    @classmethod
    def fresh(cls, model: ElmanLM) -> "Start":
        """Before anything was read or learnt."""
        return cls(WeightDelta.none(model.weights), HiddenState.initial(model))

    @property
    def hidden(self) -> FloatArray:
        """(H,) the hidden state that a text goes on from."""
        hidden: FloatArray = self.state.states[-1].double().cpu().numpy()
        return hidden

    @property
    def bytes(self) -> int:
        """Memory held."""
        state = (self.state.states, self.state.inputs)
        return self.delta.bytes + sum(tensor.numel() * tensor.element_size() for tensor in state)
