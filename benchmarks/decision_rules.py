"""Which decision rule makes the fewest word errors, and what word confidences are worth, on two test sets.

    python benchmarks/decision_rules.py --data FOLDER --bundle BUNDLE

FOLDER holds the N-best lists lj.dev, lj.test and arctic.a (.nbest.jsonl.gz). The bundle is one tuned on lj.dev, such as
the demo's; the map of word confidences is fitted there, too. Nothing is chosen on the test sets.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
from figures import Figure, write
from numpy.typing import NDArray

from models.bundle import Bundle, load_bundle
from models.calibration import calibrate, right_words
from models.confidence import ConfidenceMap
from models.decision import Decision, Rule
from models.ranking import RescoredList, rank_list
from models.reliability import Reliability
from models.scored_lists import ScoredLists
from models.tuning import score_lists
from models.tuning_command import read_nbest
from models.word_errors import word_errors

TEST_SETS = ("lj.test", "arctic.a")
RESAMPLES = 10_000


def scored(bundle: Bundle, data: Path, name: str) -> list[ScoredLists]:
    """The lists of a set, scored."""
    lists = read_nbest(data / f"{name}.nbest.jsonl.gz")
    used = [model for model, value in bundle.weights.interpolation.items() if value > 0]
    return score_lists(bundle.rescorer, lists, used)


def decided(bundle: Bundle, batches: list[ScoredLists], decision: Decision) -> Iterator[RescoredList]:
    """Each list, decided on."""
    for batch in batches:
        for prepared, first in batch.each():
            yield rank_list(batch, replace(prepared, decision=decision), first, bundle.weights, word_scores=False)


def chosen_words(result: RescoredList) -> tuple[str, ...]:
    """The answer that a rule gives."""
    return result.best.words if result.consensus is None else result.consensus.word_confidences.words


def error_rates(bundle: Bundle, batches: list[ScoredLists], test_set: str) -> list[Figure]:
    """WER of each rule, and how it differs from that of the highest total."""
    out: list[Figure] = []
    errors: dict[str, NDArray[np.int64]] = {}
    words = np.array([len(p.reference_words or ()) for batch in batches for p in batch.lists])
    for rule in get_args(Rule):
        began = time.perf_counter()
        results = list(decided(bundle, batches, Decision(rule)))
        seconds = time.perf_counter() - began
        errors[rule] = np.array([word_errors(r.reference_words or (), [chosen_words(r)])[0] for r in results])
        label = f"{test_set}: {rule}"
        out.append(Figure(f"{label}: WER", 100 * errors[rule].sum() / words.sum(), "%"))
        out.append(Figure(f"{label}: time to rank and decide, a list", 1e3 * seconds / len(results), "ms"))
        if rule == "total":
            continue
        difference = errors[rule] - errors["total"]
        rows = np.random.default_rng(1).integers(0, len(words), (RESAMPLES, len(words)))
        drawn = 100 * difference[rows].sum(axis=1) / words[rows].sum(axis=1)
        rarer = min((drawn <= 0).mean(), (drawn >= 0).mean())
        low, high = np.percentile(drawn, [2.5, 97.5])
        out += [
            Figure(f"{label}: WER less that of total", 100 * difference.sum() / words.sum(), "points"),
            Figure(f"{label}: that difference, low end of the 95 % interval", float(low), "points"),
            Figure(f"{label}: that difference, high end of the 95 % interval", float(high), "points"),
            Figure(f"{label}: that difference, p (paired bootstrap)", min(1.0, 2 * float(rarer)), ""),
        ]
    return out


def reliability(
    bundle: Bundle, batches: list[ScoredLists], test_set: str, confidence: ConfidenceMap | None
) -> list[Figure]:
    """What confidences of the words of the highest total are worth."""
    confidences: list[float] = []
    right: list[bool] = []
    for result in decided(bundle, batches, Decision(word_confidences=True, calibration=confidence)):
        found = result.best.word_confidences
        assert found is not None
        confidences += found.confidences
        right += right_words(result.reference_words or (), found.words)
    measured = Reliability.measured(np.array(confidences), np.array(right))
    label = f"{test_set}: {'posteriors' if confidence is None else 'calibrated confidences'}"
    return _figures(label, measured)


def _figures(label: str, measured: Reliability) -> list[Figure]:
    entropy = measured.normalised_cross_entropy
    return [
        Figure(f"{label}: expected calibration error", measured.calibration_error, ""),
        *([] if entropy is None else [Figure(f"{label}: normalised cross entropy", entropy, "")]),
    ]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--bundle", type=Path, required=True)
    arguments = parser.parse_args()
    bundle = load_bundle(arguments.bundle)
    found = calibrate(scored(bundle, arguments.data, "lj.dev"), bundle.weights)
    out = [
        *_figures("lj.dev: posteriors", found.raw),
        *_figures("lj.dev: calibrated confidences, cross-validated", found.cross_validated),
    ]
    for test_set in TEST_SETS:
        batches = scored(bundle, arguments.data, test_set)
        out += error_rates(bundle, batches, test_set)
        out += reliability(bundle, batches, test_set, None)
        out += reliability(bundle, batches, test_set, found.map)
    write("decision_rules", out, "python benchmarks/decision_rules.py --data FOLDER --bundle BUNDLE")


if __name__ == "__main__":
    main()
