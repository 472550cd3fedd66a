"""The result back from its JSON, such as a service sends; `as_json` is the other way.

Nothing is lost but how many confusions and worst utterances were asked for.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import EvaluationError
from ..files import MADE_WITH
from .alignment import Alignment
from .bootstrap import Difference, Interval
from .confusions import Confusion, Confusions
from .counts import CharacterCounts, ErrorCounts
from .evaluator import Choices
from .kinds import By
from .matched_pairs import MatchedPairs
from .normalisation import Normalisation
from .result import (
    Before,
    Breakdown,
    Comparison,
    Effect,
    Evaluation,
    Group,
    OraclePoint,
    RankClass,
    RankedOracle,
    Rate,
    SystemResult,
)
from .worst import WorstUtterance

_Json = Mapping[str, Any]


def from_json(document: _Json) -> Evaluation:
    """The evaluation that a document tells of. Raises EvaluationError for what is none, or of another version."""
    try:
        return _evaluation(document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise EvaluationError(f"this is no evaluation that can be read: {type(error).__name__}: {error}") from error


def _evaluation(document: _Json) -> Evaluation:
    systems = document["systems"]
    first = systems[0]["name"]
    against_first = [
        _comparison({"system": entry["name"], "against": first, **entry["against_first_pass"]})
        for entry in systems[1:]
        if "matched_pairs" in entry.get("against_first_pass", {})
    ]
    return Evaluation(
        set_name=document["set"],
        utterances=document["utterances"],
        skipped=document["skipped_without_reference"],
        depth=document["hypotheses_per_list"],
        normalised=document["words"].startswith("normalised"),
        choices=_choices(document),
        systems=tuple(_system(entry) for entry in systems),
        comparisons=(*against_first, *(_comparison(entry) for entry in document["comparisons"])),
        oracles=tuple(_ranked_oracle(entry) for entry in document["oracle_by_depth"]),
        breakdowns=tuple(_breakdown(By(by), groups) for by, groups in document["breakdowns"].items()),
        software=dict(document["software"]),
    )


def _choices(document: _Json) -> Choices:
    normalisation, bootstrap = document["normalisation"], document["bootstrap"]
    return Choices(
        normalisation=Normalisation(
            normalisation["unicode_form"],
            normalisation["lowercase"],
            normalisation["strip_punctuation"],
            frozenset(normalisation["dropped_words"]),
        ),
        resamples=bootstrap["resamples"],
        seed=bootstrap["seed"],
        boundary_words=document["matched_pairs"]["boundary_words"],
    )


def _system(entry: _Json) -> SystemResult:
    def rate(name: str) -> Rate:
        return Rate(entry[f"{name}_percent"], Interval(*entry[f"{name}_interval_percent"]))

    before, effect, difference = (entry.get(name) for name in ("before_normalisation", "effect", "against_first_pass"))
    confusions = entry["confusions"]
    return SystemResult(
        name=entry["name"],
        made_with={name: entry[name] for name in MADE_WITH if name in entry},
        counts=_counts(entry, entry["reference_words"], entry["utterances"]),
        characters=CharacterCounts(entry["reference_characters"], entry["character_errors"]),
        wer=rate("wer"),
        cer=rate("cer"),
        ser=rate("ser"),
        mer=rate("mer"),
        wil=rate("wil"),
        before=None if before is None else Before(before["errors"], before["reference_words"]),
        to_first_pass=None if difference is None else _difference(difference),
        effect=None if effect is None else _effect(effect),
        confusions=Confusions(
            tuple(_confusions(confusions["substitutions"])),
            tuple(_confusions(confusions["deletions"])),
            tuple(_confusions(confusions["insertions"])),
            confusions["short_by_at_most"],
        ),
        worst=tuple(_worst(utterance) for utterance in entry.get("worst", [])),
    )


def _counts(entry: _Json, words: int, utterances: int) -> ErrorCounts:
    return ErrorCounts(
        words, entry["substitutions"], entry["deletions"], entry["insertions"], utterances, entry["wrong_utterances"]
    )


def _effect(entry: _Json) -> Effect:
    return Effect(
        helped=entry["utterances_helped"],
        hurt=entry["utterances_hurt"],
        as_many=entry["utterances_with_as_many_errors"],
        unchanged=entry["utterances_unchanged"],
        errors_removed=entry["errors_removed"],
        errors_added=entry["errors_added"],
        gap_closed_percent=entry["oracle_gap_closed_percent"],
    )


def _difference(entry: _Json) -> Difference:
    return Difference(entry["points_percent"], Interval(*entry["interval_percent"]), entry["p_value"])


def _comparison(entry: _Json) -> Comparison:
    test = entry["matched_pairs"]
    return Comparison(
        system=entry["system"],
        against=entry["against"],
        bootstrap=_difference(entry),
        bootstrap_p_corrected=entry["p_value_corrected"],
        matched_pairs=MatchedPairs(test["segments"], test["mean_errors"], test["z"], test["p_value"]),
        matched_pairs_p_corrected=test["p_value_corrected"],
    )


def _confusions(entries: Sequence[_Json]) -> Iterator[Confusion]:
    for entry in entries:
        yield Confusion(entry.get("reference"), entry.get("hypothesis"), entry["count"])


def _worst(entry: _Json) -> WorstUtterance:
    alignments = {name: _alignment(alignment) for name, alignment in entry["alignments"].items()}
    return WorstUtterance(entry["id"], entry.get("speaker"), entry["errors"], alignments)


def _alignment(entry: _Json) -> Alignment:
    sides = [tuple(word for word in entry[side] if word is not None) for side in ("reference", "hypothesis")]
    return Alignment(sides[0], sides[1], entry["operations"])


def _ranked_oracle(entry: _Json) -> RankedOracle:
    ranks = entry["rank_of_best"]
    return RankedOracle(
        ranking=entry["ranking"],
        curve=tuple(OraclePoint(point["depth"], point["errors"], point["wer_percent"]) for point in entry["curve"]),
        mean_rank=ranks["mean"],
        median_rank=ranks["median"],
        ranks=tuple(RankClass(rank["ranks"], rank["utterances"]) for rank in ranks["classes"]),
    )


def _breakdown(by: By, groups: Sequence[_Json]) -> Breakdown:
    return Breakdown(
        by,
        tuple(
            Group(
                group["name"],
                tuple(_counts(entry, group["reference_words"], group["utterances"]) for entry in group["systems"]),
            )
            for group in groups
        ),
    )
