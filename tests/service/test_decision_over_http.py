"""Decision rules and word confidences, argued from answers alone."""

import copy
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from clients.sdk import AsyncClient
from models.bundle import Bundle
from models.confidence import ConfidenceMap
from models.decision import Decision
from models.local import rescore_request
from models.nbest import Hypothesis, NBest
from service import openapi_parts
from service.jobs import Job
from service.schemas import RescoreAnswer

pytestmark = pytest.mark.anyio

Ask = Callable[..., dict[str, Any]]
Ranking = Callable[[httpx.Response], list[Mapping[str, Any]]]
# The acoustic score is all that counts, and a posterior is e to it.
ACOUSTIC_ALONE = {"lm_scale": 0, "word_bonus": 0, "oov_bonus": 0, "posterior_scale": 1}
# Each of the three is one word from "the cat sat", which nobody proposed.
SPREAD = {"the mat sat": 0.4, "the cat sad": 0.35, "on cat sat": 0.25}


def list_with(shares: Mapping[str, float], **more: Any) -> dict[str, Any]:
    """A request with one utterance whose hypotheses have these posteriors."""
    options = {**ACOUSTIC_ALONE, **more.pop("options", {})}
    hypotheses = [{"text": text, "acoustic_score": math.log(share)} for text, share in shares.items()]
    return {"utterances": [{"id": "u1", "hypotheses": hypotheses}], "options": options, **more}


async def post(client: httpx.AsyncClient, request: dict[str, Any]) -> dict[str, Any]:
    response = await client.post("/v1/rescore", json=request)
    assert response.status_code == 200, response.text
    TypeAdapter(RescoreAnswer).validate_json(response.content)
    answer: dict[str, Any] = response.json()
    return answer


async def test_an_answer_says_how_was_decided_and_by_total_when_nothing_is_asked(client: httpx.AsyncClient) -> None:
    assert (await post(client, list_with(SPREAD)))["decision"] == "total"
    for rule in ("total", "mbr", "consensus"):
        assert (await post(client, list_with(SPREAD, options={"decision": rule})))["decision"] == rule


async def test_mbr_ranks_by_expected_errors(client: httpx.AsyncClient) -> None:
    shares = {"the cat sat": 0.4, "a cat sad": 0.3, "the cat sad": 0.3}
    (result,) = (await post(client, list_with(shares, options={"decision": "mbr"})))["results"]
    # By hand: 2 * 0.3 + 0.3, 2 * 0.4 + 0.3 and 0.4 + 0.3; the totals are the ones they always were.
    assert [(entry["index"], entry["text"]) for entry in result["ranking"]] == [
        (2, "the cat sad"),
        (0, "the cat sat"),
        (1, "a cat sad"),
    ]
    assert [entry["expected_errors"] for entry in result["ranking"]] == pytest.approx([0.7, 0.9, 1.1])
    assert [entry["total"] for entry in result["ranking"]] == pytest.approx([math.log(p) for p in (0.3, 0.4, 0.3)])
    assert result["best_text"] == "the cat sad"


async def test_a_consensus_stands_beside_the_ranking_by_total(client: httpx.AsyncClient) -> None:
    plain = await post(client, list_with(SPREAD))
    answer = await post(client, list_with(SPREAD, options={"decision": "consensus"}))
    (result,) = answer["results"]
    consensus = result.pop("consensus")
    assert result == plain["results"][0]
    assert (consensus["text"], consensus["words"]) == ("the cat sat", ["the", "cat", "sat"])
    assert consensus["confidences"] == consensus["posteriors"] == pytest.approx([0.75, 0.6, 0.65])
    assert consensus["expected_errors"] == pytest.approx(1.0)
    assert consensus["calibrated"] is False
    assert [slot["deletion"] for slot in consensus["slots"]] == [0, 0, 0]
    assert [list(slot["words"]) for slot in consensus["slots"]] == [["the", "on"], ["cat", "mat"], ["sat", "sad"]]


async def test_word_confidences_are_those_of_the_first_ranked_hypothesis(client: httpx.AsyncClient) -> None:
    for rule in ("total", "mbr", "consensus"):
        request = list_with(SPREAD, options={"decision": rule}, word_confidences=True)
        (result,) = (await post(client, request))["results"]
        first, *others = result["ranking"]
        assert first["word_confidences"]["words"] == first["scored_text"].split()
        assert first["word_confidences"]["posteriors"] == pytest.approx([0.75, 0.4, 0.65])
        assert all("word_confidences" not in entry for entry in others)


async def test_what_is_not_asked_for_is_not_answered(client: httpx.AsyncClient) -> None:
    for more in ({}, {"word_confidences": False}, {"options": {"decision": "total"}}):
        (result,) = (await post(client, list_with(SPREAD, **more)))["results"]
        assert "consensus" not in result
        assert all({"expected_errors", "word_confidences"}.isdisjoint(entry) for entry in result["ranking"])


@pytest.mark.parametrize("form", [{}, {"compact": True}, {"best_only": True}, {"compact": True, "best_only": True}])
@pytest.mark.parametrize("rule", ["total", "mbr", "consensus"])
async def test_the_answer_is_that_of_the_engine_in_process(
    client: httpx.AsyncClient, bundle: Bundle, rule: str, form: dict[str, bool]
) -> None:
    request = list_with(SPREAD, options={"decision": rule}, word_confidences=True, **form)
    answer = await post(client, request)
    assert answer == json.loads(json.dumps(rescore_request(bundle, copy.deepcopy(request))))
    (result,) = answer["results"]
    assert len(result["ranking"]) == (1 if form.get("best_only") else 3)
    assert "word_confidences" in result["ranking"][0]
    assert ("consensus" in result) == (rule == "consensus")


async def test_lists_of_one_request_are_decided_one_by_one(client: httpx.AsyncClient) -> None:
    both = list_with(SPREAD, options={"decision": "mbr"})
    (other,) = list_with({"sat": 0.6, "": 0.4})["utterances"]
    both["utterances"].append({**other, "id": "u2"})
    first, second = (await post(client, both))["results"]
    assert first == (await post(client, list_with(SPREAD, options={"decision": "mbr"})))["results"][0]
    assert [entry["expected_errors"] for entry in second["ranking"]] == pytest.approx([0.4, 0.6])


async def test_the_state_that_is_carried_is_that_of_the_winner_by_the_rule(client: httpx.AsyncClient) -> None:
    shares = {"the cat sat": 0.4, "the mat sad": 0.3, "the cat sad": 0.3}
    (following,) = list_with({"on the mat": 0.7, "sat": 0.3})["utterances"]

    async def second(first: dict[str, Any], rule: str) -> list[float]:
        request = copy.deepcopy(first)
        request["options"] |= {"state": "carried", "decision": rule}
        request["utterances"].append({**following, "id": "u2"})
        ranking = (await post(client, request))["results"][1]["ranking"]
        return [entry["lm"] for entry in sorted(ranking, key=lambda entry: entry["index"])]

    after_mbr = await second(list_with(shares), "mbr")
    assert after_mbr == pytest.approx(await second(list_with({"the cat sad": 1.0}), "total"), abs=1e-5)
    assert await second(list_with(shares), "total") == pytest.approx(
        await second(list_with({"the cat sat": 1.0}), "total"), abs=1e-5
    )
    assert after_mbr != pytest.approx(await second(list_with(shares), "total"), abs=1e-3)


async def test_confidences_are_calibrated_under_the_bundles_own_weights_alone(
    serve: Callable[..., Any], bundle: Bundle, ask: Ask
) -> None:
    # The mapped confidence of any posterior p is the sigmoid of 1 + 2 logit p.
    calibrated = replace(bundle, manifest=replace(bundle.manifest, confidence=ConfidenceMap(1.0, 2.0)))
    request = ask("the cat sat", "the mat", "sad", word_confidences=True, options={"decision": "consensus"})
    async with serve(calibrated) as client:
        (result,) = (await post(client, request))["results"]
        for found in (result["consensus"], result["ranking"][0]["word_confidences"]):
            assert found["calibrated"] is True
            for posterior, confidence in zip(found["posteriors"], found["confidences"], strict=True):
                odds = min(max(posterior, 0.003), 0.997) / (1 - min(max(posterior, 0.003), 0.997))
                assert confidence == pytest.approx(math.e * odds**2 / (1 + math.e * odds**2))
        request["options"]["posterior_scale"] = 0.2
        (result,) = (await post(client, request))["results"]
        for found in (result["consensus"], result["ranking"][0]["word_confidences"]):
            assert found["calibrated"] is False
            assert found["confidences"] == found["posteriors"]
        assert (await client.get("/v1/models")).json()["confidence"] == {"intercept": 1.0, "slope": 2.0}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"options": {"decision": "rover"}}, "options.decision"),
        ({"options": {"decision": "MBR"}}, "options.decision"),
        ({"options": {"decision": None}}, "options.decision"),
        ({"options": {"decision": 1}}, "options.decision"),
        ({"decision": "mbr"}, "decision"),
        ({"word_confidences": 1}, "word_confidences"),
        ({"word_confidences": "true"}, "word_confidences"),
        ({"options": {"word_confidences": True}}, "options.word_confidences"),
    ],
)
async def test_what_is_no_decision_is_refused_by_field(
    client: httpx.AsyncClient, wrong: dict[str, Any], field: str
) -> None:
    response = await client.post("/v1/rescore", json=list_with(SPREAD, **wrong))
    assert response.status_code == 422
    assert [error["field"] for error in response.json()["errors"]] == [field]


async def test_a_session_ranks_by_total_and_refuses_other_rules_by_field(client: httpx.AsyncClient) -> None:
    refused = await client.post("/v1/sessions", json={"rescoring": {"decision": "mbr"}})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "rescoring.decision")
    session = (await client.post("/v1/sessions", json={})).json()["id"]
    (utterance,) = list_with(SPREAD)["utterances"]
    for field, value in (("options", {"decision": "mbr"}), ("word_confidences", True)):
        refused = await client.post(f"/v1/sessions/{session}/rescore", json={"utterance": utterance, field: value})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, field)


async def test_a_rule_is_chosen_through_the_client(make_app: Callable[..., Any]) -> None:
    app = make_app()
    request: Any = list_with(SPREAD)
    async with (
        app.router.lifespan_context(app),
        AsyncClient("http://service", transport=httpx.ASGITransport(app)) as client,
    ):
        options: Any = {**request["options"], "decision": "consensus"}
        answer = await client.rescore(request["utterances"], options=options, word_confidences=True)
    (result,) = answer["results"]
    assert answer["decision"] == "consensus"
    assert result["consensus"]["text"] == "the cat sat"
    assert result["ranking"][0]["word_confidences"]["words"] == ["the", "mat", "sat"]


async def test_the_example_of_a_consensus_is_as_it_is_answered(client: httpx.AsyncClient) -> None:
    request = {**openapi_parts.REQUEST_EXAMPLE, **openapi_parts.CONSENSUS}
    answer, shown = await post(client, request), openapi_parts.CONSENSUS_ANSWER_EXAMPLE
    TypeAdapter(RescoreAnswer).validate_json(json.dumps(shown))
    assert answer.keys() == shown.keys()
    assert answer["results"][0].keys() == shown["results"][0].keys()
    assert answer["results"][0]["consensus"].keys() == shown["results"][0]["consensus"].keys()


async def test_what_costs_more_to_decide_is_timed_apart_and_calibration_is_not(bundle: Bundle) -> None:
    nbest = NBest("u", (Hypothesis("the cat", 0.0),))

    def company(decision: Decision) -> tuple[Any, ...]:
        return Job((bundle.rescorer.prepare(nbest, decision),), bundle.weights).company

    plain = company(Decision())
    kinds = [Decision("mbr"), Decision("consensus"), Decision(word_confidences=True)]
    assert len({plain, *map(company, kinds)}) == 4
    assert company(Decision(calibration=ConfidenceMap(1.0, 2.0))) == plain
