"""What stands before the routes: limits on bodies, the key, callers who leave, the log, and faults nobody foresaw."""

import asyncio
import io
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import TypeAdapter, ValidationError

from models.bundle import Bundle
from models.scored_lists import PreparedList
from service.middleware import CLIENT_LEFT_STATUS
from service.schemas import Problem
from service.settings import Limits

pytestmark = pytest.mark.anyio

Ask = Callable[..., dict[str, Any]]
KEY = "correct horse battery"
ROUTES = ["/v1/models", "/metrics", "/docs", "/openapi.json", "/docs/static/docs.js", "/nothing"]
PATIENCE_S = 20


def is_problem(response: httpx.Response, status: int, name: str) -> bool:
    TypeAdapter(Problem).validate_json(response.content)
    return (response.status_code, response.json()["type"]) == (status, f"/problems/{name}")


async def in_chunks(body: bytes, size: int, taken: list[int] | None = None) -> AsyncIterator[bytes]:
    for begin in range(0, len(body), size):
        if taken is not None:
            taken.append(begin)
        yield body[begin : begin + size]


async def test_a_body_over_the_limit_is_refused_by_its_announced_length(serve: Callable[..., Any]) -> None:
    async with serve(limits=Limits(max_body_bytes=1000)) as client:
        assert is_problem(await client.post("/v1/rescore", content=b" " * 1001), 413, "body-too-large")


async def test_a_body_over_the_limit_is_refused_without_an_announced_length(
    serve: Callable[..., Any],
) -> None:
    taken: list[int] = []
    async with serve(limits=Limits(max_body_bytes=1000)) as client:
        response = await client.post("/v1/rescore", content=in_chunks(b" " * 100_000, 100, taken))
    assert is_problem(response, 413, "body-too-large")
    assert response.headers["connection"] == "close"
    assert len(taken) < 25


async def test_a_body_at_the_limit_is_read(serve: Callable[..., Any], ask: Ask) -> None:
    body = json.dumps(ask("the cat")).encode()
    async with serve(limits=Limits(max_body_bytes=len(body))) as client:
        for content in (body, in_chunks(body, 7)):
            assert (await client.post("/v1/rescore", content=content)).status_code == 200


async def test_thousands_of_tiny_chunks_make_the_same_request(client: httpx.AsyncClient, ask: Ask) -> None:
    body = json.dumps(ask(*["the cat sat"] * 40)).encode()
    whole = await client.post("/v1/rescore", content=body)
    assert (await client.post("/v1/rescore", content=in_chunks(body, 1))).content == whole.content


async def test_a_body_that_does_not_end_in_time_is_given_up(serve: Callable[..., Any]) -> None:
    async def dribble() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.01)

    async with serve(limits=Limits(receive_timeout_s=0.1)) as client:
        response = await client.post("/v1/rescore", content=dribble())
    assert is_problem(response, 408, "slow-request")
    assert response.headers["connection"] == "close"


async def test_bodies_held_at_once_are_bounded(serve: Callable[..., Any], ask: Ask) -> None:
    body = json.dumps(ask("the cat")).encode()
    arrived = asyncio.Event()
    ends = asyncio.Event()

    async def halting() -> AsyncIterator[bytes]:
        yield body[:40]
        arrived.set()
        yield body[40:50]
        await ends.wait()
        yield body[50:]

    async with serve(limits=Limits(max_inflight_bytes=len(body) + 30)) as client:
        first = asyncio.create_task(client.post("/v1/rescore", content=halting()))
        await arrived.wait()
        refused = await client.post("/v1/rescore", content=body)
        assert is_problem(refused, 429, "queue-full")
        assert "retry-after" in refused.headers
        ends.set()
        assert (await first).status_code == 200
        assert (await client.post("/v1/rescore", content=body)).status_code == 200


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": f"Bearer {KEY[:-1]}"},
        {"authorization": "Bearer "},
        {"authorization": KEY},
        {"authorization": f"Basic {KEY}"},
        {"x-api-key": KEY},
    ],
)
async def test_every_route_but_health_needs_the_key(
    serve: Callable[..., Any], path: str, headers: dict[str, str]
) -> None:
    async with serve(api_key=KEY) as client:
        response = await client.get(path, headers=headers)
    assert is_problem(response, 401, "unauthorised")
    assert response.headers["www-authenticate"] == "Bearer"
    assert KEY[:5] not in response.text


async def test_the_key_opens_every_route(serve: Callable[..., Any], ask: Ask) -> None:
    async with serve(api_key=KEY) as client:
        client.headers["authorization"] = f"Bearer {KEY}"
        assert [(await client.get(path)).status_code for path in ROUTES] == [200, 200, 200, 200, 200, 404]
        assert (await client.post("/v1/rescore", json=ask("the"))).status_code == 200


async def test_health_needs_no_key(serve: Callable[..., Any]) -> None:
    async with serve(api_key=KEY) as client:
        assert (await client.get("/health/live")).status_code == 200
        assert (await client.get("/health/ready")).status_code == 200


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("/v1/models", "service/health/live"),
        ("/v1/models", "service?/health/live"),
        ("/v1/models?x=/health/live", "service"),
        ("/v1/models#/health/live", "service"),
        ("/health/live/../../v1/models", "service"),
        ("/health/live/", "service"),
        ("//health/live", "service"),
        ("/health/ready/x", "service"),
    ],
)
async def test_no_header_and_no_spelling_of_a_path_gets_round_the_key(
    make_app: Callable[..., FastAPI], path: str, host: str
) -> None:
    raw, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": raw,
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", host.encode()), (b"x-forwarded-host", b"/health/live")],
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await make_app(api_key=KEY)(scope, receive, send)
    assert sent[0]["status"] == 401


async def test_two_authorization_headers_are_refused(serve: Callable[..., Any]) -> None:
    async with serve(api_key=KEY) as client:
        pair = [("authorization", f"Bearer {KEY}"), ("authorization", "Bearer other")]
        assert (await client.get("/v1/models", headers=pair)).status_code == 401


async def test_a_caller_who_leaves_is_noticed_and_not_answered(
    make_app: Callable[..., FastAPI], watched: Callable[..., Bundle], ask: Ask, log_lines: io.StringIO
) -> None:
    scored: list[str] = []
    entered, opened = threading.Event(), threading.Event()

    def before(lists: Sequence[PreparedList]) -> None:
        scored.extend(prepared.nbest.utterance_id for prepared in lists)
        if "first" in scored:
            entered.set()
            assert opened.wait(PATIENCE_S)

    app = make_app(watched(before))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client,
    ):
        await client.get("/health/ready")
        first = asyncio.create_task(client.post("/v1/rescore", json=ask("the", name="first")))
        await asyncio.to_thread(entered.wait, PATIENCE_S)
        messages = [{"type": "http.request", "body": json.dumps(ask("the", name="gone")).encode()}]
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0)
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = httpx_scope("/v1/rescore", len(messages[0]["body"]))
        await app(scope, receive, send)
        opened.set()
        assert (await first).status_code == 200
    assert sent == []
    assert "gone" not in scored
    assert f'"status":{CLIENT_LEFT_STATUS}' in log_lines.getvalue()


def httpx_scope(path: str, length: int) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"service"), (b"content-length", str(length).encode())],
    }


async def test_a_fault_nobody_foresaw_is_a_problem_and_the_log_has_its_trace(
    make_app: Callable[..., FastAPI], log_lines: io.StringIO
) -> None:
    app = make_app()

    async def faulty() -> None:
        raise ZeroDivisionError("secret")

    app.add_api_route("/faulty", faulty)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        response = await client.get("/faulty")
    assert is_problem(response, 500, "internal")
    assert "secret" not in response.text
    assert "ZeroDivisionError: secret" in log_lines.getvalue()


async def test_a_request_id_is_returned_as_it_came(client: httpx.AsyncClient) -> None:
    response = await client.get("/health/live", headers={"x-request-id": "trace-1.A_b"})
    assert response.headers["x-request-id"] == "trace-1.A_b"


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, 'x"y', "é"])
async def test_a_request_id_that_could_harm_a_log_is_replaced(client: httpx.AsyncClient, given: str) -> None:
    response = await client.get("/health/live", headers={b"x-request-id": given.encode("latin-1")})
    assert response.headers["x-request-id"] != given
    assert response.headers["x-request-id"].isalnum()


async def test_each_request_is_a_line_of_json_without_its_texts(
    client: httpx.AsyncClient, ask: Ask, log_lines: io.StringIO
) -> None:
    await client.post("/v1/rescore", json=ask("the cat", "the mat", name="private-id"))
    (line,) = [json.loads(text) for text in log_lines.getvalue().splitlines()]
    assert (line["event"], line["route"], line["status"]) == ("request", "/v1/rescore", 200)
    assert (line["utterances"], line["hypotheses"], line["tokens"]) == (1, 2, 6)
    assert not {"the", "cat", "private-id"} & set(log_lines.getvalue().split('"'))


async def test_the_log_of_requests_can_be_turned_off(serve: Callable[..., Any], log_lines: io.StringIO) -> None:
    async with serve(log_requests=False) as client:
        await client.get("/health/live")
    assert log_lines.getvalue() == ""


async def test_metrics_count_requests_stages_and_steps(client: httpx.AsyncClient, ask: Ask) -> None:
    await client.get("/health/ready")
    await client.post("/v1/rescore", json=ask("the cat", "the mat"))
    await client.post("/v1/rescore", content=b"")
    text = (await client.get("/metrics")).text
    assert 'nbest_requests_total{method="POST",route="/v1/rescore",status="200"} 1.0' in text
    assert 'nbest_requests_total{method="POST",route="/v1/rescore",status="400"} 1.0' in text
    for stage, count in {"receive": 2, "parse": 2, "prepare": 1, "queue": 2, "score": 2, "encode": 1}.items():
        assert f'nbest_stage_seconds_count{{stage="{stage}"}} {count}.0' in text
    # The readiness sentence of five words and </s>, then two hypotheses of two words and </s>.
    assert "nbest_batch_tokens_sum 12.0" in text


async def test_no_client_can_make_a_new_time_series(client: httpx.AsyncClient) -> None:
    for number in range(3):
        await client.request(f"VERB{number}", f"/nothing/{number}")
    text = (await client.get("/metrics")).text
    assert 'nbest_requests_total{method="other",route="unmatched",status="404"} 3.0' in text


async def test_pages_of_the_documentation_are_one_time_series(client: httpx.AsyncClient) -> None:
    for path in ("/docs", "/docs/static/docs.js", "/docs/static/nothing"):
        await client.get(path)
    text = (await client.get("/metrics")).text
    assert 'nbest_requests_total{method="GET",route="documentation",status="200"} 2.0' in text


async def test_no_answer_is_to_be_cached_or_guessed_at(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/models")
    assert (response.headers["cache-control"], response.headers["x-content-type-options"]) == (
        "no-store",
        "nosniff",
    )


async def test_while_draining_requests_are_served_but_readiness_ends(
    make_app: Callable[..., FastAPI], ask: Ask
) -> None:
    app = make_app()
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client,
    ):
        app.state.routes.draining = True
        assert is_problem(await client.get("/health/ready"), 503, "not-ready")
        answer = await client.post("/v1/rescore", json=ask("the"))
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")


def test_limits_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Limits().max_body_bytes = 1
