"""Lists with references, as numbers and word ids: what a comparison of sessions is made on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from models.errors import InvalidNBestError
from models.nbest import NBest
from models.prefix_tree import IntArray
from models.rescoring import Rescorer
from models.scored_lists import PreparedList
from models.vocabulary import UNK_ID
from models.word_errors import word_errors

SessionPer = Literal["file", "speaker"]


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """Utterances with references, n of them, in the order of their file.

    lists:      what is rescored
    references: the word ids of each reference
    errors:     per utterance, the word errors of each hypothesis
    sessions:   per utterance, the session that it belongs to
    """

    lists: tuple[PreparedList, ...]
    references: tuple[list[int], ...]
    errors: tuple[IntArray, ...]
    sessions: tuple[str, ...]

    @classmethod
    def prepare(cls, rescorer: Rescorer, lists: Sequence[NBest], session_per: SessionPer = "file") -> "EvaluationSet":
        """Check the lists and count their errors.

        Raises InvalidNBestError, naming the utterance, for a list that cannot take part.
        """
        prepared = [rescorer.prepare(nbest) for nbest in lists]
        references = [_reference(entry) for entry in prepared]
        if not any(references):
            raise InvalidNBestError("the references hold no word, so there is no word error rate")
        return cls(
            tuple(prepared),
            tuple(map(rescorer.vocabulary.ids, references)),
            tuple(word_errors(words, entry.words) for words, entry in zip(references, prepared, strict=True)),
            tuple(_session(nbest, session_per) for nbest in lists),
        )

    def with_references(self) -> list[PreparedList]:
        """The lists, each with its reference as one more hypothesis after the last: fit to be scored, not ranked."""
        return [
            replace(prepared, ids=(*prepared.ids, reference))
            for prepared, reference in zip(self.lists, self.references, strict=True)
        ]

    @property
    def words(self) -> IntArray:
        """(n,) reference words."""
        return np.array([len(ids) for ids in self.references], np.int64)

    @property
    def oov(self) -> IntArray:
        """(n,) reference words outside the vocabulary."""
        return np.array([ids.count(UNK_ID) for ids in self.references], np.int64)

    @property
    def first_pass_errors(self) -> IntArray:
        """(n,) word errors of the hypothesis that the recogniser put first."""
        return np.array([errors[0] for errors in self.errors], np.int64)

    @property
    def oracle_errors(self) -> IntArray:
        """(n,) the fewest word errors in each list."""
        return np.array([errors.min() for errors in self.errors], np.int64)


def _reference(prepared: PreparedList) -> tuple[str, ...]:
    if prepared.reference_words is None:
        raise InvalidNBestError(f"utterance {prepared.nbest.utterance_id!r} has no reference: its errors are unknown")
    return prepared.reference_words


def _session(nbest: NBest, session_per: SessionPer) -> str:
    if session_per == "file":
        return ""
    if nbest.speaker is None:
        raise InvalidNBestError(
            f"utterance {nbest.utterance_id!r} has no speaker, so it belongs to no speaker's session"
        )
    return nbest.speaker
