import copy
import json
import math
from typing import Any

import httpx
import pytest

from clients.errors import BadAnswerError, BusyError, ProblemError, UsageError
from clients.sdk import Client


def test_utterances_and_settings_become_the_body_of_the_contract(colour: Any, answered: Any, fakes: Any) -> None:
    script = fakes.script(answered)
    utterance = fakes.utterance("u")
    colour.call(script, "rescore", [utterance], options={"lm_scale": 0.0}, word_scores=True, compact=False)
    (request,) = script.requests
    assert (request.method, str(request.url)) == ("POST", "http://test/base/v1/rescore")
    assert json.loads(request.content) == {
        "utterances": [utterance],
        "options": {"lm_scale": 0.0},
        "word_scores": True,
        "compact": False,
    }


def test_settings_that_are_left_out_are_left_to_the_server(colour: Any, answered: Any, fakes: Any) -> None:
    script = fakes.script(answered)
    colour.call(script, "rescore", [fakes.utterance("u")])
    assert json.loads(script.requests[0].content).keys() == {"utterances"}


def test_the_base_of_the_logarithms_is_declared(colour: Any, answered: Any, fakes: Any) -> None:
    script = fakes.script(answered)
    colour.call(script, "rescore", [fakes.utterance("u")], log_base="10")
    assert json.loads(script.requests[0].content)["log_base"] == "10"


def test_the_answer_is_returned_as_it_came(colour: Any, answered: Any, fakes: Any) -> None:
    utterances = [fakes.utterance("b"), fakes.utterance("a")]
    answer = colour.call(fakes.script(answered), "rescore", utterances)
    assert answer == fakes.answer({"utterances": utterances})


def test_one_utterance_gives_one_result(colour: Any, answered: Any, fakes: Any) -> None:
    result = colour.call(fakes.script(answered), "rescore_one", fakes.utterance("u", "a b c", "d"))
    assert (result["id"], result["best_text"]) == ("u", "d")


def test_scoring_twice_is_identical_and_the_callers_objects_are_left_alone(
    colour: Any, answered: Any, fakes: Any
) -> None:
    utterances, options = [fakes.utterance("u", "a b", "c")], {"lm_scale": 1.0, "state": "reset"}
    before = copy.deepcopy((utterances, options))
    first = colour.call(fakes.script(answered), "rescore", utterances, options=options)
    assert colour.call(fakes.script(answered), "rescore", utterances, options=options) == first
    assert (utterances, options) == before


def test_models_are_what_the_service_describes(fakes: Any, colour: Any) -> None:
    script = fakes.script(httpx.Response(200, json={"bundle": "x"}))
    assert colour.call(script, "models") == {"bundle": "x"}
    assert (script.requests[0].method, script.requests[0].url.path) == ("GET", "/base/v1/models")


@pytest.mark.parametrize(
    ("outcome", "ready"),
    [(httpx.Response(200), True), (httpx.Response(503), False), (httpx.ConnectError("refused"), False)],
)
def test_readiness_is_asked_once(fakes: Any, colour: Any, outcome: Any, *, ready: bool) -> None:
    script = fakes.script(outcome)
    assert colour.call(script, "ready") is ready
    assert [request.url.path for request in script.requests] == ["/base/health/ready"]


def test_readiness_of_something_else_is_an_error(fakes: Any, colour: Any) -> None:
    with pytest.raises(ProblemError):
        colour.call(fakes.script(httpx.Response(404)), "ready")


def test_the_api_key_travels_as_a_bearer_token(colour: Any, answered: Any, fakes: Any) -> None:
    script = fakes.script(answered)
    colour.call(script, "rescore", [fakes.utterance("u")], key="secret")
    assert script.requests[0].headers["authorization"] == "Bearer secret"


def test_without_a_key_no_authorisation_is_sent(colour: Any, answered: Any, fakes: Any) -> None:
    script = fakes.script(answered)
    colour.call(script, "rescore", [fakes.utterance("u")])
    assert "authorization" not in script.requests[0].headers


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 500])
def test_a_refusal_is_not_tried_again(colour: Any, fakes: Any, status: int) -> None:
    script = fakes.script(httpx.Response(status))
    with pytest.raises(ProblemError) as caught:
        colour.call(script, "rescore", [fakes.utterance("u")])
    assert (caught.value.problem["status"], len(script.requests)) == (status, 1)
    assert not isinstance(caught.value, BusyError)


def test_a_refusal_carries_its_problem_document(colour: Any, fakes: Any) -> None:
    errors = [{"field": "utterances[0].hypotheses[3].acoustic_score", "utterance": "u", "message": "not finite"}]
    status, document = fakes.problem(422, "one field is wrong", errors=errors)
    script = fakes.script(httpx.Response(status, json=document, headers={"Content-Type": "application/problem+json"}))
    with pytest.raises(ProblemError) as caught:
        colour.call(script, "rescore", [fakes.utterance("u")])
    assert caught.value.problem == document
    assert str(caught.value) == (
        "422 Some Problem: one field is wrong (utterances[0].hypotheses[3].acoustic_score: not finite)"
    )


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"title": 3, "errors": "none", "detail": null}'])
def test_a_broken_problem_document_is_a_problem_all_the_same(colour: Any, fakes: Any, body: bytes) -> None:
    response = httpx.Response(422, content=body, headers={"Content-Type": "application/problem+json"})
    with pytest.raises(ProblemError) as caught:
        colour.call(fakes.script(response), "rescore", [fakes.utterance("u")])
    assert caught.value.problem["title"] == "Unprocessable Entity"


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(200, content=b"<html>"),
        httpx.Response(200, content=b'{"results": [NaN]}'),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={}),
        httpx.Response(200, json={"results": [{"id": "u"}]}),
        httpx.Response(200, json={"results": [{"id": "v", "ranking": [{}]}]}),
        httpx.Response(200, json={"results": []}),
        httpx.Response(301, headers={"Location": "http://elsewhere/"}),
    ],
)
def test_an_answer_of_something_else_is_an_error(colour: Any, fakes: Any, response: httpx.Response) -> None:
    with pytest.raises(BadAnswerError):
        colour.call(fakes.script(response), "rescore", [fakes.utterance("u")])


def test_what_is_no_number_is_not_sent(colour: Any, fakes: Any) -> None:
    script = fakes.script(httpx.Response(200))
    utterance = fakes.utterance("u")
    utterance["hypotheses"][0]["acoustic_score"] = math.nan
    with pytest.raises(UsageError, match="cannot be written as JSON"):
        colour.call(script, "rescore", [utterance])
    assert not script.requests


def test_what_is_no_text_is_not_sent(colour: Any, fakes: Any) -> None:
    with pytest.raises(UsageError, match="cannot be written as JSON"):
        colour.call(fakes.script(httpx.Response(200)), "rescore", [fakes.utterance("u", "\ud800")])


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "", "http://", "/v1"])
def test_what_is_no_url_of_a_service_is_refused_at_once(url: str) -> None:
    with pytest.raises(UsageError):
        Client(url)


@pytest.mark.parametrize("key", ["", "a\nb", "schlüssel"])
def test_what_is_no_key_is_refused_at_once(key: str) -> None:
    with pytest.raises(UsageError, match="API key"):
        Client("http://test", api_key=key)
