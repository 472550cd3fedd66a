import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.base import FloatArray
from models.bundle import Manifest, add_elman, load_bundle
from models.confidence import ConfidenceMap, fit_confidence
from models.errors import BundleError, InvalidOptionError
from models.reliability import Reliability
from models.score import Weights
from models.vocabulary import Vocabulary

POSTERIORS = st.floats(0, 1)
WORDS = st.lists(st.tuples(POSTERIORS, st.booleans()), max_size=30)


def chance(intercept: float, slope: float, posterior: float) -> float:
    return 1 / (1 + math.exp(-(intercept + slope * math.log(posterior / (1 - posterior)))))


def told(words: list[tuple[float, bool]]) -> tuple[FloatArray, Any]:
    return np.array([p for p, _ in words]), np.array([right for _, right in words], np.bool_)


@pytest.mark.parametrize(("intercept", "slope"), [(0.0, 1.0), (0.7, 0.4), (-1.0, 0.5), (0.5, 2.0)])
def test_probabilities_that_made_the_words_right_or_wrong_are_found_again(intercept: float, slope: float) -> None:
    draw = np.random.default_rng(1)
    posteriors = draw.uniform(0.02, 0.98, 20_000)
    chances = np.array([chance(intercept, slope, p) for p in posteriors])
    found = fit_confidence(posteriors, draw.uniform(size=len(posteriors)) < chances)
    assert np.abs(np.array(found(posteriors)) - chances).max() < 0.02


def test_a_map_by_hand() -> None:
    # The log odds of 0.9 are ln 9; half of them, ln 3, are those of 3/4. One more is 3e / (3e + 1).
    assert ConfidenceMap(0.0, 0.5)([0.9, 0.5, 0.1]) == pytest.approx([0.75, 0.5, 0.25])
    assert ConfidenceMap(1.0, 0.5)([0.9]) == pytest.approx([3 * math.e / (3 * math.e + 1)])


@given(WORDS, st.lists(POSTERIORS, min_size=2, max_size=10))
def test_a_higher_posterior_is_never_trusted_less(words: list[tuple[float, bool]], asked: list[float]) -> None:
    confidences = fit_confidence(*told(words))(sorted(asked))
    assert confidences == sorted(confidences)
    assert all(0 <= confidence <= 1 for confidence in confidences)


def test_without_evidence_posteriors_stay_as_they_are() -> None:
    assert fit_confidence(*told([])) == ConfidenceMap(0.0, 1.0)


def test_a_little_evidence_changes_little() -> None:
    found = fit_confidence(*told([(0.9, False)]))
    assert 0.4 < found([0.9])[0] < 0.9


@given(WORDS, st.sampled_from([(0.01, 0.0), (-0.01, 0.0), (0.0, 0.01), (0.0, -0.01)]))
def test_no_map_near_by_explains_the_words_better(words: list[tuple[float, bool]], step: tuple[float, float]) -> None:
    def loss(intercept: float, slope: float) -> float:
        terms = [intercept**2 / 2, (slope - 1) ** 2 / 2]
        for posterior, right in words:
            p = chance(intercept, slope, min(max(posterior, 0.003), 0.997))
            terms.append(-math.log(p if right else 1 - p))
        return math.fsum(terms)

    found = fit_confidence(*told(words))
    if found.slope + step[1] >= 0:
        assert loss(found.intercept, found.slope) <= loss(found.intercept + step[0], found.slope + step[1]) + 1e-9


def test_posteriors_that_mislead_are_not_listened_to() -> None:
    # The surer, the more often wrong: all that is left is the share of right words, 1/2.
    words = [(0.9, i < 100) for i in range(500)] + [(0.1, i < 400) for i in range(500)]
    found = fit_confidence(*told(words))
    assert found.slope == 0
    assert found([0.1, 0.9]) == pytest.approx([0.5, 0.5], abs=0.01)


@pytest.mark.parametrize("right", [True, False])
def test_words_that_are_all_right_or_all_wrong_give_no_certainty(right: bool) -> None:
    (confidence,) = fit_confidence(*told([(0.7, right)] * 200))([0.7])
    assert 0 < confidence < 1
    assert (confidence > 0.9) is right


@pytest.mark.parametrize(
    ("intercept", "slope", "said"),
    [
        (math.nan, 1.0, "confidence.intercept is nan"),
        (0.0, math.inf, "confidence.slope is inf"),
        (0.0, -0.5, r"confidence.slope is -0.5; a negative one"),
    ],
)
def test_what_is_no_map_is_refused_by_field(intercept: float, slope: float, said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        ConfidenceMap(intercept, slope)


def test_a_map_survives_the_bundle(bundle_folder: Path) -> None:
    manifest = Manifest.read(bundle_folder)
    assert manifest.confidence is None
    manifest.confidence = ConfidenceMap(0.25, 0.75)
    manifest.write(bundle_folder)
    bundle = load_bundle(bundle_folder)
    assert bundle.manifest.confidence == ConfidenceMap(0.25, 0.75)
    assert bundle.describe()["confidence"] == {"intercept": 0.25, "slope": 0.75}


def test_a_bundle_from_before_there_were_maps_is_read(bundle_folder: Path) -> None:
    path = bundle_folder / "bundle.json"
    document = json.loads(path.read_text())
    del document["confidence"]
    path.write_text(json.dumps(document))
    assert load_bundle(bundle_folder).manifest.confidence is None


def test_a_map_holds_for_the_weights_that_it_was_fitted_under_alone(bundle_folder: Path) -> None:
    manifest = Manifest.read(bundle_folder)
    manifest.confidence = ConfidenceMap(0.25, 0.75)
    manifest.write(bundle_folder)
    bundle = load_bundle(bundle_folder)
    assert bundle.confidence(bundle.weights) == ConfidenceMap(0.25, 0.75)
    assert bundle.confidence(Weights({"ngram": 0.25, "rnn": 0.75}, posterior_scale=0.3)) is None
    assert load_bundle(bundle_folder, only=("rnn",)).confidence(Weights({"rnn": 1.0})) is None


def test_a_model_added_puts_the_map_out_of_force(bundle_folder: Path, make: Any, tiny_vocabulary: Vocabulary) -> None:
    manifest = Manifest.read(bundle_folder)
    manifest.confidence = ConfidenceMap(0.25, 0.75)
    manifest.write(bundle_folder)
    add_elman(bundle_folder, manifest, "rnn", make.elman(tiny_vocabulary, seed=9))
    assert Manifest.read(bundle_folder).confidence is None


@pytest.mark.parametrize(
    ("confidence", "said"),
    [
        ({"intercept": 0, "slope": -1}, "confidence.slope is -1"),
        ({"intercept": "0", "slope": 1}, "confidence.intercept is '0'; it must be a number"),
        ({"intercept": True, "slope": 1}, "confidence.intercept is True; it must be a number"),
        ({"intercept": math.nan, "slope": 1}, "confidence.intercept is nan"),
        ({"slope": 1}, "'intercept' is missing"),
        ([0, 1], "not of its type"),
        (1, "not of its type"),
    ],
)
def test_a_bundle_whose_map_is_none_is_refused_by_file_and_field(
    bundle_folder: Path, confidence: Any, said: str
) -> None:
    path = bundle_folder / "bundle.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "confidence": confidence}))
    with pytest.raises(BundleError, match=r"bundle\.json") as raised:
        load_bundle(bundle_folder)
    assert said in str(raised.value)


def test_reliability_by_hand() -> None:
    # Ten words: eight of confidence 0.9, of which seven are right; two of 0.3, of which none is.
    confidences = np.array([0.9] * 8 + [0.3] * 2)
    found = Reliability.measured(confidences, np.array([True] * 7 + [False] * 3))
    assert [(b.low, b.high, b.words, b.right) for b in found.bins] == [(0.3, 0.4, 2, 0.0), (0.9, 1.0, 8, 7 / 8)]
    assert [b.confidence for b in found.bins] == pytest.approx([0.3, 0.9])
    assert found.calibration_error == pytest.approx((8 * abs(0.9 - 7 / 8) + 2 * 0.3) / 10)
    most = -(7 * math.log2(0.7) + 3 * math.log2(0.3))
    said = 7 * math.log2(0.9) + math.log2(0.1) + 2 * math.log2(0.7)
    assert found.normalised_cross_entropy == pytest.approx((most + said) / most)
    assert (found.words, found.right) == (10, 7)


def test_knowing_only_the_share_of_right_words_is_worth_nothing() -> None:
    found = Reliability.measured(np.full(8, 0.75), np.array([True] * 6 + [False] * 2))
    assert found.normalised_cross_entropy == pytest.approx(0, abs=1e-12)
    assert found.calibration_error == pytest.approx(0, abs=1e-12)


def test_knowing_every_word_is_worth_nearly_one_and_a_sure_mistake_costs_a_finite_sum() -> None:
    right = np.array([True, False] * 4)
    known = Reliability.measured(right.astype(float), right).normalised_cross_entropy
    mistaken = Reliability.measured(1.0 - right, right).normalised_cross_entropy
    assert known == pytest.approx(1, abs=1e-5)
    assert mistaken is not None
    assert -100 < mistaken < 0


@pytest.mark.parametrize("right", [True, False])
def test_where_all_words_are_alike_there_is_no_entropy_to_normalise_by(right: bool) -> None:
    assert Reliability.measured(np.array([0.2, 0.8]), np.array([right] * 2)).normalised_cross_entropy is None


@given(WORDS.filter(bool))
def test_every_word_is_in_one_bin(words: list[tuple[float, bool]]) -> None:
    found = Reliability.measured(*told(words))
    assert sum(part.words for part in found.bins) == len(words)
    assert all(part.low <= part.confidence <= part.high + 1e-12 for part in found.bins)
    assert sum(part.right * part.words for part in found.bins) == pytest.approx(found.right)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["words"] == len(words)
