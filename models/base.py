"""What the rescoring engine asks of a language model."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from models.prefix_tree import PrefixTree

FloatArray = NDArray[np.float64]


class LanguageModel(Protocol):
    """A distribution over V + {<unk>, </s>} given any history; it knows nothing of beams, audio or HTTP.

    A model is never changed by scoring, and its scores do not depend on what else is in the tree, up to float
    rounding.
    """

    kind: str

    def score(self, tree: PrefixTree, start: FloatArray | None = None) -> tuple[FloatArray, FloatArray | None]:
        """Score every event of a prefix tree.

        tree:    the histories and the words that follow them, as ids of the shared vocabulary
        start:   (tree.roots, H) the hidden state before the sentence boundary, per root; None for the initial state
        returns: (events,) ln P(word | history) <= 0, and (nodes, H) the hidden state of each history, or None for
                 a model whose history ends at the sentence boundary

        Raises ModelFailedError when the model produces a number that is no log probability.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """What a user may want to know of the model, as JSON."""
        ...
