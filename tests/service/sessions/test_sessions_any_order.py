"""Whatever is asked of sessions, in whatever order, they are what a plain list of accepted texts says they are."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.bundle import Bundle
from models.nbest import Hypothesis, NBest
from models.session import SessionState
from service.app import create_app
from service.settings import Limits

Talk = Any
Reference = Any

SESSIONS = ("a", "b", "c")
LISTS = (("the cat sad", "the cat sat"), ("on the mat", "on a mat", "the mat"), ("", "the"), ("zebra", "sat on"))
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"state": "reset"},
    {"learn_from": "confirmed"},
    {"weights": "static"},
    {"max_loss_rise": 0.0},
)

names = st.sampled_from(SESSIONS)
utterances = st.sampled_from(("u0", "u1", "u2"))
steps = st.one_of(
    st.tuples(st.just("make"), names, st.integers(0, len(KINDS) - 1)),
    st.tuples(st.just("say"), names, utterances, st.integers(0, len(LISTS) - 1)),
    st.tuples(st.just("say"), names, utterances, st.integers(0, len(LISTS) - 1)),
    st.tuples(st.just("confirm"), names, utterances, st.sampled_from(("the mat", "", "a zebra sat"))),
    st.tuples(st.just("reset"), names),
    st.tuples(st.just("fork"), names, names),
    st.tuples(st.just("transfer"), names, names),
    st.tuples(st.just("delete"), names),
)


@dataclass
class Plain:
    """A session as a list. log: per utterance its id, which list it was, the winner, and what was confirmed."""

    kind: int
    version: int = 0
    log: dict[str, tuple[int, str, str | None]] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)

    def texts(self) -> list[tuple[str, bool]]:
        return [(w if c is None else c, c is not None) for _, w, c in self.log.values()]

    def copy(self) -> "Plain":
        return Plain(self.kind, self.version, dict(self.log), dict(self.answers))


class World:
    """The sessions as they must be, and how each request must be answered."""

    def __init__(self, client: httpx.AsyncClient, talks: type[Talk], kinds: list[Reference]) -> None:
        self.talks = {name: talks(client, name) for name in SESSIONS}
        self.client, self.kinds = client, kinds
        self.plain: dict[str, Plain] = {}
        self.gone: set[str] = set()

    def state(self, plain: Plain) -> SessionState:
        state: SessionState = self.kinds[plain.kind].after(*plain.texts())
        return state

    async def take(self, kind: str, name: str, *rest: Any) -> None:
        if name in self.plain or kind == "make":
            await getattr(self, kind)(name, *rest)
        else:
            response = await self.client.get(f"/v1/sessions/{name}")
            assert response.status_code == (410 if name in self.gone else 404)

    async def make(self, name: str, kind: int) -> None:
        response = await self.client.post("/v1/sessions", json={"id": name, "options": KINDS[kind]})
        assert response.status_code == (409 if name in self.plain else 201)
        self.plain.setdefault(name, Plain(kind))

    async def say(self, name: str, utterance: str, number: int) -> None:
        plain, talk = self.plain[name], self.talks[name]
        response = await talk.say(utterance, *LISTS[number])
        if utterance in plain.log and plain.log[utterance][0] != number:
            assert (response.status_code, response.json()["type"]) == (409, "/problems/utterance-conflict")
            return
        answer = response.json()
        assert response.status_code == 200
        assert answer.pop("session") == name
        assert answer.pop("repeated") == (utterance in plain.log)
        if utterance in plain.log:
            assert answer == plain.answers[utterance]
            return
        before, ranking = self.state(plain), answer["result"]["ranking"]
        assert [(h["text"], h["total"], h["posterior"]) for h in ranking] == self.ranked(plain, number)
        plain.version += 1
        plain.log[utterance] = (number, answer["result"]["best_text"], None)
        plain.answers[utterance] = answer
        after = self.state(plain)
        learnt = after.words_learnt - before.words_learnt
        assert answer["lesson"] == {"learnt": learnt > 0, "words": learnt, "undone": after.undone > before.undone}
        assert answer["version"] == plain.version

    def ranked(self, plain: Plain, number: int) -> list[tuple[str, float, float]]:
        model = self.kinds[plain.kind]
        hypotheses = tuple(Hypothesis(text, -10.0 - i) for i, text in enumerate(LISTS[number]))
        prepared = model.rescorer.prepare(NBest("u", hypotheses))
        (result,) = model.model.rescore([prepared], [self.state(plain)])
        return [(h.text, h.total, h.posterior) for h in result.ranking]

    async def confirm(self, name: str, utterance: str, text: str) -> None:
        plain = self.plain[name]
        response = await self.talks[name].confirm(utterance, text)
        if utterance not in plain.log:
            assert (response.status_code, response.json()["type"]) == (404, "/problems/unknown-utterance")
            return
        number, winner, before = plain.log[utterance]
        plain.version += before != text
        plain.log[utterance] = (number, winner, text)
        assert (response.status_code, response.json()["version"]) == (200, plain.version)

    async def reset(self, name: str) -> None:
        plain = self.plain[name]
        assert (await self.talks[name].reset())["version"] == plain.version + 1
        self.plain[name] = Plain(plain.kind, plain.version + 1)

    async def fork(self, name: str, new: str) -> None:
        response = await self.client.post(f"/v1/sessions/{name}/fork", json={"id": new})
        self.made(name, new, response)

    async def transfer(self, name: str, new: str) -> None:
        exported = await self.talks[name].exported()
        response = await self.client.post("/v1/sessions/import", params={"id": new}, content=exported)
        self.made(name, new, response)

    def made(self, name: str, new: str, response: httpx.Response) -> None:
        assert response.status_code == (409 if new in self.plain else 201)
        self.plain.setdefault(new, self.plain[name].copy())

    async def delete(self, name: str) -> None:
        assert (await self.client.delete(f"/v1/sessions/{name}")).status_code == 204
        del self.plain[name]
        self.gone.add(name)

    async def check(self) -> None:
        for name, plain in self.plain.items():
            talk, model, state = self.talks[name], self.kinds[plain.kind], self.state(plain)
            described = await talk.described()
            assert (described["version"], described["utterances"]) == (plain.version, len(plain.log))
            assert (described["words_learnt"], described["lessons_undone"]) == (state.words_learnt, state.undone)
            assert model.bits_of(await talk.exported()) == model.bits(*plain.texts())


@pytest.mark.slow
@given(
    sequence=st.lists(steps, min_size=5, max_size=30),
    memory=st.sampled_from([1, 20_000, 2**31]),
    every=st.sampled_from([1, 2, 20]),
)
@settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_sessions_are_what_the_texts_that_they_accepted_make_them(
    bundle: Bundle,
    talks: type[Talk],
    reference: Callable[..., Reference],
    sequence: list[Any],
    memory: int,
    every: int,
) -> None:
    async def run() -> None:
        app = create_app(bundle, Limits(session_memory_bytes=memory, session_snapshot_every=every), log_requests=False)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://service") as client,
        ):
            world = World(client, talks, [reference(**kind) for kind in KINDS])
            await world.make("a", 0)
            for step in sequence:
                await world.take(*step)
            await world.check()

    asyncio.run(run())
