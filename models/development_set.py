"""A development set as numbers: what a vector of weights is judged on while tuning."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from models.base import FloatArray
from models.errors import TuningError
from models.prefix_tree import IntArray
from models.score import SCALES
from models.scored_lists import PreparedList, ScoredLists, list_features
from models.word_errors import word_errors

# The weights of the total, in the order of a development set's feature columns.
PARAMETERS = tuple(name for name in SCALES if name != "posterior_scale")


@dataclass(frozen=True)
class DevelopmentSet:
    """N-best lists with references.

    features: (hypotheses, 5) what each entry of PARAMETERS multiplies, all lists one after another
    errors:   (hypotheses,) word errors against the list's reference
    starts:   (lists + 1,) where each list begins
    words:    (lists,) reference words of each list
    """

    features: FloatArray
    errors: IntArray
    starts: IntArray
    words: IntArray

    @classmethod
    def from_scores(cls, scored: Sequence[ScoredLists], interpolation: dict[str, float]) -> "DevelopmentSet":
        """Mix the models' scores and count errors. Raises TuningError naming a list without a reference."""
        features: list[FloatArray] = []
        errors: list[IntArray] = []
        words: list[int] = []
        for batch in scored:
            for prepared, first in batch.each():
                reference = _reference(prepared)
                parts, _ = list_features(batch, prepared, first, interpolation)
                features.append(np.stack([parts.acoustic, parts.first_pass, parts.lm, parts.words, parts.oov], axis=1))
                errors.append(word_errors(reference, prepared.words))
                words.append(len(reference))
        starts = np.concatenate([[0], np.cumsum([len(part) for part in errors])])
        return cls(np.concatenate(features), np.concatenate(errors), starts, np.array(words, np.int64))

    @property
    def lists(self) -> int:
        """How many utterances."""
        return len(self.words)

    def subset(self, chosen: NDArray[np.bool_]) -> "DevelopmentSet":
        """The lists marked True."""
        sizes = np.diff(self.starts)
        rows = np.repeat(chosen, sizes)
        starts = np.concatenate([[0], np.cumsum(sizes[chosen])])
        return DevelopmentSet(self.features[rows], self.errors[rows], starts, self.words[chosen])

    @cached_property
    def _padded(self) -> tuple[FloatArray, IntArray]:
        """(5, lists * longest) features and (lists, longest) errors, short lists filled up with their first entry.

        A copy of the first hypothesis ties with it, and ties go to the earlier one, so no copy is ever chosen.
        """
        sizes = np.diff(self.starts)
        offsets = np.arange(sizes.max())
        rows = self.starts[:-1, None] + np.where(offsets < sizes[:, None], offsets, 0)
        return np.ascontiguousarray(self.features[rows.ravel()].T), self.errors[rows]

    def thinned(self, kept: NDArray[np.bool_]) -> "DevelopmentSet":
        """The hypotheses marked True, at least one of each list."""
        starts = np.concatenate([[0], np.cumsum(np.add.reduceat(kept.astype(np.int64), self.starts[:-1]))])
        return DevelopmentSet(self.features[kept], self.errors[kept], starts, self.words)

    def with_lm(self, lm: FloatArray) -> "DevelopmentSet":
        """The set under other language model scores. lm: (hypotheses,) ln P of each hypothesis."""
        features = self.features.copy()
        features[:, PARAMETERS.index("lm_scale")] = lm
        return DevelopmentSet(features, self.errors, self.starts, self.words)

    def totals(self, weights: FloatArray) -> FloatArray:
        """(candidates, lists, longest) the total of each hypothesis; short lists are filled up with their first.

        weights: (5, candidates), rows in the order of PARAMETERS
        """
        features, errors = self._padded
        totals: FloatArray = (weights.T @ features).reshape(-1, *errors.shape)
        return totals

    @property
    def padded_errors(self) -> IntArray:
        """(lists, longest) word errors, in the order of `totals`."""
        return self._padded[1]

    def chosen_errors(self, weights: FloatArray) -> IntArray:
        """(lists, candidates) word errors of each list's first-ranked hypothesis; ties keep the input order.

        weights: (5, candidates), rows in the order of PARAMETERS
        """
        return np.take_along_axis(self.padded_errors, self.winners(weights), axis=1)

    def winners(self, weights: FloatArray) -> IntArray:
        """(lists, candidates) the place in its list of each first-ranked hypothesis; ties keep the input order."""
        winners: IntArray = self.totals(weights).argmax(axis=2).T
        return winners

    @property
    def first_pass_errors(self) -> IntArray:
        """(lists,) word errors of the hypothesis that the recogniser put first."""
        return self.errors[self.starts[:-1]]

    @property
    def oracle_errors(self) -> IntArray:
        """(lists,) the fewest word errors in each list."""
        return np.minimum.reduceat(self.errors, self.starts[:-1])


def _reference(prepared: PreparedList) -> tuple[str, ...]:
    if prepared.reference_words is None:
        raise TuningError(f"utterance {prepared.nbest.utterance_id!r} has no reference: it cannot be tuned on")
    return prepared.reference_words
