"""Perplexity against WER: of the hypothesis that is nearest to the reference, which is the same for all systems."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..bootstrap import FloatArray, IntArray

_MOST_BINS, _SMALLEST_BIN = 10, 20


@dataclass(frozen=True, slots=True)
class PerplexityPoint:
    """Some utterances: the perplexity of their nearest hypotheses, and the WER of the system's answers in per cent."""

    utterances: int
    perplexity: float
    wer: float


@dataclass(frozen=True, slots=True)
class Perplexity:
    """All utterances of a system, and the same in bins of as many utterances each, from easy to hard.

    Perplexity is exp(-sum of lm / events): lm, the mixture's natural log, of the first hypothesis with the fewest
    errors; events, its words and a sentence end each, words outside the vocabulary among them.
    """

    system: str
    all: PerplexityPoint
    bins: tuple[PerplexityPoint, ...]


class PerplexityTally:
    """Keeps four numbers an utterance."""

    def __init__(self, system: str) -> None:
        self._system = system
        self._lm, self._events, self._errors, self._words = array("d"), array("i"), array("i"), array("i")

    def add(self, lm: float, events: int, errors: int, words: int) -> None:
        """An utterance: lm and events of its nearest hypothesis, errors of the answer, words of its reference."""
        self._lm.append(lm)
        self._events.append(events)
        self._errors.append(errors)
        self._words.append(words)

    def result(self) -> Perplexity | None:
        """The points; None where there is no reference word, or where a perplexity is no finite number."""
        lm = np.frombuffer(self._lm)
        counts = np.array([self._events, self._errors, self._words], np.int64)  # (3, n)
        n = len(lm)
        whole = _point(lm, counts)
        if whole is None:
            return None
        order = np.argsort(-lm / counts[0], kind="stable")
        B = min(_MOST_BINS, n // _SMALLEST_BIN)
        parts: Sequence[IntArray] = np.array_split(order, B) if B > 1 else []
        points = (_point(lm[part], counts[:, part]) for part in parts)
        return Perplexity(self._system, whole, tuple(point for point in points if point is not None))


def _point(lm: FloatArray, counts: IntArray) -> PerplexityPoint | None:
    """lm: (n,); counts: (3, n) events, errors, words."""
    events, errors, words = (int(total) for total in counts.sum(axis=1))
    if not words:
        return None
    try:
        perplexity = math.exp(-math.fsum(lm.tolist()) / events)
    except OverflowError:
        return None
    return PerplexityPoint(lm.size, perplexity, 100 * errors / words)
