"""The Python client's sessions and those of the in-process engine, against the real application."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from clients.errors import (
    CorruptSnapshotError,
    SessionExistsError,
    SessionGoneError,
    UnknownSessionError,
    UnknownUtteranceError,
    UtteranceConflictError,
    VersionConflictError,
)
from clients.sdk import AsyncClient
from models.local import LocalEngine

pytestmark = pytest.mark.anyio

UTTERANCES: list[Any] = [
    {"id": f"a/{number}", "hypotheses": [{"text": text, "acoustic_score": -1.0 * i} for i, text in enumerate(texts)]}
    for number, texts in enumerate([("the cat sad", "the cat sat"), ("on a mat", "on the mat"), ("", "the zebra")])
]


@pytest.fixture
async def sdk(make_app: Callable[..., FastAPI]) -> AsyncIterator[AsyncClient]:
    app = make_app()
    async with (
        app.router.lifespan_context(app),
        AsyncClient("http://service", transport=httpx.ASGITransport(app)) as client,
    ):
        yield client


async def test_a_session_lives_as_long_as_its_block(sdk: AsyncClient) -> None:
    async with sdk.session("talk", rate=0.2) as session:
        for number, utterance in enumerate(UTTERANCES, 1):
            answer = await session.rescore(utterance)
            assert (answer["version"], session.version) == (number, number)
        assert (await session.rescore(UTTERANCES[0]))["repeated"]
        described = await session.confirm("a/1", "on a mat", if_version=3)
        assert (described["version"], described["options"]["rate"]) == (4, 0.2)
        exported = await session.export()
        async with sdk.import_session(exported, "copy") as copy, await session.fork("fork") as fork:
            for other in (copy, fork):
                assert (await other.describe())["perplexity"] == described["perplexity"]
        assert (await session.reset())["utterances"] == 0
    with pytest.raises(SessionGoneError):
        await session.describe()


async def test_what_is_refused_is_an_error_of_its_own_kind(sdk: AsyncClient) -> None:
    with pytest.raises(UnknownSessionError):
        await sdk.attach("nobody").open()
    with pytest.raises(CorruptSnapshotError):
        await sdk.import_session(b"nothing", "copy").open()
    async with sdk.session("talk") as session:
        await session.rescore(UTTERANCES[0])
        with pytest.raises(SessionExistsError):
            await sdk.session("talk").open()
        with pytest.raises(UtteranceConflictError):
            await session.rescore({"id": "a/0", "hypotheses": UTTERANCES[1]["hypotheses"]})
        with pytest.raises(UnknownUtteranceError):
            await session.confirm("a/9", "the mat")
        with pytest.raises(VersionConflictError) as conflict:
            await session.confirm("a/0", "the mat", if_version=7)
        assert conflict.value.version == 1


async def test_a_handle_of_a_session_that_was_deleted_cannot_change_its_successor(sdk: AsyncClient) -> None:
    old, new = sdk.session("talk", keep=True), sdk.session("talk")
    async with old:
        await old.rescore(UTTERANCES[0])
    await sdk.attach("talk").delete()
    async with new:
        await new.rescore(UTTERANCES[0])
        assert (old.version, new.version) == (1, 1)
        with pytest.raises(VersionConflictError):
            await old.confirm("a/0", "the mat", if_version=1)
        assert (await new.confirm("a/0", "the mat", if_version=1))["version"] == 2


async def test_the_engine_in_this_process_ranks_a_session_as_the_service_does(
    sdk: AsyncClient, bundle_folder: Path
) -> None:
    with LocalEngine(str(bundle_folder), device="cpu").sessions({}, {}) as sessions:
        async with sdk.session() as served:
            for utterance in UTTERANCES:
                over_http = await served.rescore(utterance)
                (local,) = sessions.rescore([("talk", utterance)])
                assert over_http["result"] == local
                sessions.accept("talk", local["best_text"], confirmed=False)
