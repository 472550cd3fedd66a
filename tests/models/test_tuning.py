import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients.evaluation.bootstrap import resampled_sums
from models.development_set import DevelopmentSet
from models.errors import InvalidNBestError, TuningError
from models.nbest import Hypothesis, NBest
from models.normaliser import Normaliser
from models.ranking import RescoredList
from models.rescoring import Rescorer
from models.score import Weights
from models.tuning import TuningResult, fit_mixture, score_lists, tune
from models.tuning_command import read_nbest
from models.vocabulary import Vocabulary
from models.weight_ranges import Regularisation
from models.weight_search import steady_search

# Each tunes or replays a whole set.
pytestmark = pytest.mark.slow

VOCABULARY = Vocabulary(tuple(f"w{i}" for i in range(30)))
LM_ONLY = frozenset({"first_pass_scale", "word_bonus", "oov_bonus"})


def engine(model: Any) -> Rescorer:
    return Rescorer(VOCABULARY, Normaliser(), {"lm": model})


def run(rescorer: Rescorer, lists: list[NBest], **more: Any) -> TuningResult:
    held_out = [("w1", "w2"), ("w3",)]
    return tune(score_lists(rescorer, lists, ["lm"]), *fit_mixture(rescorer, ["lm"], held_out), **more)


def favouring(make: Any, *better: str) -> Any:
    """A model that gives these words one nat more than the others; not normalised, which no law here needs."""
    log_probs = np.full(VOCABULARY.size, -4.0)
    log_probs[VOCABULARY.ids(better)] = -3.0
    return make.Unigram(log_probs)


def lists_of(count: int, *hypotheses: tuple[str, float], reference: str) -> list[NBest]:
    entries = tuple(Hypothesis(text, acoustic) for text, acoustic in hypotheses)
    return [NBest(f"{reference}-{i}", entries, reference=reference) for i in range(count)]


def test_a_language_model_that_helps_gets_a_scale_that_mends_the_errors(make: Any) -> None:
    # The wrong hypothesis is 2 better by the audio; w1 is one nat better by the model: lm_scale must exceed 2.
    result = run(engine(favouring(make, "w1")), lists_of(10, ("w2", -1.0), ("w1", -3.0), reference="w1"), off=LM_ONLY)
    assert (result.first_pass_errors, result.tuned_errors, result.oracle_errors) == (10, 0, 0)
    assert result.weights.lm_scale > 2 * result.weights.acoustic_scale
    assert result.held_out_errors == 0
    assert not [warning for warning in result.warnings if "beat" in warning]


def test_the_weights_found_rescore_the_development_set_with_the_errors_reported(make: Any) -> None:
    lists = random_lists(40, right_first=0.4)
    rescorer = engine(make.Unigram.drawn(VOCABULARY.size, seed=3))
    result = run(rescorer, lists)
    errors = 0
    for rescored in rescorer.rescore([rescorer.prepare(nbest) for nbest in lists], [result.weights] * len(lists)):
        assert isinstance(rescored, RescoredList)
        assert rescored.reference_words is not None
        errors += sum(a != b for a, b in zip(rescored.best.words, rescored.reference_words, strict=True))
    assert errors == result.tuned_errors


def random_lists(count: int, right_first: float) -> list[NBest]:
    """Lists of five texts of three words, one of them right; the scores know nothing of which."""
    draw = np.random.default_rng(11)
    out = []
    for number in range(count):
        texts = [" ".join(draw.choice(VOCABULARY.words, 3)) for _ in range(5)]
        right = 0 if draw.random() < right_first else int(draw.integers(1, 5))
        hypotheses = tuple(Hypothesis(text, -float(i)) for i, text in enumerate(texts))
        out.append(NBest(str(number), hypotheses, reference=texts[right]))
    return out


def test_scores_that_know_nothing_are_seen_through_on_held_out_folds(make: Any) -> None:
    result = run(engine(make.Unigram.drawn(VOCABULARY.size, seed=7)), random_lists(60, right_first=0.7))
    assert result.tuned_errors <= result.first_pass_errors <= result.held_out_errors
    assert any("does not beat the first pass on held-out folds" in warning for warning in result.warnings)


def test_each_fold_is_scored_with_weights_tuned_on_the_others(make: Any) -> None:
    # The first half needs a positive scale, the second a negative one; a weight from the other half fails on all.
    lists = [
        *lists_of(5, ("w2", -1.0), ("w1", -1.0), reference="w1"),
        *lists_of(5, ("w1", -1.0), ("w2", -1.0), reference="w2"),
    ]
    result = run(engine(favouring(make, "w1")), lists, off=LM_ONLY, folds=2)
    assert (result.first_pass_errors, result.tuned_errors, result.held_out_errors) == (10, 5, 10)


def test_tuned_errors_lie_between_the_oracle_and_the_first_pass(make: Any) -> None:
    result = run(engine(make.Unigram.drawn(VOCABULARY.size, seed=2)), random_lists(30, right_first=0.3))
    assert result.oracle_errors <= result.tuned_errors <= result.first_pass_errors
    assert (result.words, result.lists, result.folds) == (90, 30, 5)


def test_a_model_that_does_harm_gets_a_negative_scale_and_a_warning(make: Any) -> None:
    # The audio cannot tell, the model prefers the wrong word, and the wrong word comes first.
    lists = lists_of(10, ("w2", -1.0), ("w1", -1.0), reference="w1")
    result = run(engine(favouring(make, "w2")), lists, off=LM_ONLY)
    assert result.tuned_errors == 0
    assert result.weights.lm_scale < 0
    assert any("lm_scale" in warning and "does not help" in warning for warning in result.warnings)


def test_a_model_that_is_of_no_use_gets_a_scale_of_zero_and_a_warning(make: Any) -> None:
    lists = lists_of(10, ("w1", -1.0), ("w2", -2.0), reference="w1")
    result = run(engine(favouring(make, "w9")), lists)
    assert result.weights.lm_scale == 0
    assert any("lm_scale = 0" in warning for warning in result.warnings)


def test_a_best_value_beyond_the_range_is_flagged(make: Any) -> None:
    # Half of the lists want more than 50 times the acoustic scale, half less than 60: the range ends at 40.
    lists = [
        *lists_of(10, ("w2", -1.0), ("w1", -51.0), reference="w1"),
        *lists_of(10, ("w1", -61.0), ("w3", -1.0), reference="w3"),
    ]
    lists = [nbest for pair in zip(lists[:10], lists[10:], strict=True) for nbest in pair]
    result = run(engine(favouring(make, "w1")), lists, off=LM_ONLY)
    assert result.tuned_errors == 0
    assert 50 < result.weights.lm_scale < 60
    assert any("lm_scale" in warning and "edge of its range" in warning for warning in result.warnings)


def test_what_lies_at_the_edge_is_named_beside_its_weight(make: Any) -> None:
    # The scale must lie between 39.8 and 60; the range ends at 40.
    lists = [
        *lists_of(6, ("w2", -1.0), ("w1", -40.8), reference="w1"),
        *lists_of(6, ("w1", -61.0), ("w3", -1.0), reference="w3"),
    ]
    result = run(engine(favouring(make, "w1")), [lists[i // 2 + 6 * (i % 2)] for i in range(12)], off=LM_ONLY, folds=2)
    assert result.at_edge == ("lm_scale",)
    assert run(engine(favouring(make, "w1")), lists_of(6, ("w1", -1.0), reference="w1"), folds=2).at_edge == ()


def test_the_spread_over_folds_is_that_of_the_weights_found_without_each(make: Any) -> None:
    # What is found without a fold is what is found on the others alone.
    lists = random_lists(24, right_first=0.4)
    rescorer = engine(make.Unigram.drawn(VOCABULARY.size, seed=3))
    result = run(rescorer, lists, off=LM_ONLY, folds=2)
    halves = [run(rescorer, half, off=LM_ONLY, folds=2).weights.lm_scale for half in (lists[12:], lists[:12])]
    spread = result.spread["lm_scale"]
    assert (spread.lowest, spread.highest) == pytest.approx((min(halves), max(halves)))
    assert spread.mean == pytest.approx(sum(halves) / 2)
    # The deviation of two values, divided by K - 1 = 1, is their distance over the root of 2.
    assert spread.deviation == pytest.approx(abs(halves[0] - halves[1]) / 2**0.5)


def test_the_gain_on_held_out_folds_has_an_interval_around_it(make: Any) -> None:
    # Four in five first hypotheses are wrong and mended, and one in five lists cannot be mended.
    lists = [
        nbest
        for i in range(12)
        for nbest in (
            *lists_of(4, ("w2", -1.0), ("w1", -3.0), reference="w1"),
            *lists_of(1, ("w4", -1.0), reference=f"w{5 + i}"),
        )
    ]
    lists = [NBest(str(number), nbest.hypotheses, reference=nbest.reference) for number, nbest in enumerate(lists)]
    rate = run(engine(favouring(make, "w1")), lists, off=LM_ONLY).held_out_rate
    assert rate.value == pytest.approx(100 * 12 / 60)
    assert rate.difference == pytest.approx(-100 * 48 / 60)
    assert rate.difference_interval.low < rate.difference < rate.difference_interval.high < 0
    assert rate.p_value < 0.001


def test_no_gain_has_a_p_value_of_one(make: Any) -> None:
    rate = run(engine(favouring(make, "w1")), lists_of(10, ("w1", -1.0), ("w2", -2.0), reference="w1")).held_out_rate
    assert (rate.difference, rate.difference_interval.low, rate.difference_interval.high) == (0, 0, 0)
    assert rate.p_value == 1


def test_the_gain_has_the_interval_that_evaluation_gives_the_same_errors(make: Any) -> None:
    rescorer = engine(make.Unigram.drawn(VOCABULARY.size, seed=3))
    lists = random_lists(30, right_first=0.4)
    scored = score_lists(rescorer, lists, ["lm"])
    result = run(rescorer, lists, seed=7)
    development = DevelopmentSet.from_scores(scored, {"lm": 1.0})
    folds = np.arange(30) * 5 // 30
    options = {"off": frozenset({"first_pass_scale"}), "seed": 7}
    errors = np.zeros(30)
    for fold in range(5):
        found = steady_search(development.subset(folds != fold), **options)
        errors[folds == fold] = development.chosen_errors(found.values[:, None])[folds == fold, 0]
    assert errors.sum() == result.held_out_errors
    counts = np.stack([errors, development.first_pass_errors, development.words]).astype(np.int64)
    mended, first_pass, words = resampled_sums(counts, development.words, resamples=10_000, seed=11)
    differences = 100 * (mended - first_pass) / words
    assert result.held_out_rate.difference_interval.low == pytest.approx(np.percentile(differences, 2.5), abs=1.5)
    assert result.held_out_rate.difference_interval.high == pytest.approx(np.percentile(differences, 97.5), abs=1.5)


def test_regularised_weights_lie_nearer_to_their_defaults(make: Any) -> None:
    # Any scale from 2 on mends all errors: without a pull the middle of 2 to 40, with one near to 10.
    lists = lists_of(10, ("w2", -1.0), ("w1", -3.0), reference="w1")
    free, pulled = (
        run(engine(favouring(make, "w1")), lists, off=LM_ONLY, regularisation=Regularisation(strength))
        for strength in (0.0, 5.0)
    )
    assert free.tuned_errors == pulled.tuned_errors == 0
    assert abs(pulled.weights.lm_scale - 10) < 1 < abs(free.weights.lm_scale - 10)


def test_many_unknown_words_are_warned_of(make: Any) -> None:
    lists = lists_of(10, ("w2 zebra", -1.0), ("w1 yak", -3.0), reference="w1 yak")
    result = run(engine(favouring(make, "w1")), lists)
    assert any("50.0% of the hypotheses' words are outside the vocabulary" in warning for warning in result.warnings)


def test_the_oov_bonus_can_be_tuned(make: Any) -> None:
    # The audio prefers an unknown word, which is as likely as any: only a malus tells it from the right one.
    lists = lists_of(10, ("zebra", -1.0), ("w1", -3.0), reference="w1")
    result = run(engine(favouring(make)), lists, off=frozenset({"lm_scale", "acoustic_scale"}))
    assert result.weights.oov_bonus < 0
    assert result.tuned_errors == 0


def test_a_first_pass_that_gave_no_scores_has_no_scale(make: Any) -> None:
    result = run(engine(favouring(make, "w1")), lists_of(10, ("w2", -1.0), ("w1", -3.0), reference="w1"))
    assert result.weights.first_pass_scale == 0


def test_tuning_repeats_itself(make: Any) -> None:
    rescorer, lists = engine(make.Unigram.drawn(VOCABULARY.size, seed=5)), random_lists(20, right_first=0.4)
    one, same = run(rescorer, lists, seed=4), run(rescorer, lists, seed=4)
    assert one.weights == same.weights
    assert one.held_out_errors == same.held_out_errors


def test_the_posterior_scale_found_is_a_scale(make: Any) -> None:
    result = run(engine(favouring(make, "w1")), lists_of(10, ("w2", -1.0), ("w1", -3.0), reference="w1"))
    assert 0 < result.weights.posterior_scale <= 1


def test_fewer_lists_than_folds_cannot_be_cross_validated(make: Any) -> None:
    with pytest.raises(TuningError, match="4 utterances are too few for 5 folds"):
        run(engine(favouring(make)), lists_of(4, ("w1", -1.0), reference="w1"))


def test_references_without_a_word_cannot_be_tuned_on(make: Any) -> None:
    with pytest.raises(TuningError, match="hold no word"):
        run(engine(favouring(make)), lists_of(6, ("w1", -1.0), reference="<sil>"))


def test_no_held_out_text_is_an_error(make: Any) -> None:
    with pytest.raises(TuningError, match="held-out text is empty"):
        fit_mixture(engine(favouring(make)), ["lm"], [])


def test_of_two_models_the_one_that_explains_the_text_gets_the_weight(make: Any) -> None:
    good, bad = make.Unigram(np.log([0.5, 0.2, *[0.01] * 30])), make.Unigram(np.log([0.1, 0.1, *[0.8 / 30] * 30]))
    rescorer = Rescorer(VOCABULARY, Normaliser(), {"bad": bad, "good": good})
    shares, fit = fit_mixture(rescorer, ["bad", "good"], [("zebra", "yak")] * 5)
    assert shares["good"] == pytest.approx(1, abs=1e-3)
    assert fit.words == 15
    assert Weights(shares).interpolation == shares


def test_progress_ends_with_the_number_of_lists(make: Any) -> None:
    seen: list[int] = []
    rescorer = engine(favouring(make))
    score_lists(rescorer, lists_of(20, ("w1", -1.0), reference="w1"), ["lm"], seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 20


def utterance(**changed: Any) -> dict[str, Any]:
    return {
        "id": "u-1",
        "hypotheses": [{"text": "a", "acoustic_score": -1}, {"text": "b", "acoustic_score": -2}],
        **changed,
    }


@pytest.mark.parametrize("name", ["dev.jsonl", "dev.jsonl.gz"])
def test_lists_are_read_plain_or_packed(tmp_path: Path, name: str) -> None:
    lines = "".join(json.dumps(utterance(id=f"u-{i}", duration_s=1.5)) + "\n\n" for i in range(3)).encode()
    (tmp_path / name).write_bytes(gzip.compress(lines) if name.endswith("gz") else lines)
    assert [nbest.utterance_id for nbest in read_nbest(tmp_path / name)] == ["u-0", "u-1", "u-2"]


@pytest.mark.parametrize("word", ["null", "NA", "nan", "None", ""])
def test_texts_that_look_like_values_are_read_as_texts(tmp_path: Path, word: str) -> None:
    document = utterance(id=word, hypotheses=[{"text": word, "acoustic_score": 0}], reference=word)
    (tmp_path / "dev.jsonl").write_text(json.dumps(document))
    (nbest,) = read_nbest(tmp_path / "dev.jsonl")
    assert (nbest.utterance_id, nbest.hypotheses[0].text, nbest.reference) == (word, word, word)


def test_log10_scores_become_natural_logs_as_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "dev.jsonl").write_text(json.dumps(utterance()))
    (nbest,) = read_nbest(tmp_path / "dev.jsonl", log_unit=float(np.log(10)))
    assert nbest.hypotheses[1].acoustic == pytest.approx(-4.605170)


BAD_LINES = [
    ("{", "not an N-best list"),
    ("[]", "not an N-best list"),
    ("5", "not an N-best list"),
    ("{}", "field 'id' is missing"),
    (json.dumps(utterance(id=7)), "id is no string"),
    (json.dumps(utterance(hypotheses=[])), "empty"),
    (json.dumps(utterance(hypotheses=[{"text": "a"}])), "field 'acoustic_score' is missing"),
    (json.dumps(utterance(hypotheses=[{"acoustic_score": 1}])), "field 'text' is missing"),
    (json.dumps(utterance(hypotheses=[{"text": 5, "acoustic_score": 1}])), "hypothesis 0: text is no string"),
    (json.dumps(utterance(hypotheses=[{"text": "a", "acoustic_score": "1"}])), "acoustic_score is no number"),
    (json.dumps(utterance(hypotheses=[{"text": "a", "acoustic_score": True}])), "acoustic_score is no number"),
    (json.dumps(utterance(hypotheses=[{"text": "a", "acoustic_score": None}])), "not an N-best list"),
    (json.dumps(utterance(hypotheses=[{"text": "a", "acoustic_score": 1, "lm_score": "x"}])), "lm_score is no number"),
    (json.dumps(utterance(hypotheses=[{"text": "a", "acoustic_score": float("nan")}])), "must be finite"),
    (json.dumps(utterance(hypotheses="ab")), "not an N-best list"),
    (json.dumps(utterance(reference=5)), "reference is no string"),
    ('{"id": "u", "hypotheses": [{"text": "a", "acoustic_score": 1e400}]}', "must be finite"),
    ('{"id": "u", "hypotheses": [{"text": "a", "acoustic_score": 1' + "0" * 400 + "}]}", "not an N-best list"),
    (json.dumps(utterance()), "'u-1' stands twice"),
]


@pytest.mark.parametrize(("line", "said"), BAD_LINES, ids=[str(i) for i in range(len(BAD_LINES))])
def test_a_line_that_is_no_list_is_refused_by_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text(json.dumps(utterance()) + "\n" + line + "\n")
    with pytest.raises(InvalidNBestError, match=rf"dev\.jsonl, line 2: .*{said}"):
        read_nbest(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("dev.jsonl", None),
        ("dev.jsonl", b""),
        ("dev.jsonl", b"\xff\n"),
        ("dev.jsonl.gz", b"not packed"),
        ("dev.jsonl.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff\xff\xff\xff"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path, name: str, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidNBestError, match=r"dev\.jsonl"):
        read_nbest(tmp_path / name)
