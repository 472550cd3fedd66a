"""N-best lists and results as JSON values: the shapes that files, HTTP and the in-process engine share."""

import math
from collections.abc import Mapping
from typing import Any

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

    compact:   leave out texts and parts; the order, totals and posteriors remain
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
    if compact:
        out["ranking"] = [{"index": h.index, "total": h.total, "posterior": h.posterior} for h in ranking]
    else:
        out["ranking"] = [_hypothesis_to_json(h) for h in ranking]
    return out


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
