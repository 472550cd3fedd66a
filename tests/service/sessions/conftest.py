"""Sessions to talk to over HTTP, and what they are compared with and disturbed by."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import pytest

from models.bundle import Bundle
from models.session import SessionModel, SessionOptions, SessionState
from models.session_file import dump_state, load_state
from service.session_store import StoreUnavailableError
from service.sqlite_store import SqliteStore

PATIENCE_S = 20
Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


def utterance_of(*texts: str, name: str = "u1") -> dict[str, Any]:
    """A request to rescore one utterance in a session, with acoustic scores -10, -11, ..."""
    hypotheses = [{"text": text, "acoustic_score": -10.0 - i} for i, text in enumerate(texts)]
    return {"utterance": {"id": name, "hypotheses": hypotheses}}


class Talk:
    """One session, talked to over HTTP."""

    def __init__(self, client: httpx.AsyncClient, session_id: str) -> None:
        self.client, self.id = client, session_id
        self.path = f"/v1/sessions/{session_id}"

    async def make(self, **request: Any) -> dict[str, Any]:
        return expect(await self.client.post("/v1/sessions", json={"id": self.id, **request}), 201)

    async def say(self, name: str, *texts: str, **more: Any) -> httpx.Response:
        return await self.client.post(f"{self.path}/rescore", json={**utterance_of(*texts, name=name), **more})

    async def said(self, name: str, *texts: str, **more: Any) -> dict[str, Any]:
        return expect(await self.say(name, *texts, **more))

    async def confirm(self, name: str, text: str, **headers: str) -> httpx.Response:
        return await self.client.put(f"{self.path}/utterances/{name}/transcript", json={"text": text}, headers=headers)

    async def confirmed(self, name: str, text: str) -> dict[str, Any]:
        return expect(await self.confirm(name, text))

    async def described(self) -> dict[str, Any]:
        return expect(await self.client.get(self.path))

    async def reset(self) -> dict[str, Any]:
        return expect(await self.client.post(f"{self.path}/reset"))

    async def fork(self, new_id: str) -> "Talk":
        expect(await self.client.post(f"{self.path}/fork", json={"id": new_id}), 201)
        return Talk(self.client, new_id)

    async def exported(self) -> bytes:
        response = await self.client.get(f"{self.path}/export")
        assert response.status_code == 200, response.text
        return response.content


def expect(response: httpx.Response, status: int = 200) -> dict[str, Any]:
    """The body of an answer about a session, whose ETag says the version that the body says."""
    assert response.status_code == status, response.text
    body: dict[str, Any] = response.json()
    version, _, incarnation = response.headers["etag"].strip('"').partition("-")
    assert (version, len(incarnation)) == (str(body["version"]), 12)
    return body


class Reference:
    """What a session must be: a SessionModel and nothing else, fed with the accepted texts one after another."""

    def __init__(self, bundle: Bundle, **options: Any) -> None:
        self.rescorer = bundle.rescorer
        self.model = SessionModel(bundle.rescorer, bundle.weights, SessionOptions(**options))

    def after(self, *texts: tuple[str, bool]) -> SessionState:
        """The state after some texts, each with whether it was confirmed."""
        state = self.model.fresh()
        for text, confirmed in texts:
            ids = self.rescorer.vocabulary.ids(self.rescorer.normaliser.words(text))
            state = self.model.accept(state, ids, confirmed=confirmed)
        return state

    def bits(self, *texts: tuple[str, bool]) -> bytes:
        """The same state as bytes."""
        return dump_state(self.after(*texts), {})

    def bits_of(self, exported: bytes) -> bytes:
        """The state in an exported session as bytes that compare with `bits`."""
        return dump_state(load_state(exported, self.model), {})


class MoodyStore(SqliteStore):
    """A store in memory, of which methods named in `down` cannot be reached. calls: what was called, in order."""

    def __init__(self) -> None:
        super().__init__(None)
        self.down: set[str] = set()
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or not callable(found):
            return found
        self.calls.append(name)
        if name in self.down:
            raise StoreUnavailableError("the session store has no room left")
        return found


class Clock:
    """Seconds since 1970 that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store() -> MoodyStore:
    return MoodyStore()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def utterance() -> Callable[..., dict[str, Any]]:
    return utterance_of


@pytest.fixture
def talk(client: httpx.AsyncClient) -> Talk:
    return Talk(client, "talk")


@pytest.fixture(scope="session")
def talks() -> type[Talk]:
    return Talk


@pytest.fixture(scope="session")
def reference(bundle: Bundle) -> Callable[..., Reference]:
    def make(**options: Any) -> Reference:
        return Reference(bundle, **options)

    return make


class Gate:
    """Stands in a session model's way: notes what passes, waits while it is shut, and fails when told to."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.batches: list[list[str]] = []
        self.threads: set[int] = set()
        self.lessons = 0
        self.scoring_fails: BaseException | None = None
        self.lesson_fails: BaseException | None = None
        self.only_of: list[int] | None = None

    def score(self, lists: Sequence[Any]) -> None:
        self.batches.append([prepared.nbest.utterance_id for prepared in lists])
        self.threads.add(threading.get_ident())
        assert self.open.wait(PATIENCE_S)
        if self.scoring_fails is not None:
            raise self.scoring_fails

    def learn(self, words: Sequence[int]) -> None:
        self.lessons += 1
        self.threads.add(threading.get_ident())
        if self.lesson_fails is not None and self.only_of in (None, list(words)):
            raise self.lesson_fails

    async def has_seen(self, count: int) -> None:
        """Wait until so many batches have come."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.batches) < count:  # noqa: ASYNC110 - what is waited for happens on another thread
                await asyncio.sleep(0.001)

    async def queued(self, client: httpx.AsyncClient, lists: int) -> None:
        """Wait until so many lists wait to be scored."""
        async with asyncio.timeout(PATIENCE_S):
            while f"nbest_queue_lists {float(lists)}" not in (await client.get("/metrics")).text:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.001)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate, score, accept = Gate(), SessionModel.score, SessionModel.accept

    def gated_score(model: SessionModel, lists: Any, states: Any) -> Any:
        gate.score(lists)
        return score(model, lists, states)

    def gated_accept(model: SessionModel, state: Any, words: Any, *, confirmed: bool) -> Any:
        gate.learn(words)
        return accept(model, state, words, confirmed=confirmed)

    monkeypatch.setattr(SessionModel, "score", gated_score)
    monkeypatch.setattr(SessionModel, "accept", gated_accept)
    return gate


@pytest.fixture
def gated(gate: Gate, serve: Serve) -> Any:
    """A context manager: sessions of these names, whose scoring thread is held from then on."""

    @asynccontextmanager
    async def start(*names: str, options: Any = (), **more: Any) -> AsyncIterator[list[Talk]]:
        async with serve(**more) as client:
            assert (await client.get("/health/ready")).status_code == 200
            made = [Talk(client, name) for name in names]
            for number, talk in enumerate(made):
                await talk.make(**({"options": options[number]} if options else {}))
            gate.open.clear()
            try:
                yield made
            finally:
                gate.open.set()

    return start
