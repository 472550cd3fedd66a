"""Units of work for the scoring thread, and what it asks of the engine."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from models.errors import RescoringError
from models.ranking import RescoredList
from models.score import Weights
from models.scored_lists import PreparedList
from models.session import SessionModel, SessionState

Results = list[RescoredList | RescoringError]


class Scorer(Protocol):
    """What the queue asks of the engine; models.rescoring.Rescorer is one."""

    def rescore(
        self, lists: Sequence[PreparedList], weights: Sequence[Weights], *, word_scores: bool = False
    ) -> Results:
        """Rescore lists independently of each other; a list that fails alone has its error as its entry."""
        ...

    def rescore_carried(self, lists: Sequence[PreparedList], weights: Weights, *, word_scores: bool = False) -> Results:
        """Rescore lists in order, hidden state carried from each to the next of its session."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a session a list stands.

    model: how sessions of this kind score; sessions of one kind share it
    state: what the list is scored from
    """

    model: SessionModel
    state: SessionState


@dataclass(frozen=True)
class Job:
    """Lists scored in one go with one set of weights: one, or all of a request that carries state.

    place: where the list stands in its session; None outside sessions
    """

    lists: tuple[PreparedList, ...]
    weights: Weights
    word_scores: bool = False
    carried: bool = False
    place: Place | None = None

    @cached_property
    def tokens(self) -> int:
        """Words and sentence ends to score."""
        return sum(prepared.tokens for prepared in self.lists)

    @cached_property
    def hypotheses(self) -> int:
        """The number of hypotheses."""
        return sum(len(prepared.ids) for prepared in self.lists)

    @cached_property
    def longest(self) -> int:
        """Words and sentence end of the longest hypothesis."""
        return 1 + max(len(ids) for prepared in self.lists for ids in prepared.ids)

    @cached_property
    def company(self) -> tuple[Hashable, ...]:
        """Jobs of equal company may be scored together, and cost alike: the same models, detail and decision."""
        names = frozenset(name for name, value in self.weights.interpolation.items() if value > 0)
        asked = self.lists[0].decision
        place = self.place and self.place.model
        return self.word_scores, names, self.carried, place, asked.rule, asked.word_confidences
