"""Word confidences calibrated on a development set, and measured on folds that the map has not seen."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein

from models.base import FloatArray
from models.confidence import ConfidenceMap, fit_confidence
from models.decision import Decision
from models.errors import TuningError
from models.ranking import rank_list
from models.reliability import Reliability
from models.score import Weights
from models.scored_lists import ScoredLists


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found.

    map:             fitted on the whole set
    raw:             what the posteriors themselves are worth as confidences
    cross_validated: what confidences are worth where each fold is mapped as the other folds suggest
    lists, folds:    utterances, and cross-validation folds
    """

    map: ConfidenceMap
    raw: Reliability
    cross_validated: Reliability
    lists: int
    folds: int

    @property
    def helps(self) -> bool:
        """Whether words of unseen utterances get better confidences than their posteriors are."""
        raw, calibrated = self.raw.normalised_cross_entropy, self.cross_validated.normalised_cross_entropy
        return raw is not None and calibrated is not None and calibrated > raw

    def summary(self) -> str:
        """What calibration does to unseen utterances, in a line."""
        parts = (
            f"{_shown(one)} {name}" for name, one in (("calibrated", self.cross_validated), ("as posteriors", self.raw))
        )
        return f"word confidences, {self.folds} folds: " + ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Every number, for the record of a tuning."""
        return {
            "map": self.map.to_json(),
            "raw": self.raw.to_json(),
            "cross_validated": self.cross_validated.to_json(),
            "lists": self.lists,
            "folds": self.folds,
        }


def calibrate(scored: Sequence[ScoredLists], weights: Weights, *, folds: int = 5) -> Calibration:
    """Fit a map to the words of each list's highest total.

    The map holds for the weights it was fitted under: other ones, posterior_scale among them, give other posteriors.

    scored: development lists with references, whose models have scored them
    folds:  of the cross-validation; blocks of consecutive utterances

    Raises TuningError for a list without a reference, fewer lists than folds, or no word at all.
    """
    posteriors, right, lists = _words(scored, weights)
    total = sum(len(batch.lists) for batch in scored)
    if total < folds:
        raise TuningError(f"{total} utterances are too few for {folds} folds")
    if not len(posteriors):
        raise TuningError("the first-ranked hypotheses hold no word, so there is no confidence to calibrate")
    fold_of = lists * folds // total
    mapped = np.empty(len(posteriors))
    for fold in range(folds):
        here = fold_of == fold
        mapped[here] = fit_confidence(posteriors[~here], right[~here])(posteriors[here])
    return Calibration(
        map=fit_confidence(posteriors, right),
        raw=Reliability.measured(posteriors, right),
        cross_validated=Reliability.measured(mapped, right),
        lists=total,
        folds=folds,
    )


def _shown(measured: Reliability) -> str:
    entropy = measured.normalised_cross_entropy
    worth = "no normalised cross entropy" if entropy is None else f"normalised cross entropy {entropy:.3f}"
    return f"{worth} and calibration error {measured.calibration_error:.3f}"


def right_words(reference: Sequence[str], words: Sequence[str]) -> list[bool]:
    """Which words of a text are those of the reference, by an alignment with the fewest errors."""
    right = [False] * len(words)
    for step in Levenshtein.opcodes(reference, words):
        if step.tag == "equal":
            right[step.dest_start : step.dest_end] = [True] * (step.dest_end - step.dest_start)
    return right


def _words(scored: Sequence[ScoredLists], weights: Weights) -> tuple[FloatArray, NDArray[np.bool_], NDArray[np.int64]]:
    """Of each word of the winners: its posterior, whether it is right, and the number of its list."""
    posteriors: list[float] = []
    right: list[bool] = []
    lists: list[int] = []
    decision = Decision(word_confidences=True)
    number = 0
    for batch in scored:
        for prepared, first in batch.each():
            if prepared.reference_words is None:
                raise TuningError(
                    f"utterance {prepared.nbest.utterance_id!r} has no reference: it is unknown which words are right"
                )
            asked = replace(prepared, decision=decision)
            found = rank_list(batch, asked, first, weights, word_scores=False).best.word_confidences
            assert found is not None
            posteriors += found.posteriors
            right += right_words(prepared.reference_words, found.words)
            lists += [number] * len(found.words)
            number += 1
    return np.array(posteriors), np.array(right, np.bool_), np.array(lists, np.int64)
