"""Exported sessions as files: whole, or refused."""

import asyncio
import json
import struct
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from safetensors.numpy import load

from service import session_transfer
from service.settings import Limits

pytestmark = pytest.mark.anyio

Talk = Any
Serve = Callable[..., Any]
LISTED = ("the cat sad", "the cat sat")


@pytest.fixture
async def exported(talk: Talk) -> bytes:
    await talk.make()
    for number in range(3):
        await talk.said(f"u{number}", *LISTED)
    await talk.confirmed("u1", "the mat")
    file: bytes = await talk.exported()
    return file


async def put(client: httpx.AsyncClient, file: bytes) -> httpx.Response:
    return await client.post("/v1/sessions/import", content=file, headers={"content-type": "application/octet-stream"})


async def refused(client: httpx.AsyncClient, file: bytes) -> bool:
    response = await put(client, file)
    return (response.status_code, response.json()["type"]) == (422, "/problems/corrupt-snapshot")


def header(file: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack_from("<Q", file)
    return json.loads(file[8 : 8 + length]), file[8 + length :]


def rewritten(file: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """A file of which what it says of the session was changed, and nothing else."""
    head, data = header(file)
    outer = json.loads(head["__metadata__"]["session"])
    inner = json.loads(outer["metadata"]["session"])
    change(inner)
    outer["metadata"]["session"] = json.dumps(inner)
    head["__metadata__"]["session"] = json.dumps(outer)
    packed = json.dumps(head).encode()
    return struct.pack("<Q", len(packed)) + packed + data


async def test_any_program_that_reads_safetensors_reads_the_state(exported: bytes) -> None:
    assert {"rnn/G", "rnn/S", "rnn/W", "rnn/U"} <= load(exported).keys()


@pytest.mark.parametrize("file", [b"", b"{}", b"\0" * 8, b"\xff" * 100, struct.pack("<Q", 2) + b"{}"])
async def test_what_is_no_such_file_is_refused(client: httpx.AsyncClient, file: bytes) -> None:
    assert await refused(client, file)


async def test_a_file_that_was_cut_short_is_refused(client: httpx.AsyncClient, exported: bytes) -> None:
    for length in range(0, len(exported), 97):
        assert await refused(client, exported[:length])


async def test_a_file_with_a_changed_byte_is_refused(client: httpx.AsyncClient, exported: bytes) -> None:
    for place in range(3, len(exported), 61):
        changed = bytearray(exported)
        changed[place] ^= 0x11
        response = await put(client, bytes(changed))
        # A change in the bundle's name makes it another bundle's file.
        kinds = {(422, "/problems/corrupt-snapshot"), (409, "/problems/foreign-bundle")}
        assert (response.status_code, response.json()["type"]) in kinds, place


def put_in(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        put_in("format", value=2),
        put_in("version", value=-1),
        put_in("version", value=2),
        put_in("version", value=10**30),
        put_in("version", value=True),
        put_in("base", value=4),
        put_in("log", value=None),
        put_in("log", 0, "id", value="u2"),
        put_in("log", 0, "id", value="a\0"),
        put_in("log", 0, "request", value="x"),
        put_in("log", 0, "words", value=["the"]),
        put_in("log", 0, "words", value=["the"] * 1001),
        put_in("log", 0, "words", value="the"),
        put_in("log", 0, "answer", value="?"),
        put_in("log", 0, "more", value=1),
        put_in("settled", "options", "tau", value=10**9),
        put_in("settled", "options", "rate", value=-1.0),
        put_in("settled", "options", "more", value=1),
        put_in("settled", "rescoring", "interpolation", value={"ngram": 1.0}),
        put_in("settled", "rescoring", "interpolation", value={"lstm": 1.0}),
        put_in("settled", "rescoring", "lm_scale", value=3.0),
    ],
)
async def test_a_file_that_says_something_else_is_refused(
    client: httpx.AsyncClient, exported: bytes, change: Callable[[dict[str, Any]], None]
) -> None:
    assert await refused(client, rewritten(exported, change))


async def test_an_answer_in_a_file_that_never_was_one_is_refused_when_it_is_asked_for(
    client: httpx.AsyncClient, talks: type[Talk], exported: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = rewritten(exported, put_in("log", 0, "answer", value="AAAA"))
    # Whoever forges an answer may also forge the seal.
    monkeypatch.setattr(session_transfer, "_seal", lambda *_: header_seal(forged))
    assert (await client.post("/v1/sessions/import?id=forged", content=forged)).status_code == 201
    response = await talks(client, "forged").say("u0", *LISTED)
    assert (response.status_code, response.json()["type"]) == (422, "/problems/corrupt-snapshot")


def header_seal(file: bytes) -> str:
    head, _ = header(file)
    seal: str = json.loads(head["__metadata__"]["session"])["metadata"]["seal"]
    return seal


async def test_an_import_has_a_limit_of_its_own(serve: Serve, exported: bytes) -> None:
    small = Limits(max_body_bytes=1000, max_import_bytes=len(exported))
    async with serve(limits=small) as client:
        assert (await put(client, exported)).status_code == 201
        response = await put(client, exported + b" ")
        assert (response.status_code, response.json()["type"]) == (413, "/problems/body-too-large")


async def test_a_log_that_is_longer_than_logs_may_be_is_refused(serve: Serve, exported: bytes) -> None:
    async with serve(limits=Limits(session_log_bytes=100)) as client:
        response = await put(client, exported)
    assert (response.status_code, response.json()["type"]) == (409, "/problems/session-full")


@pytest.mark.parametrize("name", ["", ".", "a/b", "ä", "a" * 129])
async def test_a_name_that_is_none_is_refused(client: httpx.AsyncClient, exported: bytes, name: str) -> None:
    response = await client.post("/v1/sessions/import", params={"id": name}, content=exported)
    assert (response.status_code, response.json()["type"]) == (422, "/problems/invalid-request")
    assert response.json()["errors"][0]["field"] == "id"


async def test_a_file_imported_twice_at_once_under_one_name_is_taken_once(
    client: httpx.AsyncClient, exported: bytes
) -> None:
    both = await asyncio.gather(*(client.post("/v1/sessions/import?id=x", content=exported) for _ in range(2)))
    assert sorted(response.status_code for response in both) == [201, 409]
