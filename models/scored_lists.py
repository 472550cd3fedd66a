"""N-best lists on their way through the engine: checked, then scored, before any weight is applied."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from models.base import FloatArray
from models.nbest import NBest
from models.prefix_tree import PrefixTree
from models.score import Features, interpolate
from models.vocabulary import UNK_ID


@dataclass(frozen=True, slots=True)
class PreparedList:
    """A list checked and turned into words and ids; what it costs to score is known before it is scored.

    ids: per hypothesis, the ids of its words
    """

    nbest: NBest
    words: tuple[tuple[str, ...], ...]
    ids: tuple[list[int], ...]
    reference_words: tuple[str, ...] | None = None

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


def list_features(
    scored: ScoredLists, prepared: PreparedList, first: int, interpolation: Mapping[str, float]
) -> tuple[Features, list[FloatArray]]:
    """What a list's hypotheses bring to the total, and each one's (T + 1,) per-word values of the mixture.

    first: the number of the list's first hypothesis among the sentences of the tree
    """
    events = scored.tree.sentences[first : first + len(prepared.ids)]
    names = [name for name, value in interpolation.items() if value > 0]
    lambdas = np.array([interpolation[name] for name in names])
    used = np.unique(np.concatenate(events))
    mixed = np.empty(scored.tree.events)
    mixed[used] = interpolate(np.stack([scored.by_model[name][used] for name in names]), lambdas)
    per_word = [mixed[row] for row in events]
    hypotheses = prepared.nbest.hypotheses
    features = Features(
        acoustic=np.array([h.acoustic for h in hypotheses]),
        first_pass=np.array([h.first_pass or 0.0 for h in hypotheses]),
        lm=np.array([row.sum() for row in per_word]),
        words=np.array([float(len(ids)) for ids in prepared.ids]),
        oov=np.array([float(sum(i == UNK_ID for i in ids)) for ids in prepared.ids]),
    )
    return features, per_word
