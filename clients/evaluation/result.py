"""The one value that an evaluation gives. Table, JSON and whatever else shows it are made from it alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .bootstrap import Difference, Interval
from .confusions import Confusions
from .counts import CharacterCounts, ErrorCounts
from .evaluator import Choices
from .kinds import By
from .matched_pairs import MatchedPairs
from .worst import WorstUtterance


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate of summed counts, in per cent, and its interval by bootstrap over utterances."""

    percent: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Before:
    """The word errors before the normalisation that was chosen."""

    errors: int
    words: int

    @property
    def wer(self) -> float | None:
        """In per cent; None where the references held no word."""
        return 100 * self.errors / self.words if self.words else None


@dataclass(frozen=True, slots=True)
class Effect:
    """What rescoring did to the first pass, utterance by utterance.

    helped, hurt: utterances with fewer, with more errors than before
    as_many:      utterances with other words and as many errors
    unchanged:    utterances with the same words
    errors_removed, errors_added: word errors fewer in those helped, more in those hurt
    gap_closed_percent: of the errors between first pass and oracle, the share that is gone; None where there are none
    """

    helped: int
    hurt: int
    as_many: int
    unchanged: int
    errors_removed: int
    errors_added: int
    gap_closed_percent: float | None


@dataclass(frozen=True, slots=True)
class SystemResult:
    """First pass, a rescored system, or the oracle.

    made_with:     "bundle", "weights", "state" and "sessions" of what was rescored; empty for first pass and oracle
    counts:        summed over the utterances
    before:        None unless a normalisation was chosen
    to_first_pass: None for the first pass; the oracle's p-value says nothing, for it looks at the reference
    effect:        None for first pass and oracle
    """

    name: str
    made_with: Mapping[str, Any]
    counts: ErrorCounts
    characters: CharacterCounts
    wer: Rate
    cer: Rate
    ser: Rate
    mer: Rate
    wil: Rate
    before: Before | None
    to_first_pass: Difference | None
    effect: Effect | None
    confusions: Confusions
    worst: tuple[WorstUtterance, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`system` less `against`, tested twice; the corrected p-values are Holm's, over all comparisons of the evaluation.

    matched_pairs: None of the p-values where the test is not defined
    """

    system: str
    against: str
    bootstrap: Difference
    bootstrap_p_corrected: float
    matched_pairs: MatchedPairs
    matched_pairs_p_corrected: float | None


@dataclass(frozen=True, slots=True)
class OraclePoint:
    """The oracle of the first `depth` hypotheses of a ranking; of shorter lists, of all."""

    depth: int
    errors: int
    wer: float


@dataclass(frozen=True, slots=True)
class RankClass:
    """Utterances whose best hypothesis has a rank in this class, such as "6-10"."""

    ranks: str
    utterances: int


@dataclass(frozen=True, slots=True)
class RankedOracle:
    """How near the front a ranking has the best hypothesis, that with the fewest errors, the first of several.

    ranking: "first pass", or the name of a system
    """

    ranking: str
    curve: tuple[OraclePoint, ...]
    mean_rank: float
    median_rank: float
    ranks: tuple[RankClass, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Utterances that have something in common.

    name:   the speaker, the session or the class; None for utterances that have none
    counts: per system, in the order of `Evaluation.systems`
    """

    name: str | None
    counts: tuple[ErrorCounts, ...]


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The utterances in groups. Of utterances without a session, the position is that among all of them."""

    by: By
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Systems compared on the same utterances: the first pass, then what was rescored, then the oracle.

    skipped:     utterances left out for want of a reference
    depth:       hypotheses of the longest list
    normalised:  whether the words were those of a bundle's normaliser; else texts split at white space
    comparisons: of each rescored system with the first pass, then of these systems, two and two
    oracles:     of the first pass's ranking, then of each system's
    breakdowns:  by speaker and session only where utterances have one
    software:    name -> version of what computed all this
    """

    set_name: str
    utterances: int
    skipped: int
    depth: int
    normalised: bool
    choices: Choices
    systems: tuple[SystemResult, ...]
    comparisons: tuple[Comparison, ...]
    oracles: tuple[RankedOracle, ...]
    breakdowns: tuple[Breakdown, ...]
    software: Mapping[str, str]

    @property
    def rescored(self) -> tuple[SystemResult, ...]:
        """The systems between first pass and oracle."""
        return self.systems[1:-1]
