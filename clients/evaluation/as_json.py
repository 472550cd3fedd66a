"""The result as JSON values; rates and their differences in per cent."""

from typing import Any

from .alignment import Alignment
from .bootstrap import Difference, Interval
from .confusions import Confusion
from .counts import ErrorCounts, kaldi_lines
from .findings import findings
from .result import Breakdown, Comparison, Evaluation, RankedOracle, Rate, SystemResult
from .signature import signatures, words_are
from .worst import WorstUtterance


def to_json(evaluation: Evaluation) -> dict[str, Any]:
    """The whole result; strict JSON, without a number that is none."""
    choices = evaluation.choices
    first = evaluation.systems[0].name
    against_first = {c.system: c for c in evaluation.comparisons if c.against == first}
    return {
        "set": evaluation.set_name,
        "utterances": evaluation.utterances,
        "skipped_without_reference": evaluation.skipped,
        "hypotheses_per_list": evaluation.depth,
        "words": "normalised by the bundle" if evaluation.normalised else "split at white space, not normalised",
        "normalisation": {
            "unicode_form": choices.normalisation.unicode_form,
            "lowercase": choices.normalisation.lowercase,
            "strip_punctuation": choices.normalisation.strip_punctuation,
            "dropped_words": sorted(choices.normalisation.dropped),
            "in_words": words_are(evaluation),
        },
        "systems": [_system(system, against_first.get(system.name)) for system in evaluation.systems],
        "comparisons": [_comparison(c) for c in evaluation.comparisons if c.against != first],
        "oracle_by_depth": [_ranked_oracle(oracle) for oracle in evaluation.oracles],
        "breakdowns": {str(b.by): _breakdown(b, [s.name for s in evaluation.systems]) for b in evaluation.breakdowns},
        "bootstrap": {"resamples": choices.resamples, "seed": choices.seed, "confidence": 0.95},
        "matched_pairs": {"boundary_words": choices.boundary_words},
        "correction": {"method": "Holm", "comparisons": len(evaluation.comparisons)},
        "findings": list(findings(evaluation)),
        "software": dict(evaluation.software),
        "signatures": signatures(evaluation),
    }


def _system(system: SystemResult, against_first: Comparison | None) -> dict[str, Any]:
    counts = system.counts
    entry: dict[str, Any] = {"name": system.name}
    for name in ("wer", "cer", "ser", "mer", "wil"):
        rate: Rate = getattr(system, name)
        entry |= {f"{name}_percent": rate.percent, f"{name}_interval_percent": _pair(rate.interval)}
    entry |= {
        **_counts(counts),
        "reference_words": counts.words,
        "hypothesis_words": counts.hypothesis_words,
        "utterances": counts.utterances,
        "wrong_utterances": counts.wrong,
        "character_errors": system.characters.errors,
        "reference_characters": system.characters.characters,
        "kaldi": list(kaldi_lines(counts)),
        **system.made_with,
    }
    if system.before is not None:
        before = system.before
        entry["before_normalisation"] = {
            "wer_percent": before.wer,
            "errors": before.errors,
            "reference_words": before.words,
        }
    if system.to_first_pass is not None:
        tested = _tests(against_first) if against_first else {}
        entry["against_first_pass"] = {**_difference(system.to_first_pass), **tested}
    if system.effect is not None:
        effect = system.effect
        entry["effect"] = {
            "utterances_helped": effect.helped,
            "utterances_hurt": effect.hurt,
            "utterances_with_as_many_errors": effect.as_many,
            "utterances_unchanged": effect.unchanged,
            "errors_removed": effect.errors_removed,
            "errors_added": effect.errors_added,
            "oracle_gap_closed_percent": effect.gap_closed_percent,
        }
    confusions = system.confusions
    entry["confusions"] = {
        "substitutions": [_confusion(c) for c in confusions.substitutions],
        "deletions": [_confusion(c) for c in confusions.deletions],
        "insertions": [_confusion(c) for c in confusions.insertions],
        "short_by_at_most": confusions.short_by_at_most,
    }
    if system.worst:
        entry["worst"] = [_worst(utterance) for utterance in system.worst]
    return entry


def _counts(counts: ErrorCounts) -> dict[str, int]:
    return {
        "errors": counts.errors,
        "substitutions": counts.substitutions,
        "deletions": counts.deletions,
        "insertions": counts.insertions,
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "system": comparison.system,
        "against": comparison.against,
        **_difference(comparison.bootstrap),
        **_tests(comparison),
    }


def _difference(difference: Difference) -> dict[str, Any]:
    return {
        "points_percent": difference.points,
        "interval_percent": _pair(difference.interval),
        "p_value": difference.p_value,
    }


def _tests(comparison: Comparison) -> dict[str, Any]:
    test = comparison.matched_pairs
    return {
        "p_value_corrected": comparison.bootstrap_p_corrected,
        "matched_pairs": {
            "segments": test.segments,
            "mean_errors": test.mean,
            "z": test.z,
            "p_value": test.p_value,
            "p_value_corrected": comparison.matched_pairs_p_corrected,
        },
    }


def _pair(interval: Interval) -> list[float]:
    return [interval.low, interval.high]


def _ranked_oracle(oracle: RankedOracle) -> dict[str, Any]:
    return {
        "ranking": oracle.ranking,
        "curve": [{"depth": p.depth, "errors": p.errors, "wer_percent": p.wer} for p in oracle.curve],
        "rank_of_best": {
            "mean": oracle.mean_rank,
            "median": oracle.median_rank,
            "classes": [{"ranks": c.ranks, "utterances": c.utterances} for c in oracle.ranks],
        },
    }


def _breakdown(breakdown: Breakdown, systems: list[str]) -> list[dict[str, Any]]:
    return [
        {
            "name": group.name,
            "utterances": group.counts[0].utterances,
            "reference_words": group.counts[0].words,
            "systems": [
                {
                    "name": name,
                    "wer_percent": counts.wer if counts.words else None,
                    **_counts(counts),
                    "wrong_utterances": counts.wrong,
                }
                for name, counts in zip(systems, group.counts, strict=True)
            ],
        }
        for group in breakdown.groups
    ]


def _confusion(confusion: Confusion) -> dict[str, Any]:
    sides = {"reference": confusion.reference, "hypothesis": confusion.hypothesis}
    return {**{side: word for side, word in sides.items() if word is not None}, "count": confusion.count}


def _worst(utterance: WorstUtterance) -> dict[str, Any]:
    return {
        "id": utterance.utterance_id,
        **({"speaker": utterance.speaker} if utterance.speaker is not None else {}),
        "errors": utterance.errors,
        "alignments": {name: _alignment(alignment) for name, alignment in utterance.alignments.items()},
    }


def _alignment(alignment: Alignment) -> dict[str, Any]:
    """Columns side by side; null where a side has a gap."""
    columns = list(alignment.columns())
    return {
        "operations": alignment.operations,
        "reference": [reference for _, reference, _ in columns],
        "hypothesis": [hypothesis for _, _, hypothesis in columns],
    }
