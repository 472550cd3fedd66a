"""N-best lists and results as JSON values: the shapes that files, HTTP and the in-process engine share."""

import math
from collections.abc import Mapping
from typing import Any

from models.confusion_network import Slot
from models.decision import Consensus, WordConfidences
from models.nbest import Hypothesis, NBest
from models.ranking import RescoredHypothesis, RescoredList

# What one unit of a score is in natural logs, by the base that a request or file declares.
LOG_UNITS: Mapping[str, float] = {"e": 1.0, "10": math.log(10.0)}


def nbest_from_json(document: Mapping[str, Any], *, log_unit: float = 1.0) -> NBest:
    """The N-best list of a JSON object whose fields are known to be present and of their types.

    log_unit: one of LOG_UNITS
    """
    return NBest(
        utterance_id=document["id"],
        hypotheses=tuple(
            Hypothesis(
                text=entry["text"],
                acoustic=entry["acoustic_score"] * log_unit,
                first_pass=None if entry.get("lm_score") is None else entry["lm_score"] * log_unit,
            )
            for entry in document["hypotheses"]
        ),
        reference=document.get("reference"),
        session_id=document.get("session_id"),
        speaker=document.get("speaker"),
    )


def result_to_json(result: RescoredList, *, compact: bool = False, best_only: bool = False) -> dict[str, Any]:
    """One utterance's result as JSON; every score is a natural log.

    compact:   leave out texts and parts; the order, totals, posteriors and what was decided remain
    best_only: leave out every hypothesis but the first-ranked
    """
    nbest = result.nbest
    ranking = result.ranking[:1] if best_only else result.ranking
    out: dict[str, Any] = {"id": nbest.utterance_id}
    labels = {"session_id": nbest.session_id, "speaker": nbest.speaker}
    out.update({name: value for name, value in labels.items() if value is not None})
    if not compact and nbest.reference is not None:
        out["reference"] = nbest.reference
        out["scored_reference"] = " ".join(result.reference_words or ())
    out["best_text"] = result.best.text
    if result.consensus is not None:
        out["consensus"] = _consensus_to_json(result.consensus, compact=compact)
    shown = _compact_to_json if compact else _hypothesis_to_json
    out["ranking"] = [{**shown(hypothesis), **_decided_to_json(hypothesis)} for hypothesis in ranking]
    return out


def _compact_to_json(hypothesis: RescoredHypothesis) -> dict[str, Any]:
    return {"index": hypothesis.index, "total": hypothesis.total, "posterior": hypothesis.posterior}


def _hypothesis_to_json(hypothesis: RescoredHypothesis) -> dict[str, Any]:
    out: dict[str, Any] = {
        "index": hypothesis.index,
        "text": hypothesis.text,
        "scored_text": " ".join(hypothesis.words),
        "total": hypothesis.total,
        "posterior": hypothesis.posterior,
        "acoustic_score": hypothesis.acoustic,
        "lm_score": hypothesis.first_pass,
        "lm": hypothesis.lm,
        "words": len(hypothesis.words),
        "oov_words": hypothesis.oov,
        "contributions": dict(hypothesis.contributions),
        "lm_by_model": dict(hypothesis.lm_by_model),
    }
    if hypothesis.word_scores is not None:
        scores = hypothesis.word_scores
        out["word_scores"] = {
            "words": list(scores.words),
            "mixture": list(scores.mixture),
            "models": {name: list(values) for name, values in scores.by_model.items()},
        }
    return out


def _decided_to_json(hypothesis: RescoredHypothesis) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if hypothesis.expected_errors is not None:
        out["expected_errors"] = hypothesis.expected_errors
    if hypothesis.word_confidences is not None:
        out["word_confidences"] = _confidences_to_json(hypothesis.word_confidences)
    return out


def _confidences_to_json(confidences: WordConfidences) -> dict[str, Any]:
    return {
        "words": list(confidences.words),
        "confidences": list(confidences.confidences),
        "posteriors": list(confidences.posteriors),
        "calibrated": confidences.calibrated,
    }


def _consensus_to_json(consensus: Consensus, *, compact: bool) -> dict[str, Any]:
    words = consensus.word_confidences
    out = {
        "text": " ".join(words.words),
        **_confidences_to_json(words),
        "expected_errors": consensus.expected_errors,
    }
    if not compact:
        out["slots"] = [_slot_to_json(slot) for slot in consensus.slots]
    return out


def _slot_to_json(slot: Slot) -> dict[str, Any]:
    return {"words": dict(slot.words), "deletion": slot.deletion}
