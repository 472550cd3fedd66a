"""Where sessions are while nobody looks: out of memory and back, expired, or of another bundle."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.bundle import Bundle
from service.settings import Limits
from service.sqlite_store import SqliteStore

pytestmark = pytest.mark.anyio

Talk = Any
Serve = Callable[..., Any]
Reference = Any
LISTS = [("the cat sad", "the cat sat"), ("on the mat", "on a mat"), ("", "the"), ("zebra", "the zebra")]


async def say_all(talk: Talk, count: int, first: int = 0) -> list[dict[str, Any]]:
    return [await talk.said(f"u{n}", *LISTS[n % len(LISTS)]) for n in range(first, first + count)]


def winners(answers: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    return [(answer["result"]["best_text"], False) for answer in answers]


class TestOutOfMemory:
    @pytest.mark.parametrize("every", [1, 3, 1000])
    async def test_a_session_that_left_memory_comes_back_unchanged(
        self, serve: Serve, talks: type[Talk], store: Any, every: int
    ) -> None:
        async def run(limits: Limits, **more: Any) -> tuple[Any, bytes]:
            async with serve(limits=limits, **more) as client:
                talk = talks(client, "talk")
                await talk.make(options={"tau": 2})
                answers = await say_all(talk, 7)
                await talk.confirmed("u6", "the mat")
                await talk.confirmed("u3", "cat")
                return [*answers, *(await say_all(talk, 2, first=7))], await talk.exported()

        staying = await run(Limits(session_snapshot_every=1000))
        assert await run(Limits(session_memory_bytes=1, session_snapshot_every=every), store=store) == staying
        assert "save_snapshot" in store.calls

    async def test_a_state_leaves_memory_after_its_snapshot_is_in_the_store(
        self, serve: Serve, talks: type[Talk], store: Any
    ) -> None:
        async with serve(limits=Limits(session_memory_bytes=1), store=store) as client:
            talk = talks(client, "talk")
            await talk.make()
            await say_all(talk, 3)
            snapshot = store.snapshot("talk")
            # All but the last utterance, which may still be corrected without learning the others anew.
            assert (snapshot.entries, snapshot.version) == (2, 3)

    async def test_the_least_recently_used_leave_first(self, serve: Serve, talks: type[Talk], store: Any) -> None:
        async with serve(limits=Limits(session_snapshot_every=1000), store=store) as client:
            made = [talks(client, name) for name in ("a", "b", "c")]
            for talk in made:
                await talk.make()
                await say_all(talk, 2)
            memory = client._transport.app.state.sessions._states._memory
            await made[0].described()
            memory._limit = memory.bytes - 1
            await talks(client, "d").make()
            assert [store.snapshot(talk.id) is not None for talk in made] == [False, True, False]
            await say_all(made[1], 1, first=2)
            assert [store.snapshot(talk.id) is not None for talk in made] == [False, True, True]

    async def test_memory_stays_within_its_bytes(self, serve: Serve, talks: type[Talk]) -> None:
        limits = Limits(session_memory_bytes=30_000)
        async with serve(limits=limits) as client:
            made = [talks(client, f"t{number}") for number in range(12)]
            memory = client._transport.app.state.sessions._states._memory
            for round_ in range(3):
                for talk in made:
                    if not round_:
                        await talk.make()
                    await say_all(talk, 1, first=round_)
                    assert memory.bytes <= limits.session_memory_bytes
            held = memory._held.values()
            assert memory.bytes == sum(one.bytes for one in held)
            assert 0 < len(held) < 12

    async def test_a_snapshot_is_stored_every_so_many_utterances(
        self, serve: Serve, talks: type[Talk], store: Any
    ) -> None:
        async with serve(limits=Limits(session_snapshot_every=3), store=store) as client:
            talk = talks(client, "talk")
            await talk.make()
            taken_in = []
            for number in range(9):
                await say_all(talk, 1, first=number)
                await asyncio.gather(*client._transport.app.state.sessions._states._saving)
                snapshot = store.snapshot("talk")
                taken_in.append(snapshot.entries if snapshot else 0)
        assert taken_in == [0, 0, 0, 3, 3, 3, 6, 6, 6]

    async def test_a_correction_of_the_last_utterance_does_not_cost_the_snapshot(
        self, serve: Serve, talks: type[Talk], store: Any
    ) -> None:
        async with serve(limits=Limits(session_memory_bytes=1), store=store) as client:
            talk = talks(client, "talk")
            await talk.make()
            for number in range(4):
                await say_all(talk, 1, first=number)
                await talk.confirmed(f"u{number}", "the mat")
                assert store.snapshot("talk").entries == number if number else True

    @pytest.mark.parametrize("damage", [b"", b"no state", b"\0" * 1000])
    async def test_a_snapshot_that_cannot_be_read_is_made_good_from_the_log(
        self, serve: Serve, talks: type[Talk], store: Any, reference: Callable[..., Reference], damage: bytes
    ) -> None:
        async with serve(limits=Limits(session_memory_bytes=1), store=store) as client:
            talk = talks(client, "talk")
            await talk.make()
            answers = await say_all(talk, 3)
            store.save_snapshot("talk", replace(store.snapshot("talk"), state=damage))
            assert reference().bits_of(await talk.exported()) == reference().bits(*winners(answers))

    async def test_a_service_that_starts_anew_goes_on_where_the_last_one_stopped(
        self, serve: Serve, talks: type[Talk], tmp_path: Path
    ) -> None:
        files = [SqliteStore(tmp_path / "sessions.sqlite3") for _ in range(2)]
        exported, described = [], []
        for number, store in enumerate(files):
            async with serve(store=store) as client:
                talk = talks(client, "talk")
                if not number:
                    await talk.make()
                    answers = await say_all(talk, 5)
                exported.append(await talk.exported())
                described.append({**await talk.described(), "used": 0})
                assert (await talk.said("u4", *LISTS[0]))["version"] == answers[4]["version"]
            store.close()
        assert exported[0] == exported[1]
        assert described[0] == described[1]


class TestExpiry:
    LIMITS = Limits(session_idle_s=100)

    async def test_a_session_that_nobody_uses_expires(
        self, serve: Serve, talks: type[Talk], store: Any, clock: Any
    ) -> None:
        async with serve(limits=self.LIMITS, store=store, clock=clock) as client:
            talk = talks(client, "talk")
            await talk.make()
            await say_all(talk, 1)
            clock.now += 101
            for response in (
                await client.get(talk.path),
                await talk.say("u1", *LISTS[1]),
                await talk.confirm("u0", "the"),
                await client.delete(talk.path),
                await client.get(f"{talk.path}/export"),
            ):
                assert (response.status_code, response.json()["type"]) == (410, "/problems/session-expired")
            assert store.count() == 0
            await talk.make()
            assert (await say_all(talk, 1))[0]["version"] == 1

    @pytest.mark.parametrize("use", ["say", "again", "confirm", "describe", "export", "fork"])
    async def test_every_use_puts_it_off(
        self, serve: Serve, talks: type[Talk], store: Any, clock: Any, use: str
    ) -> None:
        async with serve(limits=self.LIMITS, store=store, clock=clock) as client:
            talk = talks(client, "talk")
            await talk.make()
            await say_all(talk, 1)
            for number in range(4):
                clock.now += 60
                uses = {
                    "say": lambda n=number: say_all(talk, 1, first=n + 1),
                    "again": lambda: say_all(talk, 1),
                    "confirm": lambda: talk.confirmed("u0", "the mat"),
                    "describe": talk.described,
                    "export": talk.exported,
                    "fork": lambda n=number: talk.fork(f"f{n}"),
                }
                await uses[use]()
                assert (await talk.described())["used"] == clock.now
            assert (await talk.described())["utterances"] >= 1

    async def test_sessions_expire_by_themselves(self, serve: Serve, talks: type[Talk], store: Any, clock: Any) -> None:
        async with serve(limits=Limits(session_idle_s=0.2), store=store, clock=clock) as client:
            for name in ("a", "b"):
                await talks(client, name).make()
            clock.now += 1
            await talks(client, "c").make()
            async with asyncio.timeout(20):
                while store.count() > 1:  # noqa: ASYNC110 - nobody tells when it happens
                    await asyncio.sleep(0.01)
            assert (await client.get("/v1/sessions/a")).json()["type"] == "/problems/session-expired"

    async def test_expired_sessions_make_room(self, serve: Serve, talks: type[Talk], clock: Any) -> None:
        limits = Limits(session_idle_s=100, max_sessions=1)
        async with serve(limits=limits, clock=clock) as client:
            await talks(client, "a").make()
            assert (await client.post("/v1/sessions")).status_code == 429
            clock.now += 101
            assert (await client.post("/v1/sessions")).status_code == 201


async def test_a_session_of_another_bundle_is_409_until_it_is_deleted(
    serve: Serve, bundle: Bundle, store: Any, talks: type[Talk]
) -> None:
    async with serve(store=store) as client:
        talk = talks(client, "talk")
        await talk.make()
        await say_all(talk, 1)
        exported = await talk.exported()
    async with serve(replace(bundle, sha256="0" * 64), store=store) as client:
        foreign = talks(client, "talk")
        responses: list[httpx.Response] = [
            await client.get(foreign.path),
            await foreign.say("u1", *LISTS[1]),
            await foreign.say("u0", *LISTS[0]),
            await foreign.confirm("u0", "the mat"),
            await client.post(f"{foreign.path}/reset"),
            await client.post(f"{foreign.path}/fork"),
            await client.get(f"{foreign.path}/export"),
            await client.post("/v1/sessions/import", content=exported),
        ]
        for response in responses:
            assert (response.status_code, response.json()["type"]) == (409, "/problems/foreign-bundle")
    async with serve(store=store) as client:
        assert await talks(client, "talk").exported() == exported
    async with serve(replace(bundle, sha256="0" * 64), store=store) as client:
        assert (await client.delete(talk.path)).status_code == 204
