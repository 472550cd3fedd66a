"""What a caller may rely on, argued from answers alone."""

import copy
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from models.bundle import Bundle
from models.local import rescore_request
from service.schemas import RescoreAnswer

pytestmark = pytest.mark.anyio

Ask = Callable[..., dict[str, Any]]
Ranking = Callable[[httpx.Response], list[Mapping[str, Any]]]
TEXTS = ("the cat sad", "the cat sat", "", "the zebra sat on the mat", "the cat sat")


def without_ranking_order(entries: list[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    return {entry["index"]: entry for entry in entries}


async def post(client: httpx.AsyncClient, request: dict[str, Any]) -> httpx.Response:
    return await client.post("/v1/rescore", json=request)


async def test_as_many_hypotheses_come_out_as_went_in_each_with_its_own_text(
    client: httpx.AsyncClient, ask: Ask, ranking: Ranking
) -> None:
    entries = ranking(await post(client, ask(*TEXTS)))
    assert {entry["index"]: entry["text"] for entry in entries} == dict(enumerate(TEXTS))


async def test_results_stand_in_request_order(client: httpx.AsyncClient, ask: Ask) -> None:
    names = ["utt-2", "../../etc/passwd", "a b", "utt-1", "0"]
    request = {"utterances": [ask("the cat", name=name)["utterances"][0] for name in names]}
    answer = (await post(client, request)).json()
    assert [result["id"] for result in answer["results"]] == names


async def test_scoring_twice_is_identical(client: httpx.AsyncClient, ask: Ask) -> None:
    first = await post(client, ask(*TEXTS, word_scores=True))
    second = await post(client, ask(*TEXTS, word_scores=True))
    assert first.content == second.content


async def test_the_answer_is_that_of_the_engine_in_process(client: httpx.AsyncClient, ask: Ask, bundle: Bundle) -> None:
    request = ask(*TEXTS, word_scores=True, options={"lm_scale": 0.5, "interpolation": {"rnn": 1.0}})
    request["utterances"][0] |= {"reference": "The cat sat.", "session_id": "s", "speaker": "p"}
    answer = (await post(client, request)).json()
    assert answer == json.loads(json.dumps(rescore_request(bundle, copy.deepcopy(request))))


async def test_an_answer_is_as_documented(client: httpx.AsyncClient, ask: Ask) -> None:
    response = await post(client, ask(*TEXTS, word_scores=True))
    TypeAdapter(RescoreAnswer).validate_json(response.content)


async def test_lm_scale_zero_ranks_by_the_recogniser_and_ties_keep_their_order(
    client: httpx.AsyncClient, ask: Ask, ranking: Ranking
) -> None:
    request = ask("sad mat", "the cat", "on", "the mat")
    for hypothesis, score in zip(request["utterances"][0]["hypotheses"], (-3, -2, -3, -2), strict=True):
        hypothesis["acoustic_score"] = score
    request["options"] = {"lm_scale": 0, "word_bonus": 0, "oov_bonus": 0}
    assert [entry["index"] for entry in ranking(await post(client, request))] == [1, 3, 0, 2]


@pytest.mark.parametrize("name", ["acoustic_scale", "lm_scale", "word_bonus", "oov_bonus", "posterior_scale"])
async def test_an_explicit_zero_is_honoured(client: httpx.AsyncClient, ask: Ask, name: str) -> None:
    answer = (await post(client, ask(*TEXTS, options={name: 0}))).json()
    assert answer["weights"][name] == 0


async def test_options_left_out_are_the_bundles(client: httpx.AsyncClient, ask: Ask, bundle: Bundle) -> None:
    weights = (await post(client, ask("the", options={"lm_scale": 7}))).json()["weights"]
    assert (weights["lm_scale"], weights["word_bonus"]) == (7, bundle.weights.word_bonus)


async def test_log10_and_natural_scores_of_the_same_probabilities_get_the_same_answer(
    client: httpx.AsyncClient, ask: Ask
) -> None:
    natural = ask(*TEXTS, options={"first_pass_scale": 1.5})
    for hypothesis in natural["utterances"][0]["hypotheses"]:
        hypothesis["lm_score"] = hypothesis["acoustic_score"] / 2
    common = copy.deepcopy(natural) | {"log_base": "10"}
    for hypothesis in common["utterances"][0]["hypotheses"]:
        hypothesis["acoustic_score"] /= math.log(10)
        hypothesis["lm_score"] /= math.log(10)
    one, two = (await post(client, natural)).json(), (await post(client, common)).json()
    for left, right in zip(one["results"][0]["ranking"], two["results"][0]["ranking"], strict=True):
        assert left["index"] == right["index"]
        assert left["total"] == pytest.approx(right["total"], rel=1e-12)


async def test_the_contributions_are_the_parts_by_their_weights_and_sum_to_the_total(
    client: httpx.AsyncClient, ask: Ask
) -> None:
    request = ask(*TEXTS, options={"first_pass_scale": 0.5, "acoustic_scale": 2})
    for hypothesis in request["utterances"][0]["hypotheses"]:
        hypothesis["lm_score"] = -7.5
    answer = (await post(client, request)).json()
    weights = answer["weights"]
    for entry in answer["results"][0]["ranking"]:
        parts = entry["contributions"]
        assert parts["acoustic"] == pytest.approx(2 * entry["acoustic_score"])
        assert parts["first_pass"] == pytest.approx(0.5 * -7.5)
        assert parts["lm"] == pytest.approx(weights["lm_scale"] * entry["lm"])
        assert parts["word_bonus"] == pytest.approx(weights["word_bonus"] * entry["words"])
        assert parts["oov_bonus"] == pytest.approx(weights["oov_bonus"] * entry["oov_words"])
        assert math.fsum(parts.values()) == pytest.approx(entry["total"])


async def test_the_word_scores_of_a_hypothesis_sum_to_its_score(
    client: httpx.AsyncClient, ask: Ask, ranking: Ranking
) -> None:
    for entry in ranking(await post(client, ask(*TEXTS, word_scores=True))):
        detail = entry["word_scores"]
        assert detail["words"] == [*entry["scored_text"].split(), "</s>"]
        assert math.fsum(detail["mixture"]) == pytest.approx(entry["lm"], rel=1e-12)
        for name, values in detail["models"].items():
            assert math.fsum(values) == pytest.approx(entry["lm_by_model"][name], rel=1e-12)


async def test_the_mixture_is_linear_word_by_word(client: httpx.AsyncClient, ask: Ask, ranking: Ranking) -> None:
    mixed = {"interpolation": {"ngram": 0.25, "rnn": 0.75}}
    for entry in ranking(await post(client, ask(*TEXTS, word_scores=True, options=mixed))):
        detail = entry["word_scores"]
        for mixture, ngram, rnn in zip(detail["mixture"], *detail["models"].values(), strict=True):
            assert math.exp(mixture) == pytest.approx(0.25 * math.exp(ngram) + 0.75 * math.exp(rnn))


async def test_a_score_read_off_the_ngram_file_by_hand(client: httpx.AsyncClient, ask: Ask, ranking: Ranking) -> None:
    # "the cat": p(the | <s>) and p(cat | the) stand in the file, p(</s> | cat) is backoff(cat) + p(</s>).
    (entry,) = ranking(await post(client, ask("the cat", options={"interpolation": {"ngram": 1}})))
    assert entry["lm"] / math.log(10) == pytest.approx(-0.2 + -0.3 + (-0.3 + -1.0), rel=1e-6)


async def test_the_ranking_is_sorted_by_total_and_keeps_the_input_index(
    client: httpx.AsyncClient, ask: Ask, ranking: Ranking
) -> None:
    entries = ranking(await post(client, ask(*TEXTS)))
    totals = [entry["total"] for entry in entries]
    assert totals == sorted(totals, reverse=True)
    assert all(entry["acoustic_score"] == -10.0 - entry["index"] for entry in entries)


async def test_posteriors_lie_between_0_and_1_and_sum_to_1(
    client: httpx.AsyncClient, ask: Ask, ranking: Ranking
) -> None:
    shares = [entry["posterior"] for entry in ranking(await post(client, ask(*TEXTS)))]
    assert all(0 <= share <= 1 for share in shares)
    assert math.fsum(shares) == pytest.approx(1)


async def test_repeating_a_hypothesis_does_not_raise_the_share_of_its_words(
    client: httpx.AsyncClient, ask: Ask, ranking: Ranking
) -> None:
    once, twice = ask("the cat sat", "the mat"), ask("the cat sat", "the mat", "the cat sat")
    for request in (once, twice):
        for hypothesis in request["utterances"][0]["hypotheses"]:
            hypothesis["acoustic_score"] = -5
    alone = without_ranking_order(ranking(await post(client, once)))
    repeated = without_ranking_order(ranking(await post(client, twice)))
    assert repeated[0]["posterior"] + repeated[2]["posterior"] == pytest.approx(alone[0]["posterior"])


async def test_permuting_a_list_permutes_its_answer_and_changes_nothing_else(
    client: httpx.AsyncClient, ask: Ask, ranking: Ranking
) -> None:
    request = ask(*TEXTS)
    turned = copy.deepcopy(request)
    turned["utterances"][0]["hypotheses"].reverse()
    straight = ranking(await post(client, request))
    back = ranking(await post(client, turned))
    assert [entry["total"] for entry in straight] == pytest.approx([entry["total"] for entry in back])
    assert [entry["index"] for entry in straight] == [len(TEXTS) - 1 - entry["index"] for entry in back]


async def test_one_callers_options_never_change_anothers_answer(client: httpx.AsyncClient, ask: Ask) -> None:
    before = await post(client, ask(*TEXTS))
    await post(client, ask(*TEXTS, options={"lm_scale": 99, "interpolation": {"ngram": 1.0}}))
    assert (await post(client, ask(*TEXTS))).content == before.content


async def test_an_answer_does_not_depend_on_the_other_lists_of_the_request(client: httpx.AsyncClient, ask: Ask) -> None:
    alone = (await post(client, ask(*TEXTS))).json()["results"][0]
    crowd = {"utterances": [ask(*TEXTS[i:], name=f"u{i}")["utterances"][0] for i in range(4)]}
    together = (await post(client, crowd)).json()["results"][0]
    for left, right in zip(alone["ranking"], together["ranking"], strict=True):
        assert left["total"] == pytest.approx(right["total"], rel=1e-6)


@pytest.mark.parametrize("form", [{}, {"compact": True}, {"word_scores": True}])
async def test_the_best_alone_is_the_first_of_the_ranking(
    client: httpx.AsyncClient, ask: Ask, ranking: Ranking, bundle: Bundle, form: dict[str, bool]
) -> None:
    full = await post(client, ask(*TEXTS, **form))
    best = await post(client, ask(*TEXTS, **form, best_only=True))
    assert ranking(best) == ranking(full)[:1]
    assert {**best.json()["results"][0], "ranking": 0} == {**full.json()["results"][0], "ranking": 0}
    assert ranking(await post(client, ask(*TEXTS, **form, best_only=False))) == ranking(full)
    assert best.json() == json.loads(json.dumps(rescore_request(bundle, ask(*TEXTS, **form, best_only=True))))


@pytest.mark.parametrize("large", [False, True])
async def test_an_answer_says_where_its_time_went(client: httpx.AsyncClient, ask: Ask, large: bool) -> None:
    begun = time.perf_counter()
    answer = await post(client, ask(*TEXTS * (300 if large else 1)))
    elapsed_ms = 1e3 * (time.perf_counter() - begun)
    # https://www.w3.org/TR/server-timing/: metrics divided by commas, each a token and its parameters.
    metrics = [metric.split(";") for metric in answer.headers["server-timing"].split(", ")]
    assert [name for name, _ in metrics] == ["parse", "prepare", "queue", "score", "encode", "total"]
    *parts, total = (float(duration.removeprefix("dur=")) for _, duration in metrics)
    assert min(parts) >= 0
    assert 0 < sum(parts) <= total + 0.01
    assert total <= elapsed_ms


async def test_a_compact_answer_has_the_order_totals_and_posteriors_of_the_full_one(
    client: httpx.AsyncClient, ask: Ask, ranking: Ranking
) -> None:
    full = ranking(await post(client, ask(*TEXTS)))
    compact = await post(client, ask(*TEXTS, compact=True, word_scores=True))
    kept = [{name: entry[name] for name in ("index", "total", "posterior")} for entry in full]
    assert ranking(compact) == kept
    assert compact.json()["results"][0]["best_text"] == full[0]["text"]


async def test_carried_state_flows_within_a_session_only(client: httpx.AsyncClient, ask: Ask, bundle: Bundle) -> None:
    request: dict[str, Any] = {"utterances": [], "options": {"state": "carried"}}
    for number, session in enumerate(("one", "two", "one")):
        entry = ask(*TEXTS, name=f"u{number}")["utterances"][0]
        request["utterances"].append(entry | {"session_id": session})
    answer = (await post(client, request)).json()
    first, other, second = answer["results"]
    assert answer["state"] == "carried"
    assert [e["total"] for e in first["ranking"]] == pytest.approx([e["total"] for e in other["ranking"]])
    assert [e["total"] for e in second["ranking"]] != pytest.approx([e["total"] for e in first["ranking"]])
    assert answer == json.loads(json.dumps(rescore_request(bundle, request)))


async def test_an_empty_hypothesis_is_scored_and_ranked(client: httpx.AsyncClient, ask: Ask, ranking: Ranking) -> None:
    # p(</s> | <s>) is backoff(<s>) + p(</s>).
    (entry,) = ranking(await post(client, ask("", options={"interpolation": {"ngram": 1}})))
    assert entry["lm"] / math.log(10) == pytest.approx(-0.5 + -1.0, rel=1e-6)


async def test_the_models_route_names_what_the_bundle_holds(client: httpx.AsyncClient, bundle: Bundle) -> None:
    answer = (await client.get("/v1/models")).json()
    assert answer["bundle"] == bundle.sha256
    assert [model["name"] for model in answer["models"]] == ["ngram", "rnn"]
