"""Word error rates as sums of counts, counted by jiwer."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import jiwer
from rapidfuzz.distance import Levenshtein

from .errors import EvaluationError

Words = Sequence[str]

# jiwer's default strips and collapses any white space; here words are words already, parted by one space.
_SPLIT = jiwer.ReduceToListOfListOfWords(" ")


@dataclass(frozen=True, slots=True)
class ErrorCounts:
    """The errors of some hypotheses against their references; counts add.

    words:     words of the references
    wrong:     utterances with at least one error
    """

    words: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    utterances: int = 0
    wrong: int = 0

    def __add__(self, other: "ErrorCounts") -> "ErrorCounts":
        return ErrorCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def errors(self) -> int:
        """Substitutions, deletions and insertions."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def hypothesis_words(self) -> int:
        """Words of the hypotheses: what is not deleted, and what is inserted."""
        return self.words - self.deletions + self.insertions

    @property
    def wer(self) -> float:
        """Errors per reference word, in per cent; above 100 where insertions abound.

        Raises EvaluationError where the references hold no word: then there is no rate.
        """
        if not self.words:
            raise EvaluationError("the references hold no word, so there is no word error rate")
        return 100 * self.errors / self.words

    @property
    def ser(self) -> float:
        """Utterances with an error, in per cent. Raises EvaluationError where there are none at all."""
        if not self.utterances:
            raise EvaluationError("there is no utterance, so there is no sentence error rate")
        return 100 * self.wrong / self.utterances


def count_errors(reference: Words, hypothesis: Words) -> ErrorCounts:
    """The errors of one hypothesis. Against an empty reference each of its words is an insertion.

    reference, hypothesis: words without a space in them
    """
    out = jiwer.process_words([" ".join(reference)], [" ".join(hypothesis)], _SPLIT, _SPLIT)
    counts = ErrorCounts(len(reference), out.substitutions, out.deletions, out.insertions, 1)
    return counts + ErrorCounts(wrong=1) if counts.errors else counts


def oracle(reference: Words, hypotheses: Sequence[Words]) -> int:
    """The index of the hypothesis with the fewest errors; the first of several.

    rapidfuzz, which jiwer counts with, gives the number of errors without the cost of an alignment.
    """
    first: dict[tuple[str, ...], int] = {}
    for index, words in enumerate(hypotheses):
        first.setdefault(tuple(words), index)
    plain = list(reference)
    return min(first.items(), key=lambda item: (Levenshtein.distance(plain, item[0]), item[1]))[1]
