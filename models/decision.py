"""Which hypothesis a rescored list is an answer for: three rules.

    total      the highest total
    mbr        the least expected number of word errors, sum_j posterior_j * d(w_i, w_j), among the hypotheses of the
               list: minimum Bayes risk (Stolcke, Koenig and Weintraub 1997)
    consensus  the best word of each slot of a confusion network; it need not be a hypothesis of the list, so the
               ranking stays the one by total and the consensus stands beside it (Mangu, Brill and Stolcke 2000)

Hypotheses of the same words are one outcome with one posterior. Permuting a list permutes its result and changes
nothing else. Ties of expected errors are decided by total, ties of that by the input order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from models.base import FloatArray
from models.confidence import ConfidenceMap
from models.confusion_network import ConfusionNetwork, Slot
from models.errors import InvalidOptionError
from models.outcomes import Outcomes
from models.score import rank

Rule = Literal["total", "mbr", "consensus"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be decided on a list.

    rule:             how
    word_confidences: whether the words of the first-ranked hypothesis get confidences
    calibration:      from posteriors of words to probabilities of their being right; None leaves posteriors

    Raises InvalidOptionError for a rule that is none.
    """

    rule: Rule = "total"
    word_confidences: bool = False
    calibration: ConfidenceMap | None = None

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise InvalidOptionError(f"decision is {self.rule!r}; it must be one of {', '.join(get_args(Rule))}")


@dataclass(frozen=True, slots=True)
class WordConfidences:
    """How far each word of a text can be trusted.

    words:       the words
    posteriors:  in [0, 1], of each word in its slot of the confusion network
    confidences: the same calibrated, where there is a calibration; else the posteriors
    calibrated:  which of the two
    """

    words: tuple[str, ...]
    posteriors: tuple[float, ...]
    confidences: tuple[float, ...]
    calibrated: bool

    @classmethod
    def of(
        cls, words: Sequence[str], posteriors: Sequence[float], calibration: ConfidenceMap | None
    ) -> "WordConfidences":
        """Confidences from posteriors."""
        confidences = posteriors if calibration is None else calibration(posteriors)
        return cls(tuple(words), tuple(posteriors), tuple(confidences), calibration is not None)


@dataclass(frozen=True, slots=True)
class Consensus:
    """The consensus hypothesis of a list.

    word_confidences: of its words
    expected_errors:  word errors to be expected of it under the posteriors of the list
    slots:            the confusion network
    """

    word_confidences: WordConfidences
    expected_errors: float
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided on a list of N hypotheses.

    order:            input indices, best first
    expected_errors:  with "mbr", of each hypothesis in input order
    word_confidences: of the first-ranked hypothesis, where they were asked for
    consensus:        with "consensus"
    """

    order: list[int]
    expected_errors: list[float] | None = None
    word_confidences: WordConfidences | None = None
    consensus: Consensus | None = None


def decide(
    hypotheses: Sequence[tuple[str, ...]], total: FloatArray, posterior_scale: float, decision: Decision
) -> Verdict:
    """Decide on a list.

    hypotheses:      the words of each
    total:           (N,) totals; posterior_scale times each is finite
    posterior_scale: of the softmax that makes posteriors of totals
    """
    order = rank(total)
    if decision.rule == "total" and not decision.word_confidences:
        return Verdict(order)
    outcomes = Outcomes.merged(hypotheses, total, posterior_scale)
    expected = confidences = consensus = None
    if decision.rule == "mbr":
        risks = outcomes.risks(outcomes.codes)
        order.sort(key=risks[outcomes.of].tolist().__getitem__)
        expected = outcomes.expected_errors(risks)[outcomes.of].tolist()
    network = None
    if decision.rule == "consensus":
        network = ConfusionNetwork.build(outcomes)
        consensus = _consensus(network, outcomes, decision.calibration)
    if decision.word_confidences:
        first = int(outcomes.of[order[0]])
        if first or network is None:
            network = ConfusionNetwork.build(outcomes, first)
        words = outcomes.words[first]
        confidences = WordConfidences.of(words, network.pivot_posteriors(words), decision.calibration)
    return Verdict(order, expected, confidences, consensus)


def _consensus(network: ConfusionNetwork, outcomes: Outcomes, calibration: ConfidenceMap | None) -> Consensus:
    best = network.consensus()
    code = {word: number for number, word in enumerate(outcomes.spelling)}
    risks = outcomes.risks([[code[word] for word, _ in best]])
    return Consensus(
        WordConfidences.of([word for word, _ in best], [posterior for _, posterior in best], calibration),
        float(outcomes.expected_errors(risks)[0]),
        network.slots,
    )
