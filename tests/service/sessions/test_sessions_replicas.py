"""Two services that share a store: neither overwrites what the other did, and neither answers from what is past."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

pytestmark = pytest.mark.anyio

Talk = Any
Serve = Callable[..., Any]
Reference = Any
LISTS = [("the cat sad", "the cat sat"), ("on the mat", "on a mat"), ("", "the"), ("zebra", "the zebra")]


async def say_all(talk: Talk, count: int, first: int = 0) -> list[dict[str, Any]]:
    return [await talk.said(f"u{n}", *LISTS[n % len(LISTS)]) for n in range(first, first + count)]


def winners(answers: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    return [(answer["result"]["best_text"], False) for answer in answers]


@pytest.fixture
async def pair(serve: Serve, store: Any, talks: type[Talk]) -> AsyncIterator[tuple[Talk, Talk]]:
    """The same session seen through two services that share a store."""
    async with serve(store=store) as one, serve(store=store) as other:
        pair = talks(one, "talk"), talks(other, "talk")
        await pair[0].make()
        yield pair


async def test_a_stale_replica_goes_on_from_what_the_other_one_did(
    pair: tuple[Talk, Talk], reference: Callable[..., Reference]
) -> None:
    answers = []
    for number in range(6):
        answers += await say_all(pair[number % 2], 1, first=number)
    assert [answer["version"] for answer in answers] == [1, 2, 3, 4, 5, 6]
    for talk in pair:
        assert reference().bits_of(await talk.exported()) == reference().bits(*winners(answers))
    await pair[0].confirmed("u5", "the mat")
    texts = [*winners(answers)[:5], ("the mat", True)]
    assert reference().bits_of(await pair[1].exported()) == reference().bits(*texts)
    await pair[1].reset()
    assert (await pair[0].described())["utterances"] == 0


async def test_an_utterance_that_the_other_replica_accepted_is_answered_as_it_was(pair: tuple[Talk, Talk]) -> None:
    (first,) = await say_all(pair[0], 1)
    (again,) = await say_all(pair[1], 1)
    assert again == {**first, "repeated": True}


async def test_replicas_that_accept_at_once_take_each_utterance_once(
    pair: tuple[Talk, Talk], reference: Callable[..., Reference]
) -> None:
    texts = [LISTS[n % 4] for n in range(12)]
    responses = await asyncio.gather(
        *(talk.say(f"u{n}", *texts[n]) for n in range(12) for talk in pair), return_exceptions=False
    )
    # Who was outrun again and again may be told so; repeating the request then gets the answer.
    assert {response.status_code for response in responses} <= {200, 409}
    answers = [await pair[0].said(f"u{n}", *texts[n]) for n in range(12)]
    ordered = sorted(answers, key=lambda answer: int(answer["version"]))
    assert [answer["version"] for answer in ordered] == list(range(1, 13))
    for talk in pair:
        assert reference().bits_of(await talk.exported()) == reference().bits(*winners(ordered))


async def test_a_replica_that_is_outrun_while_it_scores_begins_anew(pair: tuple[Talk, Talk], store: Any) -> None:
    one, other = pair
    await say_all(one, 1)
    append = store.append
    raced = False

    def outrun(*arguments: Any) -> Any:
        nonlocal raced
        if not raced:
            raced = True
            append("talk", 1, replace(store.entries("talk")[0], utterance_id="x"), 0.0)
        return append(*arguments)

    store.append = outrun
    (answer,) = await say_all(one, 1, first=1)
    assert (answer["version"], raced) == (3, True)
    assert await one.exported() == await other.exported()


@pytest.mark.parametrize("when", ["entries", "confirm"])
async def test_a_correction_that_is_outrun_begins_anew(pair: tuple[Talk, Talk], store: Any, when: str) -> None:
    one, _ = pair
    await say_all(one, 2)
    call, reset = getattr(store, when), store.reset
    raced = False

    def outrun(*arguments: Any) -> Any:
        nonlocal raced
        if not raced:
            raced = True
            reset("talk", 2, 0.0)
        return call(*arguments)

    setattr(store, when, outrun)
    response = await one.confirm("u1", "the mat")
    assert raced
    assert (response.status_code, response.json()["type"]) == (404, "/problems/unknown-utterance")
    assert (await one.described())["version"] == 3


async def test_a_session_made_anew_under_its_old_name_is_not_taken_for_the_old_one(
    pair: tuple[Talk, Talk], reference: Callable[..., Reference]
) -> None:
    await say_all(pair[0], 1)
    assert (await pair[1].client.delete(pair[1].path)).status_code == 204
    await pair[1].make()
    (answer,) = await say_all(pair[1], 1, first=1)
    # Both the old session and the new one are at version 1.
    assert reference().bits_of(await pair[0].exported()) == reference().bits(*winners([answer]))
