"""What is evaluated: one utterance at a time."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import EvaluationError
from .alignment import Words


@dataclass(frozen=True, slots=True)
class Utterance:
    """One utterance: its reference, its list, and how systems rank that list.

    reference:  words, none of which holds a space
    hypotheses: the words of each, best first by the recogniser; at least one
    rankings:   per system that is entered with it, a permutation of 0..N-1, best first
    answers:    per such system, the words of its answer, or None where that is the first of its ranking; a consensus
                need be no hypothesis of the list. When left out, all systems answer with their first
    speaker, session: None where it has none

    Raises EvaluationError, naming the utterance, for an empty list, for a ranking that is none, and for answers that
    are not as many as the rankings.
    """

    utterance_id: str
    reference: Words
    hypotheses: Sequence[Words]
    rankings: Sequence[Sequence[int]] = ()
    speaker: str | None = None
    session: str | None = None
    answers: Sequence[Words | None] = ()

    def __post_init__(self) -> None:
        N = len(self.hypotheses)
        if not N:
            raise EvaluationError(f"utterance {self.utterance_id!r}: the list is empty")
        for ranking in self.rankings:
            if len(ranking) != N or set(ranking) != set(range(N)):
                raise EvaluationError(
                    f"utterance {self.utterance_id!r}: a ranking must hold the indices 0 to {N - 1}, each once"
                )
        if self.answers and len(self.answers) != len(self.rankings):
            raise EvaluationError(
                f"utterance {self.utterance_id!r}: {len(self.answers)} answers for {len(self.rankings)} rankings"
            )
