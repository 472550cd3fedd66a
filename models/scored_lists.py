"""N-best lists on their way through the engine: checked, then scored, before any weight is applied."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from models.base import FloatArray
from models.decision import Decision
from models.nbest import NBest
from models.prefix_tree import PrefixTree
from models.score import Features, interpolate
from models.vocabulary import UNK_ID


@dataclass(frozen=True, slots=True)
class PreparedList:
    """A list checked and turned into words and ids; what it costs to score is known before it is scored.

    ids:      per hypothesis, the ids of its words
    decision: what is asked about it
    """

    nbest: NBest
    words: tuple[tuple[str, ...], ...]
    ids: tuple[list[int], ...]
    reference_words: tuple[str, ...] | None = None
    decision: Decision = field(default_factory=Decision)

    @property
    def tokens(self) -> int:
        """The number of words and sentence ends to score: the cost of the list, before prefixes are shared."""
        return sum(map(len, self.ids)) + len(self.ids)


@dataclass(frozen=True, slots=True)
class ScoredLists:
    """Language model scores of prepared lists, before any weight is applied.

    lists:     the lists
    by_model:  model name -> (events,) ln P(word | history)
    tree:      the prefix tree whose events these are; its sentences are the hypotheses of all lists, in order
    states:    model name -> (nodes, H) hidden states
    """

    lists: tuple[PreparedList, ...]
    tree: PrefixTree
    by_model: Mapping[str, FloatArray]
    states: Mapping[str, FloatArray]

    def each(self) -> Iterator[tuple[PreparedList, int]]:
        """Each list, with the number of its first hypothesis among the sentences of the tree."""
        first = 0
        for prepared in self.lists:
            yield prepared, first
            first += len(prepared.ids)


@dataclass(frozen=True, slots=True)
class ListWords:
    """The words of a list's hypotheses, </s> counted, one hypothesis after another.

    events:  (words,) the event of the tree that each is
    begins:  (N,) where each hypothesis begins
    mixture: (words,) ln P(w_t | h_t) of the mixture
    """

    events: NDArray[np.int64]
    begins: NDArray[np.int64]
    mixture: FloatArray

    def sums(self, values: FloatArray) -> FloatArray:
        """(words,) -> (N,) the sum of each hypothesis."""
        totals: FloatArray = np.add.reduceat(values, self.begins)
        return totals

    def rows(self, values: FloatArray) -> list[FloatArray]:
        """(words,) -> per hypothesis, its (T + 1,) values."""
        return np.split(values, self.begins[1:])


def list_features(
    scored: ScoredLists, prepared: PreparedList, first: int, interpolation: Mapping[str, float]
) -> tuple[Features, ListWords]:
    """What a list's hypotheses bring to the total, and the values of the mixture, word by word.

    first: the number of the list's first hypothesis among the sentences of the tree
    """
    rows = scored.tree.sentences[first : first + len(prepared.ids)]
    events = np.concatenate(rows)
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    names = [name for name, value in interpolation.items() if value > 0]
    lambdas = np.array([interpolation[name] for name in names])
    mixture = interpolate(np.stack([scored.by_model[name][events] for name in names]), lambdas)
    words = ListWords(events, np.cumsum(lengths) - lengths, mixture)
    hypotheses = prepared.nbest.hypotheses
    features = Features(
        acoustic=np.array([h.acoustic for h in hypotheses]),
        first_pass=np.array([h.first_pass or 0.0 for h in hypotheses]),
        lm=words.sums(mixture),
        words=(lengths - 1).astype(np.float64),
        oov=np.array([float(ids.count(UNK_ID)) for ids in prepared.ids]),
    )
    return features, words
