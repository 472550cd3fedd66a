"""The word errors of every hypothesis of a list, counted in one call, equal hypotheses once.

rapidfuzz, which jiwer counts with, gives the number of errors without the cost of an alignment.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

from ..errors import EvaluationError
from .alignment import Words

IntArray = npt.NDArray[np.int64]


class ListErrors:
    """The errors of N hypotheses against one reference.

    keys:   per hypothesis, a string that is equal where the words are equal: a character stands for a word
    errors: (N,) word errors of each
    """

    def __init__(self, reference: Words, hypotheses: Sequence[Words]) -> None:
        self._codes: dict[str, str] = {}
        self.reference_key = self._key(reference)
        self.keys = [self._key(words) for words in hypotheses]
        distinct = list(dict.fromkeys(self.keys))
        # The many go first: rapidfuzz compares several of its queries at a time.
        distances = cdist(distinct, [self.reference_key], scorer=Levenshtein.distance, dtype=np.int64)[:, 0]
        if len(distinct) < len(self.keys):
            place = {key: number for number, key in enumerate(distinct)}
            distances = distances[[place[key] for key in self.keys]]
        self.errors: IntArray = distances

    @property
    def oracle(self) -> int:
        """The index of the hypothesis with the fewest errors; the first of several."""
        return int(self.errors.argmin())

    def _key(self, words: Words) -> str:
        codes = self._codes
        try:
            return "".join([codes[word] for word in words])
        except KeyError:
            for word in words:
                if word not in codes:
                    codes[word] = self._next()
            return "".join([codes[word] for word in words])

    def _next(self) -> str:
        try:
            return chr(len(self._codes))
        except ValueError as error:
            raise EvaluationError("a list holds more than 1,114,112 different words") from error
