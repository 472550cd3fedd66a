"""Perplexity of models and their mixture on text, with and without words outside the vocabulary."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from models.base import FloatArray, LanguageModel
from models.prefix_tree import IntArray, PrefixTree
from models.vocabulary import EOS_ID, UNK_ID

_SENTENCES_A_TREE = 256


@dataclass(frozen=True, slots=True)
class Perplexity:
    """What a model makes of a text; </s> counts as a word, <s> does not.

    log_likelihood: sum of ln P over all events
    events:         words and sentence ends
    oov_log_likelihood, oov: the same sum and count over words outside the vocabulary alone
    """

    log_likelihood: float
    events: int
    oov_log_likelihood: float
    oov: int

    @property
    def with_oov(self) -> float:
        """Over all events."""
        return math.exp(-self.log_likelihood / self.events)

    @property
    def without_oov(self) -> float:
        """Over the events that are not OOV words; these still stand in the histories."""
        known = self.events - self.oov
        return math.exp(-(self.log_likelihood - self.oov_log_likelihood) / known)


def text_log_probs(
    model: LanguageModel, sentences: Sequence[Sequence[int]], *, carry_state: bool = False
) -> list[FloatArray]:
    """Per sentence of word ids, (T + 1,) ln P(w_t | h_t), the last for </s>.

    carry_state: begin each sentence from the hidden state that the previous one left, as in running text; every
                 sentence starts from the initial state otherwise
    """
    out: list[FloatArray] = []
    if not carry_state:
        for first in range(0, len(sentences), _SENTENCES_A_TREE):
            tree = PrefixTree.build(sentences[first : first + _SENTENCES_A_TREE])
            log_probs, _ = model.score(tree)
            out.extend(log_probs[row] for row in tree.sentences)
        return out
    start: FloatArray | None = None
    for sentence in sentences:
        tree = PrefixTree.build([sentence])
        log_probs, states = model.score(tree, start)
        out.append(log_probs[tree.sentences[0]])
        start = None if states is None else states[tree.last_nodes()]
    return out


def text_events(sentences: Iterable[Sequence[int]]) -> IntArray:
    """(events,) the word ids of a text with EOS_ID after each sentence."""
    return np.fromiter((i for sentence in sentences for i in (*sentence, EOS_ID)), np.int64)


def perplexity(log_probs: FloatArray, events: IntArray) -> Perplexity:
    """Sum up the events of a text.

    log_probs: (events,) ln P of each
    events:    (events,) their ids
    """
    unknown = events == UNK_ID
    return Perplexity(float(log_probs.sum()), len(events), float(log_probs[unknown].sum()), int(unknown.sum()))
