"""What the training loop asks of a recipe, and what a recipe is told."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from models.class_factored import ClassGroups
from models.rnnlm import ElmanWeights

_LARGEST_ENTROPY = 700.0


def perplexity_of(entropy: float) -> float:
    """Exp of a cross-entropy a word; infinity where that is NaN or too large, as in a training that diverges."""
    return math.exp(entropy) if entropy < _LARGEST_ENTROPY else math.inf


@dataclass(frozen=True, slots=True)
class RecipeState:
    """All that a recipe needs to go on bit for bit.

    tensors: weights, optimiser, hidden states, random generator
    values:  position, learning rate, epoch, as JSON values
    """

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]


class Recipe(Protocol):
    """A way to train the network. The loop calls `epoch`, then `validated`, until it is done."""

    initial_state: float

    @property
    def done(self) -> bool:
        """Whether training is over."""
        ...

    def epoch(self) -> Iterator[int]:
        """Go on with the epoch from where it stands, yielding the number of words learnt since the last yield.

        At every yield the recipe is whole: it can be saved, restored and gone on with.
        """
        ...

    def validated(self, perplexity: float) -> None:
        """Hear the validation perplexity after an epoch."""
        ...

    def progress(self) -> tuple[int, int | None]:
        """Words learnt so far in this epoch, and epochs planned in all where that is known."""
        ...

    def report(self) -> dict[str, float]:
        """What the log should say of the last epoch: training perplexity, learning rate."""
        ...

    @property
    def groups(self) -> ClassGroups | None:
        """The groups of a class-factored output layer; None for the softmax."""
        ...

    def weights(self) -> ElmanWeights:
        """The network as it stands."""
        ...

    def state(self) -> RecipeState:
        """A copy of everything that changes."""
        ...

    def restore(self, state: RecipeState) -> None:
        """Take up a saved state."""
        ...
