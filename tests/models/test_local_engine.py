import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from models.bundle import Bundle, load_bundle
from models.errors import InvalidNBestError, InvalidWeightsError, UnknownModelError
from models.local import LocalEngine, rescore_request

LN_10 = math.log(10)


@pytest.fixture
def bundle(bundle_folder: Path) -> Bundle:
    return load_bundle(bundle_folder)


def request(*hypotheses: tuple[Any, ...], **more: Any) -> dict[str, Any]:
    fields = ("text", "acoustic_score", "lm_score")
    entries = [dict(zip(fields, hypothesis, strict=False)) for hypothesis in hypotheses]
    return {"utterances": [{"id": "u-1", "hypotheses": entries}], **more}


HYPOTHESES = (("good morning", -9.0, -4.0), ("good evening", -8.5, -5.0), ("", -9.5, -3.0), ("day", -9.0, -2.0))


def ranking(answer: dict[str, Any]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = answer["results"][0]["ranking"]
    return entries


def test_the_engine_answers_with_the_bundle_it_is(bundle_folder: Path, bundle: Bundle) -> None:
    engine = LocalEngine(str(bundle_folder), device="cpu")
    answer = engine.rescore(request(*HYPOTHESES))
    assert answer["bundle"] == engine.models()["bundle"] == bundle.sha256
    assert answer["state"] == "reset"


def test_bfloat16_is_opted_for_said_and_near(bundle_folder: Path) -> None:
    exact, rounded = (LocalEngine(str(bundle_folder), device="cpu", precision=p) for p in ("float32", "bfloat16"))
    said = [{m["name"]: m.get("precision") for m in e.models()["models"]}["rnn"] for e in (exact, rounded)]
    assert said == ["float32", "bfloat16"]
    there, here = (
        {entry["index"]: entry["lm_by_model"]["rnn"] for entry in ranking(engine.rescore(request(*HYPOTHESES)))}
        for engine in (exact, rounded)
    )
    assert here == pytest.approx(there, abs=0.05)


def test_without_options_the_bundles_weights_are_used(bundle: Bundle) -> None:
    weights = rescore_request(bundle, request(*HYPOTHESES))["weights"]
    assert (weights["lm_scale"], weights["word_bonus"], weights["interpolation"]) == (
        2.0,
        0.5,
        {"ngram": 0.25, "rnn": 0.75},
    )


@pytest.mark.parametrize("name", ["acoustic_scale", "first_pass_scale", "lm_scale", "word_bonus", "oov_bonus"])
def test_an_explicit_zero_is_honoured(bundle: Bundle, name: str) -> None:
    answer = rescore_request(bundle, request(*HYPOTHESES, options={name: 0}))
    part = {"acoustic_scale": "acoustic", "first_pass_scale": "first_pass", "lm_scale": "lm"}.get(name, name)
    assert answer["weights"][name] == 0
    assert all(entry["contributions"][part] == 0 for entry in ranking(answer))


def test_an_interpolation_in_the_options_replaces_the_whole_mapping(bundle: Bundle) -> None:
    answer = rescore_request(bundle, request(*HYPOTHESES, options={"interpolation": {"ngram": 1}}))
    assert answer["weights"]["interpolation"] == {"ngram": 1.0}
    assert all(entry["lm"] == entry["lm_by_model"]["ngram"] for entry in ranking(answer))


def test_one_requests_options_are_not_the_nexts(bundle: Bundle) -> None:
    before = rescore_request(bundle, request(*HYPOTHESES))
    rescore_request(bundle, request(*HYPOTHESES, options={"lm_scale": 0, "interpolation": {"rnn": 1.0}}))
    assert rescore_request(bundle, request(*HYPOTHESES)) == before


def test_scores_in_log10_rank_as_the_same_scores_in_ln(bundle: Bundle) -> None:
    options = {"first_pass_scale": 0.7}
    in_ln = rescore_request(bundle, request(*HYPOTHESES, options=options))
    tens = [(text, acoustic / LN_10, lm / LN_10) for text, acoustic, lm in HYPOTHESES]
    in_log10 = rescore_request(bundle, request(*tens, options=options, log_base="10"))
    for ours, theirs in zip(ranking(in_ln), ranking(in_log10), strict=True):
        assert ours["index"] == theirs["index"]
        assert ours["total"] == pytest.approx(theirs["total"])


def test_answers_are_in_natural_logs_whatever_the_base_of_the_request(bundle: Bundle) -> None:
    (entry,) = ranking(rescore_request(bundle, request(("good", -1.0, -2.0), log_base="10")))
    assert (entry["acoustic_score"], entry["lm_score"]) == pytest.approx((-LN_10, -2 * LN_10))


def test_every_component_of_the_total_is_returned(bundle: Bundle) -> None:
    for entry in ranking(rescore_request(bundle, request(*HYPOTHESES))):
        assert sum(entry["contributions"].values()) == pytest.approx(entry["total"])
        assert entry["contributions"]["lm"] == pytest.approx(2.0 * entry["lm"])
        assert entry["contributions"]["word_bonus"] == 0.5 * entry["words"]
        assert entry["contributions"]["oov_bonus"] == -1.0 * entry["oov_words"]


def test_entries_are_sorted_and_keep_their_input_index(bundle: Bundle) -> None:
    entries = ranking(rescore_request(bundle, request(*HYPOTHESES)))
    assert [e["total"] for e in entries] == sorted((e["total"] for e in entries), reverse=True)
    assert all(e["text"] == HYPOTHESES[e["index"]][0] for e in entries)


def test_the_answer_is_strict_json(bundle: Bundle) -> None:
    answer = rescore_request(bundle, request(*HYPOTHESES, word_scores=True))
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer


def test_the_request_is_left_as_it_was(bundle: Bundle) -> None:
    asked = request(*HYPOTHESES, options={"state": "carried", "lm_scale": 1}, word_scores=True)
    before = copy.deepcopy(asked)
    rescore_request(bundle, asked)
    assert asked == before


def test_word_scores_come_when_asked_for_and_sum_to_the_sentence_score(bundle: Bundle) -> None:
    for entry in ranking(rescore_request(bundle, request(*HYPOTHESES, word_scores=True))):
        scores = entry["word_scores"]
        assert scores["words"] == [*entry["scored_text"].split(), "</s>"]
        assert sum(scores["mixture"]) == pytest.approx(entry["lm"])
        assert {name: pytest.approx(sum(values)) for name, values in scores["models"].items()} == entry["lm_by_model"]


def test_a_compact_answer_holds_the_order_and_nothing_to_read(bundle: Bundle) -> None:
    answer = rescore_request(bundle, request(*HYPOTHESES, compact=True))
    assert set(ranking(answer)[0]) == {"index", "total", "posterior"}
    whole = ranking(rescore_request(bundle, request(*HYPOTHESES)))
    assert [e["index"] for e in ranking(answer)] == [e["index"] for e in whole]


def test_references_come_back_with_the_words_that_are_scored(bundle: Bundle) -> None:
    asked = request(("Good day!", -1.0))
    asked["utterances"][0].update(reference="GOOD day", session_id="s", speaker="p")
    result = rescore_request(bundle, asked)["results"][0]
    assert (result["reference"], result["scored_reference"]) == ("GOOD day", "good day")
    assert (result["session_id"], result["speaker"]) == ("s", "p")


def test_carried_state_is_carried_when_asked_for(bundle: Bundle) -> None:
    asked = request(("good day", -1.0))
    asked["utterances"].append({"id": "u-2", "hypotheses": [{"text": "day", "acoustic_score": -1.0}]})
    reset = rescore_request(bundle, asked)
    carried = rescore_request(bundle, {**asked, "options": {"state": "carried"}})
    assert carried["state"] == "carried"
    assert carried["results"][0]["ranking"][0]["lm"] == pytest.approx(reset["results"][0]["ranking"][0]["lm"])
    assert carried["results"][1]["ranking"][0]["lm"] != reset["results"][1]["ranking"][0]["lm"]


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_refused_by_index(bundle: Bundle, score: float) -> None:
    with pytest.raises(InvalidNBestError, match="'u-1', hypothesis 1: acoustic_score"):
        rescore_request(bundle, request(("good", -1.0), ("day", score)))


def test_a_score_that_only_log10_makes_infinite_is_refused(bundle: Bundle) -> None:
    with pytest.raises(InvalidNBestError, match="hypothesis 0: acoustic_score"):
        rescore_request(bundle, request(("good", -1.7e308), log_base="10"))


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"lm_scale": math.nan}, InvalidWeightsError, "lm_scale"),
        ({"lm_scale": "1"}, InvalidWeightsError, "lm_scale"),
        ({"lm_scale": True}, InvalidWeightsError, "lm_scale"),
        ({"lm_scale": None}, InvalidWeightsError, "lm_scale"),
        ({"temperature": 1}, InvalidWeightsError, "'temperature'"),
        ({"interpolation": {"ngram": 0.5}}, InvalidWeightsError, "sum to 0.5"),
        ({"interpolation": [1.0]}, InvalidWeightsError, "interpolation"),
        ({"interpolation": {"ngram": "1"}}, InvalidWeightsError, "ngram"),
        ({"interpolation": {"lstm": 1}}, UnknownModelError, "'lstm'"),
    ],
)
def test_options_that_are_none_are_refused_by_name(
    bundle: Bundle, options: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        rescore_request(bundle, request(*HYPOTHESES, options=options))


def test_one_bad_list_refuses_the_request_by_utterance(bundle: Bundle) -> None:
    asked = request(("good", -1.0))
    asked["utterances"].append({"id": "bad", "hypotheses": [{"text": "a\0b", "acoustic_score": -1.0}]})
    with pytest.raises(InvalidNBestError, match="'bad', hypothesis 0"):
        rescore_request(bundle, asked)
