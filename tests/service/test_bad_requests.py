"""Whatever is sent, the answer is a problem that names the field, never a 500 and never NaN."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.problems import MAX_ERRORS
from service.settings import Limits

pytestmark = pytest.mark.anyio

Ask = Callable[..., dict[str, Any]]
SCORE = "utterances[0].hypotheses[0].acoustic_score"
JSON = {"content-type": "application/json"}


def strict_json(content: bytes) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(content, parse_constant=refuse)


def problem(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = strict_json(response.content)
    assert body.keys() >= {"type", "title", "status", "detail"}
    assert body["status"] == status
    assert body["type"].startswith("/problems/")
    return body


def body_with(score: str = "-1", text: str = '"the cat"', name: str = '"u1"', more: str = "") -> bytes:
    hypothesis = f'{{"text":{text},"acoustic_score":{score}}}'
    return f'{{"utterances":[{{"id":{name},"hypotheses":[{hypothesis}]}}]{more}}}'.encode()


async def send(client: httpx.AsyncClient, body: bytes) -> httpx.Response:
    return await client.post("/v1/rescore", content=body, headers=JSON)


@pytest.mark.parametrize(
    "score", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1" + "0" * 400, "true", '"1.0"', "null", "[]"]
)
async def test_what_is_no_finite_number_is_no_score(client: httpx.AsyncClient, score: str) -> None:
    found = problem(await send(client, body_with(score)), 422)
    assert [(error["field"], error["utterance"]) for error in found["errors"]] == [(SCORE, "u1")]


@pytest.mark.parametrize("option", ["lm_scale", "word_bonus", "posterior_scale"])
@pytest.mark.parametrize("value", ["NaN", "1e400", "false", '"2"'])
async def test_what_is_no_finite_number_is_no_weight(client: httpx.AsyncClient, option: str, value: str) -> None:
    body = body_with(more=f',"options":{{"{option}":{value}}}')
    assert problem(await send(client, body), 422)["errors"][0]["field"] == f"options.{option}"


async def test_a_bad_score_is_named_by_utterance_and_hypothesis(client: httpx.AsyncClient, ask: Ask) -> None:
    request = {"utterances": [ask("a", "b", "c", name=name)["utterances"][0] for name in ("x", "y")]}
    body = json.dumps(request).encode().replace(b"-12.0", b"NaN", 2).replace(b"NaN", b"-12.0", 1)
    (error,) = problem(await send(client, body), 422)["errors"]
    assert (error["field"], error["utterance"]) == ("utterances[1].hypotheses[2].acoustic_score", "y")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe{}",
        b"[" * 100_000,
        body_with("01"),
        body_with("1" * 5000),
        body_with(text='"\\ud800"'),
        body_with(text='"\\udc00\\ud800"'),
        body_with(text='"a\0b"'),
        body_with(text='"\xff"').decode().encode("latin-1"),
    ],
)
async def test_what_is_no_json_is_a_bad_request(client: httpx.AsyncClient, body: bytes) -> None:
    problem(await send(client, body), 400)


@pytest.mark.parametrize("body", [b"[]", b"null", b"NaN", b"1", b'"text"', b"{}", b'{"utterances":null}'])
async def test_json_that_is_no_request_is_refused(client: httpx.AsyncClient, body: bytes) -> None:
    assert problem(await send(client, body), 422)["errors"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (body_with(text='"a\\u0000b"'), "utterances[0].hypotheses[0].text"),
        (body_with(name='"a\\u0000b"'), "utterances[0].id"),
        (body_with(more=',"options":{"interpolation":{"a\\u0000b":1}}'), "options.interpolation.a\\x00b"),
        (body_with(text='"the <s> cat"'), "utterances[0].hypotheses[0].text"),
        (body_with(text='"the cat </s>"'), "utterances[0].hypotheses[0].text"),
        (b'{"utterances":[]}', "utterances"),
        (b'{"utterances":[{"id":"u1","hypotheses":[]}]}', "utterances[0].hypotheses"),
        (b'{"utterances":[{"id":"u1","hypotheses":[{"text":"a"}]}]}', SCORE),
        (b'{"utterances":[{"hypotheses":[{"text":"a","acoustic_score":1}]}]}', "utterances[0].id"),
        (body_with(name="7"), "utterances[0].id"),
        (body_with(name='"' + "x" * 257 + '"'), "utterances[0].id"),
        (body_with(more=',"log_base":"2"'), "log_base"),
        (body_with(more=',"word_scores":1'), "word_scores"),
        (body_with(more=',"compact":"true"'), "compact"),
        (body_with(more=',"options":{"state":"dynamic"}'), "options.state"),
        (body_with(more=',"options":{"interpolation":{"nosuch":1}}'), "options.interpolation"),
        (body_with(more=',"options":{"interpolation":{"../../bundle":1}}'), "options.interpolation"),
        (body_with(more=',"options":{"interpolation":{"rnn":0.5}}'), "options.interpolation"),
        (body_with(more=',"options":{"interpolation":{"rnn":2,"ngram":-1}}'), "options.interpolation"),
        (body_with(more=',"options":{"interpolation":{}}'), "options.interpolation"),
    ],
)
async def test_the_field_at_fault_is_named(client: httpx.AsyncClient, body: bytes, field: str) -> None:
    assert problem(await send(client, body), 422)["errors"][0]["field"] == field


@pytest.mark.parametrize(
    ("place", "field"),
    [
        (lambda r: r, "duration_s"),
        (lambda r: r["options"], "options.duration_s"),
        (lambda r: r["utterances"][0], "utterances[0].duration_s"),
        (lambda r: r["utterances"][0]["hypotheses"][1], "utterances[0].hypotheses[1].duration_s"),
    ],
)
async def test_a_field_that_is_not_documented_is_refused(
    client: httpx.AsyncClient, ask: Ask, place: Callable[[Any], dict[str, Any]], field: str
) -> None:
    request = ask("the cat", "the mat", options={})
    place(request)["duration_s"] = 1.5
    assert problem(await client.post("/v1/rescore", json=request), 422)["errors"][0]["field"] == field


async def test_an_id_given_twice_is_named(client: httpx.AsyncClient, ask: Ask) -> None:
    (utterance,) = ask("the cat")["utterances"]
    found = problem(await client.post("/v1/rescore", json={"utterances": [utterance, utterance]}), 422)
    assert found["errors"][0]["field"] == "utterances[1].id"


async def test_lm_scores_are_in_all_hypotheses_or_in_none(client: httpx.AsyncClient, ask: Ask) -> None:
    request = ask("the cat", "the mat", "the")
    for index in (0, 2):
        request["utterances"][0]["hypotheses"][index]["lm_score"] = -1
    found = problem(await client.post("/v1/rescore", json=request), 422)
    assert found["errors"][0]["field"] == "utterances[0].hypotheses[1].lm_score"


async def test_a_score_that_overflows_when_converted_is_named(client: httpx.AsyncClient) -> None:
    found = problem(await send(client, body_with("1.7e308", more=',"log_base":"10"')), 422)
    assert found["errors"][0]["field"] == SCORE


async def test_a_total_that_overflows_is_refused_not_sent(client: httpx.AsyncClient) -> None:
    found = problem(await send(client, body_with("1.7e308", more=',"options":{"acoustic_scale":1e10}')), 422)
    assert found["errors"][0]["utterance"] == "u1"


async def test_of_a_key_named_twice_the_last_counts(client: httpx.AsyncClient) -> None:
    answer = (await send(client, body_with('-5,"acoustic_score":-7'))).json()
    assert answer["results"][0]["ranking"][0]["acoustic_score"] == -7


async def test_one_bad_list_refuses_the_request_as_a_whole(client: httpx.AsyncClient, ask: Ask) -> None:
    request = {"utterances": [ask(text, name=text)["utterances"][0] for text in ("good", "<s>")]}
    assert problem(await client.post("/v1/rescore", json=request), 422)["errors"][0]["utterance"] == "<s>"


async def test_too_many_utterances_are_refused(serve: Callable[..., Any], ask: Ask) -> None:
    request = {"utterances": [ask("the", name=str(i))["utterances"][0] for i in range(4)]}
    async with serve(limits=Limits(max_utterances=3)) as client:
        assert "4 utterances" in problem(await client.post("/v1/rescore", json=request), 413)["detail"]


async def test_a_list_of_5000_hypotheses_is_refused_and_named(client: httpx.AsyncClient, ask: Ask) -> None:
    found = problem(await client.post("/v1/rescore", json=ask(*["the cat"] * 5000)), 413)
    assert found["errors"][0] == {
        "field": "utterances[0].hypotheses",
        "utterance": "u1",
        "message": found["detail"],
    }


async def test_a_hypothesis_too_long_to_score_is_refused_and_named(client: httpx.AsyncClient, ask: Ask) -> None:
    found = problem(await client.post("/v1/rescore", json=ask("the cat", "cat " * 1001)), 413)
    assert found["errors"][0]["field"] == "utterances[0].hypotheses[1].text"


async def test_a_list_of_more_tokens_than_a_step_can_hold_is_refused(serve: Callable[..., Any], ask: Ask) -> None:
    # Two hypotheses of three words and </s> each are eight tokens.
    async with serve(limits=Limits(max_list_tokens=7)) as client:
        request = ask("the cat sat", "the mat sat")
        assert "8 words" in problem(await client.post("/v1/rescore", json=request), 413)["detail"]


async def test_a_request_larger_than_the_whole_queue_is_refused_for_good(serve: Callable[..., Any], ask: Ask) -> None:
    async with serve(limits=Limits(max_queue_tokens=10)) as client:
        assert (await client.get("/health/ready")).status_code == 200
        response = await client.post("/v1/rescore", json=ask("the cat sat", "the mat sat", "sat"))
        assert response.status_code == 200
        response = await client.post("/v1/rescore", json=ask("the cat sat", "the mat sat", "sat on"))
        assert "retry-after" not in response.headers
        problem(response, 413)


async def test_errors_are_capped_and_what_was_sent_is_not_repeated(client: httpx.AsyncClient) -> None:
    wrong = ",".join(f'{{"id":"u{i}","hypotheses":[{{"text":0,"SECRET{i}":"{"x" * 200}"}}]}}' for i in range(900))
    response = await send(client, f'{{"utterances":[{wrong}]}}'.encode())
    assert len(problem(response, 422)["errors"]) == MAX_ERRORS
    assert len(response.content) < 10_000
    assert b"xxx" not in response.content


@pytest.mark.parametrize("count", [200_000])
@pytest.mark.parametrize("place", ['"utterances":[{}]', '"utterances":[{{"id":"u","hypotheses":[{}]}}]'])
async def test_a_body_that_is_wrong_everywhere_gets_a_short_answer(
    client: httpx.AsyncClient, place: str, count: int
) -> None:
    body = f"{{{place.format(','.join(['0'] * count))}}}".encode()
    assert len((await send(client, body)).content) < 1_000


async def test_thousands_of_unknown_fields_get_a_short_answer(client: httpx.AsyncClient) -> None:
    many = "".join(f',"field{i}":{i}' for i in range(20_000))
    response = await send(client, body_with(more=many))
    assert len(problem(response, 422)["errors"]) == MAX_ERRORS


async def test_a_long_field_name_is_cut_short(client: httpx.AsyncClient) -> None:
    response = await send(client, body_with(more=f',"{"k" * 100_000}":1'))
    assert len(problem(response, 422)["errors"][0]["field"]) < 100


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_a_body_that_is_not_declared_as_json_is_refused(client: httpx.AsyncClient, media_type: str) -> None:
    response = await client.post("/v1/rescore", content=body_with(), headers={"content-type": media_type})
    problem(response, 415)


async def test_a_packed_body_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/rescore", content=body_with(), headers={**JSON, "content-encoding": "gzip"})
    problem(response, 415)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/v1/rescore/", 404),
        ("GET", "/docs/static/../../settings.py", 404),
        ("GET", "/docs/static/%2e%2e/settings.py", 404),
        ("GET", "/v1/rescore", 405),
        ("DELETE", "/v1/models", 405),
    ],
)
async def test_what_is_not_routed_is_a_problem_too(
    client: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    found = problem(await client.request(method, path), status)
    assert path not in found["detail"]


def test_no_message_holds_a_path_or_an_address(make_app: Callable[..., FastAPI]) -> None:
    leaky = re.compile(r"0x[0-9a-f]{6,}|/(home|tmp|usr|var|work)/|\.py\b")

    async def ask_all() -> list[str]:
        app = make_app()
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client,
        ):
            bodies = [b"", body_with("NaN"), body_with(text='"<s>"'), b'{"utterances":[{"id":"u"}]}']
            return [(await send(client, body)).text for body in bodies]

    assert [text for text in asyncio.run(ask_all()) if leaky.search(text)] == []


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["utterances", "id", "hypotheses", "text", "acoustic_score", "options"])
            | st.text(max_size=4),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)
PATHS: list[tuple[str | int, ...]] = [
    ("utterances",),
    ("utterances", 0),
    ("utterances", 0, "id"),
    ("utterances", 0, "hypotheses"),
    ("utterances", 0, "hypotheses", 0),
    ("utterances", 0, "hypotheses", 0, "text"),
    ("utterances", 0, "hypotheses", 0, "acoustic_score"),
    ("options",),
    ("options", "lm_scale"),
    ("options", "interpolation"),
    ("log_base",),
    ("word_scores",),
]


@pytest.fixture
def post_bytes(make_app: Callable[..., FastAPI]) -> Any:
    """A function that posts a body and returns the response, for tests that are no coroutines."""
    app = make_app(log_requests=False)
    with asyncio.Runner() as runner:
        lifespan = app.router.lifespan_context(app)
        runner.run(lifespan.__aenter__())
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")
        yield lambda body: runner.run(send(client, body))
        runner.run(client.aclose())
        runner.run(lifespan.__aexit__(None, None, None))


PROPERTY = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@PROPERTY
@given(body=st.binary(max_size=200))
def test_random_bytes_are_a_bad_request(post_bytes: Any, body: bytes) -> None:
    response = post_bytes(body)
    problem(response, response.status_code)
    assert 400 <= response.status_code < 500


@PROPERTY
@given(value=ANY_JSON)
def test_random_json_is_refused_as_a_problem(post_bytes: Any, value: Any) -> None:
    response = post_bytes(json.dumps(value).encode())
    problem(response, response.status_code)
    assert 400 <= response.status_code < 500


@PROPERTY
@given(path=st.sampled_from(PATHS), value=ANY_JSON)
def test_a_request_with_one_field_replaced_is_answered_or_refused_never_failed(
    post_bytes: Any, path: tuple[Any, ...], value: Any
) -> None:
    request: Any = {
        "utterances": [{"id": "u", "hypotheses": [{"text": "the cat", "acoustic_score": -1.0}]}],
        "options": {},
    }
    place = request
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    response = post_bytes(json.dumps(request).encode())
    assert response.status_code in {200, 400, 413, 422}
    strict_json(response.content)
