"""OpenAPI and its page: true, complete, and served without the network."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from service import openapi, openapi_parts
from service.schemas import Problem, RescoreAnswer

pytestmark = pytest.mark.anyio

COMMITTED = Path(__file__).parents[2] / "docs" / "openapi.json"


def test_the_committed_document_is_the_one_that_is_served() -> None:
    hint = "run: python -m service.openapi docs/openapi.json"
    assert COMMITTED.read_text(encoding="utf-8") == openapi.render(), hint


async def test_the_served_document_is_the_same_for_a_real_bundle(client: httpx.AsyncClient) -> None:
    assert (await client.get("/openapi.json")).json() == json.loads(openapi.render())


async def test_the_request_example_is_answered(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/rescore", json=openapi_parts.REQUEST_EXAMPLE)
    assert response.status_code == 200


async def test_the_short_answer_is_as_its_example_shows(client: httpx.AsyncClient) -> None:
    request = {**openapi_parts.REQUEST_EXAMPLE, **openapi_parts.BEST_ONLY}
    (result,) = (await client.post("/v1/rescore", json=request)).json()["results"]
    (shown,) = openapi_parts.BEST_ANSWER_EXAMPLE["results"]
    assert (result.keys(), result["ranking"][0].keys()) == (shown.keys(), shown["ranking"][0].keys())
    assert len(result["ranking"]) == 1


@pytest.mark.parametrize("example", [openapi_parts.ANSWER_EXAMPLE, openapi_parts.BEST_ANSWER_EXAMPLE])
def test_the_answer_example_is_an_answer(example: Any) -> None:
    TypeAdapter(RescoreAnswer).validate_json(json.dumps(example))


def test_the_problem_example_is_a_problem() -> None:
    TypeAdapter(Problem).validate_json(json.dumps(openapi_parts.PROBLEM_EXAMPLE))


def test_the_answer_example_adds_up() -> None:
    (result,) = openapi_parts.ANSWER_EXAMPLE["results"]
    for entry in result["ranking"]:
        assert sum(entry["contributions"].values()) == pytest.approx(entry["total"])
    assert sum(entry["posterior"] for entry in result["ranking"]) == pytest.approx(1)


def test_every_reference_leads_somewhere() -> None:
    text = openapi.render()
    document = json.loads(text)
    for path in set(re.findall(r'"\$ref": "#/([^"]+)"', text)):
        place: Any = document
        for step in path.split("/"):
            place = place[step]


def test_every_answer_of_every_operation_is_described() -> None:
    document = json.loads(openapi.render())
    for operations in document["paths"].values():
        for operation in operations.values():
            assert {"operationId", "summary", "responses"} <= operation.keys()
            assert all("content" in response for response in operation["responses"].values())


async def test_the_page_loads_nothing_from_elsewhere_and_its_policy_forbids_it(
    client: httpx.AsyncClient,
) -> None:
    page = await client.get("/docs")
    sources = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(sources) == 4
    for source in sources:
        assert not source.startswith(("http", "/"))
        assert (await client.get(f"/{source}")).status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "http" not in policy


async def test_the_page_has_no_inline_script(client: httpx.AsyncClient) -> None:
    page = (await client.get("/docs")).text
    assert re.findall(r"<script[^>]*>([^<]+)</script>| on\w+=", page) == []


async def test_documentation_can_be_turned_off(serve: Callable[..., Any]) -> None:
    async with serve(with_docs=False) as client:
        for path in ("/docs", "/openapi.json", "/docs/static/docs.js"):
            assert (await client.get(path)).status_code == 404


def test_what_is_shipped_comes_with_its_licence() -> None:
    shipped = Path(openapi.__file__).parent / "static" / "swagger-ui"
    assert "Apache License" in (shipped / "LICENSE").read_text(encoding="utf-8")
    assert "SmartBear" in (shipped / "NOTICE").read_text(encoding="utf-8")


async def test_the_metrics_named_in_the_documents_are_served(client: httpx.AsyncClient) -> None:
    document = (COMMITTED.parent / "service.md").read_text(encoding="utf-8")
    served = (await client.get("/metrics")).text
    named = set(re.findall(r"`(nbest_\w+)`", document))
    assert len(named) > 10
    assert {name for name in named if not re.search(rf"^# HELP {name}\b", served, re.MULTILINE)} == set()
