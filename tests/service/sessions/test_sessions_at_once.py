"""Sessions under load: exactly once, in order, apart from one another, and scored together."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from models.bundle import Bundle
from models.nbest import Hypothesis, NBest
from models.rnnlm import ElmanLM
from service.jobs import Job, Place

pytestmark = pytest.mark.anyio

Gate = Any
Talk = Any
Serve = Callable[..., Any]
Reference = Any
LISTED = ("the cat sad", "the cat sat")
OTHERS = ("on the mat", "on a mat")


def at_once(*requests: Any) -> "list[asyncio.Task[httpx.Response]]":
    return [asyncio.ensure_future(request) for request in requests]


class TestExactlyOnce:
    async def test_fifty_clients_that_send_the_same_utterance_get_one_answer_and_it_is_learnt_once(
        self, talk: Talk, reference: Callable[..., Reference]
    ) -> None:
        await talk.make()
        responses = await asyncio.gather(*(talk.say("u1", *LISTED) for _ in range(50)))
        answers = [response.json() for response in responses]
        assert sorted(answer.pop("repeated") for answer in answers) == [False] + [True] * 49
        assert all(answer == answers[0] for answer in answers)
        best = answers[0]["result"]["best_text"]
        assert reference().bits_of(await talk.exported()) == reference().bits((best, False))

    async def test_fifty_clients_with_their_own_utterances_and_retries_are_learnt_in_the_order_of_their_versions(
        self, talk: Talk, reference: Callable[..., Reference]
    ) -> None:
        await talk.make()
        texts = [("the cat sad", "the cat sat"), ("on the mat", "on a mat"), ("zebra", ""), ("mat mat", "mat")]
        twice = [number for number in range(50) for _ in range(2)]
        responses = await asyncio.gather(*(talk.say(f"u{n}", *texts[n % 4]) for n in twice))
        answers = [response.json() for response in responses]
        first = sorted((a for a in answers if not a["repeated"]), key=lambda a: int(a["version"]))
        assert [answer["version"] for answer in first] == list(range(1, 51))
        assert {answer["result"]["id"] for answer in first} == {f"u{n}" for n in range(50)}
        learnt = [(answer["result"]["best_text"], False) for answer in first]
        assert reference().bits_of(await talk.exported()) == reference().bits(*learnt)

    async def test_of_two_different_requests_of_one_utterance_one_is_taken(self, talk: Talk) -> None:
        await talk.make()
        responses = await asyncio.gather(talk.say("u1", *LISTED), talk.say("u1", *OTHERS))
        assert sorted(response.status_code for response in responses) == [200, 409]
        assert (await talk.described())["version"] == 1

    async def test_of_many_who_would_have_the_same_next_version_one_gets_it(self, talk: Talk) -> None:
        await talk.make()
        await talk.said("u1", *LISTED)
        texts = ["mat", "cat", "the mat", "the cat", "sat"]
        responses = await asyncio.gather(*(talk.confirm("u1", text, **{"if-match": '"1"'}) for text in texts))
        assert sorted(response.status_code for response in responses) == [200, 409, 409, 409, 409]
        assert (await talk.described())["version"] == 2


class TestOrder:
    async def test_one_sessions_requests_are_served_in_the_order_they_came(self, gated: Any, gate: Gate) -> None:
        async with gated("one") as (talk,):
            waiting = at_once(talk.say("u0", *LISTED))
            await gate.has_seen(1)
            for number in range(1, 6):
                waiting += at_once(talk.say(f"u{number}", *OTHERS))
                await asyncio.sleep(0)
            waiting += at_once(talk.client.post(f"{talk.path}/reset"))
            waiting += at_once(talk.say("u0", *OTHERS))
            await asyncio.sleep(0.01)
            gate.open.set()
            versions = [response.json()["version"] for response in await asyncio.gather(*waiting)]
        assert versions == [1, 2, 3, 4, 5, 6, 7, 8]

    async def test_a_description_waits_for_the_utterance_before_it(self, gated: Any, gate: Gate) -> None:
        async with gated("one") as (talk,):
            said = at_once(talk.say("u0", *LISTED))
            await gate.has_seen(1)
            described = at_once(talk.client.get(talk.path))
            await asyncio.sleep(0.01)
            assert not described[0].done()
            gate.open.set()
            assert (await described[0]).json()["version"] == 1
            await asyncio.gather(*said)

    async def test_other_sessions_do_not_wait(self, gated: Any, gate: Gate) -> None:
        async with gated("one", "two") as (one, two):
            said = at_once(one.say("u0", *LISTED))
            await gate.has_seen(1)
            assert (await two.described())["version"] == 0
            assert not said[0].done()
            gate.open.set()
            await asyncio.gather(*said)


class TestTogether:
    async def test_lists_of_sessions_of_one_kind_are_scored_in_one_batch(self, gated: Any, gate: Gate) -> None:
        kinds = [{}, {"rate": 0.1}, {"rate": 0.2}, {"weights": "static"}, {"rate": 0.2}]
        async with gated("held", "a", "b", "c", "d", options=kinds) as (held, *others):
            waiting = at_once(held.say("held", *LISTED))
            await gate.has_seen(1)
            for talk in others:
                waiting += at_once(talk.say(talk.id, *LISTED))
            await gate.queued(held.client, 4)
            gate.open.set()
            assert {response.status_code for response in await asyncio.gather(*waiting)} == {200}
        assert sorted(map(sorted, gate.batches[1:])) == [["a"], ["b", "d"], ["c"]]

    async def test_scores_in_a_shared_batch_are_those_of_each_alone(
        self, gated: Any, gate: Gate, serve: Serve, talks: type[Talk]
    ) -> None:
        async with gated("held", "a", "b") as (held, *pair):
            for talk in pair:
                gate.open.set()
                await talk.said("u0", *(LISTED if talk.id == "a" else OTHERS))
            gate.open.clear()
            before = len(gate.batches)
            waiting = at_once(held.say("u1", *LISTED))
            await gate.has_seen(before + 1)
            waiting += at_once(*(talk.say("u1", *LISTED) for talk in pair))
            await gate.queued(held.client, 2)
            gate.open.set()
            together = [response.json() for response in (await asyncio.gather(*waiting))[1:]]
        assert gate.batches[-1] == ["u1", "u1"]
        async with serve() as client:
            for name, answer in zip("ab", together, strict=True):
                talk = talks(client, name)
                await talk.make()
                await talk.said("u0", *(LISTED if name == "a" else OTHERS))
                alone = await talk.said("u1", *LISTED)
                for one, other in zip(answer["result"]["ranking"], alone["result"]["ranking"], strict=True):
                    assert one["text"] == other["text"]
                    assert one["total"] == pytest.approx(other["total"], rel=1e-5)

    async def test_no_model_runs_on_the_event_loop(self, gate: Gate, talk: Talk) -> None:
        await talk.make()
        await talk.said("u1", *LISTED)
        await talk.confirmed("u1", "the mat")
        assert gate.lessons == 2
        assert threading.get_ident() not in gate.threads

    async def test_sessions_served_in_turns_are_as_if_each_were_alone_bit_for_bit(
        self, serve: Serve, talks: type[Talk], bundle: Bundle
    ) -> None:
        network = bundle.rescorer.models["rnn"]
        assert isinstance(network, ElmanLM)
        shared = [matrix.clone() for matrix in (network.weights.U, network.weights.W, network.weights.V)]

        async def run(client: httpx.AsyncClient, *names: str) -> dict[str, Any]:
            group = [talks(client, name) for name in names]
            for talk in group:
                await talk.make()
            said: dict[str, Any] = {name: [] for name in names}
            for number in range(6):
                for talk in group:
                    texts = LISTED if (talk.id == "a") == (number % 2 == 0) else OTHERS
                    said[talk.id].append(await talk.said(f"u{number}", *texts))
            return {talk.id: (said[talk.id], await talk.exported()) for talk in group}

        async with serve() as client:
            interleaved = await run(client, "a", "b")
        async with serve() as client:
            apart = {**await run(client, "a"), **await run(client, "b")}
        assert interleaved == apart
        after = (network.weights.U, network.weights.W, network.weights.V)
        assert all(bool((one == other).all()) for one, other in zip(shared, after, strict=True))


async def test_an_engine_that_stops_answers_whoever_waits(gated: Any, gate: Gate) -> None:
    async with gated("one") as (talk,):
        waiting = at_once(talk.say("u1", *LISTED), talk.say("u2", *LISTED))
        await gate.has_seen(1)
        talk.client._transport.app.state.sessions._access.stop()
        gate.open.set()
        responses = await asyncio.gather(*waiting)
    assert {response.status_code for response in responses} == {503}


def test_a_place_in_a_session_is_part_of_a_jobs_company(bundle: Bundle, reference: Callable[..., Reference]) -> None:
    prepared = bundle.rescorer.prepare(NBest("u", (Hypothesis("the", 0.0),)))
    one, other = reference().model, reference().model
    job = Job((prepared,), bundle.weights, place=Place(one, one.fresh()))
    assert job.company == replace(job, place=Place(one, one.fresh())).company
    assert job.company != replace(job, place=Place(other, other.fresh())).company
    assert job.company != replace(job, place=None).company
