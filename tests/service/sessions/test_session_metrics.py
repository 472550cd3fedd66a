"""What the service tells of its sessions in passing: metrics, and where an answer's time went."""

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from service.settings import Limits

pytestmark = pytest.mark.anyio

LISTED = ("the cat sat", "the cat sad", "the mat")
CONFIRMED = {"options": {"learn_from": "confirmed"}}


async def metrics(client: httpx.AsyncClient) -> dict[str, float]:
    """The values of metrics about sessions, by name and labels."""
    lines = (await client.get("/metrics")).text.splitlines()
    found = (re.fullmatch(r"(nbest_session\S*) (\S+)", line) for line in lines)
    return {match[1]: float(match[2]) for match in found if match}


async def test_sessions_lessons_and_commits_are_counted(client: httpx.AsyncClient, talks: Callable[..., Any]) -> None:
    one, two = talks(client, "one"), talks(client, "two")
    await one.make()
    await two.make(**CONFIRMED)
    for name in ("u1", "u2"):
        await one.said(name, *LISTED)
    await two.said("u1", *LISTED)
    # Repeated, so nothing is accepted.
    await two.said("u1", *LISTED)
    found = await metrics(client)
    assert (found["nbest_sessions"], found["nbest_sessions_in_memory"]) == (2, 2)
    assert found["nbest_session_memory_bytes"] >= sum([(await talk.described())["bytes"] for talk in (one, two)])
    lessons = [found[f'nbest_session_lessons_total{{outcome="{name}"}}'] for name in ("learnt", "none", "undone")]
    assert lessons == [2, 1, 0]
    assert found["nbest_session_commit_seconds_count"] == 3
    await one.client.delete(one.path)
    assert (await metrics(client))["nbest_sessions"] == 1


async def test_states_that_leave_memory_and_come_back_are_counted(
    serve: Callable[..., Any], talks: Callable[..., Any]
) -> None:
    # Room for one session at a time.
    async with serve(limits=Limits(session_memory_bytes=1)) as client:
        one = talks(client, "one")
        await one.make()
        await one.said("u1", *LISTED)
        await one.said("u2", *LISTED)
        found = await metrics(client)
    assert found["nbest_sessions_in_memory"] == found["nbest_session_memory_bytes"] == 0
    assert (found["nbest_session_evictions_total"], found["nbest_session_restores_total"]) == (5, 2)


async def test_an_answer_says_what_its_acceptance_took(client: httpx.AsyncClient, talks: Callable[..., Any]) -> None:
    talk = talks(client, "talk")
    await talk.make()
    header = (await talk.say("u1", *LISTED)).headers["server-timing"]
    assert re.findall(r"(\w+);dur=[0-9.]+", header) == ["parse", "prepare", "queue", "score", "commit", "total"]
    again = (await talk.say("u1", *LISTED)).headers["server-timing"]
    assert re.findall(r"(\w+);dur=[0-9.]+", again) == ["parse", "prepare", "total"]


async def test_the_best_alone_is_kept_and_repeated(client: httpx.AsyncClient, talks: Callable[..., Any]) -> None:
    full, best = talks(client, "full"), talks(client, "best")
    await full.make()
    await best.make()
    whole = await full.said("u1", *LISTED, best_only=False)
    alone = await best.said("u1", *LISTED, best_only=True)
    assert alone["result"]["ranking"] == whole["result"]["ranking"][:1]
    assert (await best.said("u1", *LISTED, best_only=True))["result"] == alone["result"]
    # Unsaid is false: the same request.
    assert (await full.said("u1", *LISTED))["repeated"]
    assert (await best.say("u1", *LISTED)).status_code == 409
