"""Calibration from N-best lists whose truth was drawn with known odds."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.calibration import calibrate, right_words
from models.errors import TuningError
from models.nbest import Hypothesis, NBest
from models.rescoring import Rescorer
from models.score import Weights
from models.scored_lists import ScoredLists
from models.tuning import score_lists

# The acoustic score is all there is, so that posteriors are known.
PLAIN = Weights({"ngram": 1.0}, lm_scale=0.0, posterior_scale=1.0)


def scored(rescorer: Rescorer, lists: list[NBest]) -> list[ScoredLists]:
    return score_lists(rescorer, lists, ["ngram"])


def drawn_lists(count: int, overconfidence: float) -> list[NBest]:
    """Two words to choose from, the first right with odds e^x; the acoustic scores claim e^(overconfidence * x)."""
    draw = np.random.default_rng(2)
    out = []
    for number in range(count):
        odds = float(draw.uniform(0, 2))
        said = "good" if draw.uniform() < 1 / (1 + math.exp(-odds)) else "day"
        hypotheses = (Hypothesis("good", overconfidence * odds), Hypothesis("day", 0.0))
        out.append(NBest(f"u{number}", hypotheses, reference=said))
    return out


def test_the_odds_that_posteriors_exaggerate_are_found_again(rescorer: Rescorer) -> None:
    found = calibrate(scored(rescorer, drawn_lists(1500, 3.0)), PLAIN)
    # What is claimed is the cube of the odds, so the cube root of the claim is true.
    assert found.map.slope == pytest.approx(1 / 3, abs=0.06)
    assert found.map.intercept == pytest.approx(0, abs=0.25)
    assert found.cross_validated.calibration_error < found.raw.calibration_error / 3
    assert found.helps
    assert (found.lists, found.raw.words, found.cross_validated.words) == (1500, 1500, 1500)


def test_posteriors_that_are_true_stay_nearly_as_they_are(rescorer: Rescorer) -> None:
    found = calibrate(scored(rescorer, drawn_lists(1500, 1.0)), PLAIN)
    assert found.map.slope == pytest.approx(1, abs=0.2)
    assert found.map.intercept == pytest.approx(0, abs=0.25)
    assert found.raw.calibration_error < 0.05


def test_what_is_measured_of_a_fold_is_not_learnt_from_it(rescorer: Rescorer) -> None:
    # Two folds that contradict each other: each is judged by what the other has taught.
    always, never = (
        [NBest(f"{said}{i}", (Hypothesis("good", 1.0), Hypothesis("day", 0.0)), reference=said) for i in range(50)]
        for said in ("good", "day")
    )
    found = calibrate(scored(rescorer, [*always, *never]), PLAIN, folds=2)
    assert found.cross_validated.normalised_cross_entropy is not None
    assert found.cross_validated.normalised_cross_entropy < -1
    assert not found.helps
    assert found.map([1 / (1 + math.exp(-1))]) == pytest.approx([0.5], abs=0.02)


def test_calibrating_twice_gives_the_same_numbers(rescorer: Rescorer) -> None:
    lists = scored(rescorer, drawn_lists(40, 2.0))
    assert calibrate(lists, PLAIN) == calibrate(lists, PLAIN)


def test_the_summary_gives_both_measures_before_and_after(rescorer: Rescorer) -> None:
    found = calibrate(scored(rescorer, drawn_lists(40, 2.0)), PLAIN, folds=4)
    assert found.summary() == (
        f"word confidences, 4 folds: normalised cross entropy {found.cross_validated.normalised_cross_entropy:.3f} and "
        f"calibration error {found.cross_validated.calibration_error:.3f} calibrated, normalised cross entropy "
        f"{found.raw.normalised_cross_entropy:.3f} and calibration error {found.raw.calibration_error:.3f} "
        "as posteriors"
    )
    alike = [replace(nbest, reference="good") for nbest in drawn_lists(10, 1.0)]
    assert "no normalised cross entropy" in calibrate(scored(rescorer, alike), PLAIN).summary()


def test_the_record_is_strict_json(rescorer: Rescorer) -> None:
    record = calibrate(scored(rescorer, drawn_lists(40, 2.0)), PLAIN).to_json()
    assert json.loads(json.dumps(record, allow_nan=False))["map"].keys() == {"intercept", "slope"}


def test_a_list_without_a_reference_is_named(rescorer: Rescorer) -> None:
    lists = drawn_lists(6, 1.0)
    lists[3] = replace(lists[3], reference=None)
    with pytest.raises(TuningError, match="'u3' has no reference"):
        calibrate(scored(rescorer, lists), PLAIN)


def test_too_few_lists_for_the_folds_are_refused(rescorer: Rescorer) -> None:
    with pytest.raises(TuningError, match="4 utterances are too few for 5 folds"):
        calibrate(scored(rescorer, drawn_lists(4, 1.0)), PLAIN)


def test_where_all_is_silence_there_is_nothing_to_calibrate(rescorer: Rescorer) -> None:
    lists = [NBest(f"u{i}", (Hypothesis("", 0.0),), reference="good") for i in range(5)]
    with pytest.raises(TuningError, match="no word"):
        calibrate(scored(rescorer, lists), PLAIN)


@pytest.mark.parametrize(
    ("reference", "words", "right"),
    [
        ("a b c", "a x c", [True, False, True]),
        ("a b c", "a c", [True, True]),
        ("a c", "a b c", [True, False, True]),
        ("", "a", [False]),
        ("a", "", []),
        ("a b", "a b", [True, True]),
    ],
)
def test_right_words_by_hand(reference: str, words: str, right: Any) -> None:
    assert right_words(reference.split(), words.split()) == right
