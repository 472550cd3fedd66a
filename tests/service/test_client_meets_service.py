"""The Python client and the in-process engine, driven against the real application."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from clients.errors import ProblemError
from clients.sdk import AsyncClient
from models.local import LocalEngine

UTTERANCES: list[Any] = [
    {
        "id": "utt-1",
        "reference": "the cat sat",
        "hypotheses": [
            {"text": "the cat sad", "acoustic_score": -10.0, "lm_score": -4.0},
            {"text": "the cat sat", "acoustic_score": -10.5, "lm_score": -5.0},
            {"text": "", "acoustic_score": -30.0, "lm_score": -1.0},
        ],
    },
    {"id": "utt-2", "hypotheses": [{"text": "the zebra", "acoustic_score": -3.0}]},
]


@pytest.fixture
def app(make_app: Callable[..., FastAPI]) -> FastAPI:
    return make_app()


async def through_http(app: FastAPI, **settings: Any) -> Any:
    async with (
        app.router.lifespan_context(app),
        AsyncClient("http://service", transport=httpx.ASGITransport(app)) as client,
    ):
        return await client.rescore(UTTERANCES, **settings)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"word_scores": True},
        {"compact": True},
        {"log_base": "10"},
        {"options": {"lm_scale": 0, "state": "carried"}},
        {"options": {"interpolation": {"rnn": 1.0}}},
    ],
)
async def test_http_and_the_in_process_engine_answer_alike(
    app: FastAPI, bundle_folder: Path, settings: dict[str, Any]
) -> None:
    over_http = await through_http(app, **settings)
    in_process = LocalEngine(str(bundle_folder), device="cpu").rescore({"utterances": UTTERANCES, **settings})
    assert_alike(over_http, in_process)


def assert_alike(one: Any, other: Any) -> None:
    """Equal, numbers but for the rounding of float32: lists may meet other lists in a batch."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_alike(value, other[key])
    elif isinstance(one, list):
        for value, counterpart in zip(one, other, strict=True):
            assert_alike(value, counterpart)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-4)
    else:
        assert one == other


@pytest.mark.anyio
async def test_the_client_hears_what_the_service_refuses(app: FastAPI) -> None:
    with pytest.raises(ProblemError, match="whisper"):
        await through_http(app, options={"interpolation": {"whisper": 1.0}})


@pytest.mark.anyio
async def test_the_client_reads_what_the_service_holds(app: FastAPI) -> None:
    async with (
        app.router.lifespan_context(app),
        AsyncClient("http://service", transport=httpx.ASGITransport(app)) as client,
    ):
        models = await client.models()
    assert [model["name"] for model in models["models"]] == ["ngram", "rnn"]
