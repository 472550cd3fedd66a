"""The recurrent network language model of Mikolov, Karafiat, Burget, Cernocky and Khudanpur, Interspeech 2010.

    s_t = sigmoid(U[w_{t-1}] + W s_{t-1})        eq. 1-2, the word vector and the context layer joined
    y_t = softmax(V s_t)                         eq. 3

Words that are rare in training share one class, and the class's probability is divided evenly among them (section
2.1 of the paper): P(w | h) = y_rare / C_rare. <unk> is one member of that class, so every event has a probability.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.base import FloatArray
from models.cuda_recurrence import BucketedRecurrence, fits
from models.cuda_transfers import Fetched, sent, working
from models.errors import BundleError, ModelFailedError, TrainingError
from models.output_layer import FullSoftmax, OutputLayer
from models.pending import Later, Pending
from models.prefix_tree import PrefixTree
from models.threads import one_thread_an_operation, share_out
from models.vocabulary import EOS_ID, FIRST_WORD_ID, UNK_ID, Vocabulary

EOS_CLASS = 0
RARE_CLASS = 1
FIRST_SHORTLIST_CLASS = 2

# So many multiplications of a level of the tree are worth a thread of their own.
_STEP = 2**27
# A log probability may exceed 0 by float32 rounding of logit minus normaliser; it is then 0.
_ROUNDING = 1e-4


@dataclass(frozen=True, slots=True)
class WordClasses:
    """What the network's layers are indexed by: </s>, the rare class, then one class a shortlist word.

    of_event:     (events,) the class of each event of the shared vocabulary
    rare_members: C_rare, how many events share the rare class; at least 1, since <unk> is always one
    """

    of_event: NDArray[np.int64]
    rare_members: int

    def __post_init__(self) -> None:
        if (self.of_event[EOS_ID], self.of_event[UNK_ID]) != (EOS_CLASS, RARE_CLASS):
            raise BundleError("</s> and <unk> are not in the classes made for them")
        if self.of_event.min() < 0 or (self.of_event == RARE_CLASS).sum() != self.rare_members:
            raise BundleError("the rare class does not have the members it claims")

    @classmethod
    def from_counts(cls, vocabulary: Vocabulary, counts: Counter[str], rare_threshold: int) -> "WordClasses":
        """Words that occur at most `rare_threshold` times in the network's training text are rare."""
        of_event = np.full(vocabulary.size, RARE_CLASS, np.int64)
        of_event[EOS_ID] = EOS_CLASS
        kept = [i for i, word in enumerate(vocabulary.words, FIRST_WORD_ID) if counts[word] > rare_threshold]
        if not kept:
            raise TrainingError(f"every word occurs at most {rare_threshold} times: nothing is left to learn")
        of_event[kept] = np.arange(FIRST_SHORTLIST_CLASS, FIRST_SHORTLIST_CLASS + len(kept))
        return cls(of_event, int((of_event == RARE_CLASS).sum()))

    @property
    def count(self) -> int:
        """C: the number of classes, the size of the output layer."""
        return int(self.of_event.max()) + 1


@dataclass(frozen=True, slots=True)
class ElmanWeights:
    """The three matrices of the network, float32 unless a test says otherwise; H hidden units, C classes.

    U: (C, H) what each input class adds to the hidden layer
    W: (H, H) from the previous hidden state to the next: pre = U[w] + W s
    V: (C, H) from the hidden state to the classes' logits: V s; where the output is class-factored, those of the groups
       stand below them
    """

    U: Tensor
    W: Tensor
    V: Tensor

    def named(self) -> dict[str, Tensor]:
        """The matrices by name, as a bundle stores them."""
        return {"U": self.U, "W": self.W, "V": self.V}

    def to(self, device: torch.device) -> "ElmanWeights":
        """The same weights on another device."""
        return ElmanWeights(self.U.to(device), self.W.to(device), self.V.to(device))


class ElmanLM:
    """The network with frozen weights.

    weights:       see ElmanWeights
    classes:       how the shared vocabulary maps to the network's classes
    initial_state: the value of every hidden unit before the first sentence boundary
    output:        from hidden states to ln P(class | history); the full softmax of V when left out

    The hidden state before a sentence is s_0; the sentence boundary is then the first input, so the first word is
    predicted from s_1 = sigmoid(U[</s>] + W s_0). Raises BundleError on shapes that do not fit or weights that are
    not finite.
    """

    kind = "elman"

    def __init__(
        self,
        weights: ElmanWeights,
        classes: WordClasses,
        initial_state: float = 0.1,
        training: dict[str, Any] | None = None,
        output: OutputLayer | None = None,
    ) -> None:
        C, H = classes.count, len(weights.W) if weights.W.ndim else 0
        for name, matrix in weights.named().items():
            expected = (H, H) if name == "W" else (C, H)
            if name == "V" and output is not None:
                expected = (*matrix.shape[:1], H)  # the layer knows how many rows it needs
            if tuple(matrix.shape) != expected:
                raise BundleError(f"matrix {name} has shape {tuple(matrix.shape)}, not {expected}")
            if matrix.dtype != weights.W.dtype or not matrix.is_floating_point():
                raise BundleError(f"matrix {name} holds {matrix.dtype}; all three must hold floats of one kind")
            if not bool(torch.isfinite(matrix).all()):
                raise BundleError(f"matrix {name} holds a weight that is not finite")
        if output is not None and output.classes != C:
            raise BundleError(f"the output layer has {output.classes} classes, not {C}")
        if not math.isfinite(initial_state):
            raise BundleError(f"the initial state is {initial_state}; it must be finite")
        self.weights = weights
        self.classes = classes
        self.initial_state = initial_state
        self.training = training or {}
        self.output = output or FullSoftmax(weights.V)

    @property
    def hidden_size(self) -> int:
        """H."""
        return int(self.weights.W.shape[0])

    def score(self, tree: PrefixTree, start: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
        """Score every event; see LanguageModel. Computed in the weights' precision, returned as float64.

        On a processor it works on as many threads as torch is set to, see models/threads.py.
        """
        if self.weights.U.device.type != "cpu":
            return self._launched(tree, start)()
        with torch.inference_mode(), one_thread_an_operation():
            states = self.states(tree, start)
            classes = self.classes.of_event[tree.event_words]
            log_probs = self.output.log_probs(states, torch.from_numpy(tree.histories), torch.from_numpy(classes))
            return self._checked(log_probs.double().numpy(), classes), states.double().numpy()

    def begin(self, tree: PrefixTree, start: FloatArray | None = None) -> Pending:
        """Hand the work of `score` over to the GPU; on a processor it is done when its result is asked for."""
        if self.weights.U.device.type == "cpu":
            return Later(lambda: self.score(tree, start))
        return Later(self._launched(tree, start))

    def _launched(self, tree: PrefixTree, start: FloatArray | None) -> Callable[[], tuple[FloatArray, FloatArray]]:
        """`score`, handed over to the device; what waits for it."""
        device = self.weights.U.device
        with torch.inference_mode(), working(device):
            states = self.states(tree, start)
            classes = self.classes.of_event[tree.event_words]
            log_probs = self.output.log_probs(states, sent(tree.histories, device), sent(classes, device))
            fetched = Fetched(log_probs.double(), states.double())

        def arrived() -> tuple[FloatArray, FloatArray]:
            log_probs, states = fetched.arrays()
            return self._checked(log_probs, classes), states

        return arrived

    def _checked(self, log_probs: FloatArray, classes: NDArray[np.int64]) -> FloatArray:
        """(events,) ln P of each event from that of its class; the former is written over."""
        log_probs[classes == RARE_CLASS] -= math.log(self.classes.rare_members)
        if not np.all(log_probs <= _ROUNDING):
            raise ModelFailedError("the recurrent network gave a number that is no log probability")
        return np.minimum(log_probs, 0.0)

    @cached_property
    def _bucketed(self) -> BucketedRecurrence:
        return BucketedRecurrence(self.weights.U, self.weights.W)

    def states(self, tree: PrefixTree, start: FloatArray | None = None) -> Tensor:
        """(nodes, H) the hidden state after each history, computed depth by depth; see `score`."""
        U, W = self.weights.U, self.weights.W
        classes = self.classes.of_event[tree.node_words]
        if start is None:
            previous = torch.full((tree.roots, self.hidden_size), self.initial_state, dtype=U.dtype, device=U.device)
        else:
            previous = sent(start, U.device).to(U.dtype)
        if U.device.type != "cpu" and fits(tree):
            return self._bucketed.states(tree, classes, previous)
        inputs, parents = sent(classes, U.device), sent(tree.parents, U.device)
        states = torch.empty(tree.nodes, self.hidden_size, dtype=U.dtype, device=U.device)
        rows = max(_STEP // self.hidden_size**2, 1)

        def step(first: int, last: int) -> None:
            before = states[parents[first:last]] if first >= tree.roots else previous[first:last]
            here = states[first:last]
            torch.index_select(U, 0, inputs[first:last], out=here)
            here.addmm_(before, W.T).sigmoid_()

        for begin, end in pairwise(tree.levels):
            if end - begin <= rows or U.device.type != "cpu":
                step(begin, end)
            else:
                spans = [(first, min(first + rows, end)) for first in range(begin, end, rows)]
                share_out(lambda span: step(*span), spans)
        return states

    def describe(self) -> dict[str, Any]:
        """Kind, sizes and how the network was trained."""
        return {
            "kind": self.kind,
            "hidden_size": self.hidden_size,
            "shortlist": self.classes.count - FIRST_SHORTLIST_CLASS,
            "rare_members": self.classes.rare_members,
            **self.output.describe(),
            **self.training,
        }
