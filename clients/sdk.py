"""The Python client: one class for synchronous code, one for asyncio, over one core.

    from clients.sdk import Client

    utterance = {
        "id": "utt-1",
        "hypotheses": [
            {"text": "wreck a nice beach", "acoustic_score": -210.5, "lm_score": -21.9},
            {"text": "recognise speech", "acoustic_score": -211.0, "lm_score": -18.2},
        ],
    }
    with Client("http://localhost:8000") as client:
        print(client.rescore_one(utterance)["best_text"])

and in asyncio:

    async with AsyncClient("http://localhost:8000") as client:
        answer = await client.rescore([utterance], options={"lm_scale": 9.5}, word_scores=True)

`Client.session` gives a session that learns from what it hears (session.py).

Both try again, with back-off, when the connection fails or the server is busy (RetryPolicy), and raise a
ServerError: ProblemError for what the server refuses, with its problem document in `error.problem`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack

import httpx

from .carrying import carry, carry_async
from .errors import UsageError
from .evaluating import OnProgress, evaluating
from .exchange import Call, Exchange, Flow, OnRetry, Outcome, Pause, make_request
from .retry import RetryPolicy
from .session import AsyncSession, Session
from .session_exchange import SessionFlows, SessionMade, attaching, creation, importing
from .types import Answer, EvaluationSettings, Request, Result, SessionOptions, Settings, Utterance, Weights

T = TypeVar("T")

# A batch may wait in the server's queue and then take its time: reading has the longest patience.
TIMEOUT = httpx.Timeout(connect=5.0, read=300.0, write=60.0, pool=None)


class Client:
    """A synchronous client of the rescoring service; safe to use from several threads.

    base_url:  where the service is, such as "http://localhost:8000"
    api_key:   sent with each request, where the service asks for one
    transport: what carries the requests; the network when left out
    retry:     when to try again, and for how long
    timeout:   of one try, per phase
    on_retry:  told of each failure that is tried again, and of the seconds until then
    sleep, now: the clock, in seconds
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        transport: httpx.BaseTransport | None = None,
        retry: RetryPolicy | None = None,
        timeout: httpx.Timeout = TIMEOUT,
        on_retry: OnRetry | None = None,
        sleep: Callable[[float], object] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exchange = Exchange(retry or RetryPolicy(), now, on_retry)
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=checked_url(base_url), headers=_headers(api_key), transport=transport, timeout=timeout
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def rescore(self, utterances: Sequence[Utterance], **settings: Unpack[Settings]) -> Answer:
        """Rescore the lists of one request; the results are in the order of the request.

        options:     overrides of the bundle's weights, e.g. {"lm_scale": 0.0, "interpolation": {"kn5": 1.0}}
                     and "decision": "total", "mbr" or "consensus"
        log_base:    "e" or "10": the base of the scores sent; answers are always natural logs
        word_scores: ask for the per-word values of each model
        word_confidences: ask for a confidence for each word of the best hypothesis
        compact:     ask for order, totals and posteriors alone
        best_only:   ask for the best hypothesis of each list alone; the answer's ranking is then a single one

        Raises UsageError for what is no JSON, ServerError for the rest.
        """
        return self.send(make_request(utterances, settings))

    def rescore_one(self, utterance: Utterance, **settings: Unpack[Settings]) -> Result:
        """Rescore the list of one utterance; settings and errors are those of `rescore`."""
        return self._drive(self._exchange.rescore_one(make_request([utterance], settings)))

    def evaluate(
        self,
        utterances: Iterable[Utterance],
        *,
        on_progress: OnProgress | None = None,
        **settings: Unpack[EvaluationSettings],
    ) -> dict[str, Any]:
        """Rescore lists with references on the server, and evaluate there; what `nbest evaluate --json` writes.

        utterances:  any number; sent one by one as they are asked for. What can be gone through once only, such as a
                     generator, is sent once; else a server that is busy or away is asked again
        on_progress: told about every second how far the server is, once all has been sent
        settings:    e.g. options={"lm_scale": 9.5}, seed=7, worst=10

        Raises UsageError for what is no JSON, ServerError for the rest: ProblemError names the line at fault; line 1
        holds the settings, line 2 the first utterance.
        """
        return self._drive(evaluating(self._exchange, utterances, settings, on_progress))

    def send(self, request: Request) -> Answer:
        """Send a request that is already put together."""
        return self._drive(self._exchange.rescore(request))

    def models(self) -> dict[str, Any]:
        """The bundle that is served: its hash, models, weights, normaliser and vocabulary."""
        return self._drive(self._exchange.models())

    def ready(self) -> bool:
        """Whether the service answers and has scored a sentence; asked once, never tried again."""
        return self._drive(self._exchange.ready())

    def session(
        self,
        session_id: str | None = None,
        *,
        rescoring: Weights | None = None,
        keep: bool = False,
        **options: Unpack[SessionOptions],
    ) -> Session:
        """A session that is made when its `with` block is entered, and deleted when that is left.

        session_id: what to call it; drawn at random when left out
        rescoring:  overrides of the bundle's weights, for all its rankings
        keep:       leave it on the server when the block ends
        options:    e.g. learn_from="confirmed", rate=0.05; what is left out is the server's default
        """
        return self._session(creation(session_id, options, rescoring), keep=keep)

    def attach(self, session_id: str, *, keep: bool = True) -> Session:
        """A session that exists; it stays when its `with` block ends, unless it is not to be kept."""
        return self._session(attaching(session_id), keep=keep)

    def import_session(self, exported: bytes, session_id: str | None = None, *, keep: bool = False) -> Session:
        """A session made, when its `with` block is entered, from the bytes that `Session.export` gave."""
        return self._session(importing(session_id, exported), keep=keep)

    def _session(self, made: SessionMade, *, keep: bool) -> Session:
        return Session(self._drive, SessionFlows(self._exchange, made), keep=keep)

    def _drive(self, flow: Flow[T]) -> T:
        outcome: Outcome = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # what a Flow[T] returns is a T
            outcome = self._perform(step)

    def _perform(self, step: Call | Pause) -> Outcome:
        if isinstance(step, Pause):
            self._sleep(step.seconds)
            return None
        return carry(self._http, step)


class AsyncClient:
    """The same client for asyncio; `Client` documents the parameters.

    sleep: awaited for each pause, with its seconds
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        retry: RetryPolicy | None = None,
        timeout: httpx.Timeout = TIMEOUT,
        on_retry: OnRetry | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exchange = Exchange(retry or RetryPolicy(), now, on_retry)
        self._sleep = sleep
        self._http = httpx.AsyncClient(
            base_url=checked_url(base_url), headers=_headers(api_key), transport=transport, timeout=timeout
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def rescore(self, utterances: Sequence[Utterance], **settings: Unpack[Settings]) -> Answer:
        """Rescore the lists of one request; settings, result and errors are those of `Client.rescore`."""
        return await self.send(make_request(utterances, settings))

    async def rescore_one(self, utterance: Utterance, **settings: Unpack[Settings]) -> Result:
        """Rescore the list of one utterance."""
        return await self._drive(self._exchange.rescore_one(make_request([utterance], settings)))

    async def evaluate(
        self,
        utterances: Iterable[Utterance],
        *,
        on_progress: OnProgress | None = None,
        **settings: Unpack[EvaluationSettings],
    ) -> dict[str, Any]:
        """Rescore and evaluate on the server; parameters, result and errors are those of `Client.evaluate`."""
        return await self._drive(evaluating(self._exchange, utterances, settings, on_progress))

    async def send(self, request: Request) -> Answer:
        """Send a request that is already put together."""
        return await self._drive(self._exchange.rescore(request))

    async def models(self) -> dict[str, Any]:
        """The bundle that is served: its hash, models, weights, normaliser and vocabulary."""
        return await self._drive(self._exchange.models())

    async def ready(self) -> bool:
        """Whether the service answers and has scored a sentence; asked once, never tried again."""
        return await self._drive(self._exchange.ready())

    def session(
        self,
        session_id: str | None = None,
        *,
        rescoring: Weights | None = None,
        keep: bool = False,
        **options: Unpack[SessionOptions],
    ) -> AsyncSession:
        """A session that is made when its `async with` block is entered; `Client.session` has the parameters."""
        return self._session(creation(session_id, options, rescoring), keep=keep)

    def attach(self, session_id: str, *, keep: bool = True) -> AsyncSession:
        """A session that exists; it stays when its `async with` block ends, unless it is not to be kept."""
        return self._session(attaching(session_id), keep=keep)

    def import_session(self, exported: bytes, session_id: str | None = None, *, keep: bool = False) -> AsyncSession:
        """A session made, when its `async with` block is entered, from exported bytes."""
        return self._session(importing(session_id, exported), keep=keep)

    def _session(self, made: SessionMade, *, keep: bool) -> AsyncSession:
        return AsyncSession(self._drive, SessionFlows(self._exchange, made), keep=keep)

    async def _drive(self, flow: Flow[T]) -> T:
        outcome: Outcome = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # what a Flow[T] returns is a T
            outcome = await self._perform(step)

    async def _perform(self, step: Call | Pause) -> Outcome:
        if isinstance(step, Pause):
            await self._sleep(step.seconds)
            return None
        return await carry_async(self._http, step)


def checked_url(base_url: str) -> httpx.URL:
    """A base URL as one. Raises UsageError for what is none."""
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise UsageError(f"{base_url!r} is no URL: {error}") from error
    if url.scheme not in {"http", "https"} or not url.host:
        raise UsageError(f"{base_url!r} is no URL of a service; it must look like http://localhost:8000")
    return url


def _headers(api_key: str | None) -> Mapping[str, str]:
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    if api_key is not None:
        if not (api_key.isascii() and api_key.isprintable() and api_key):
            raise UsageError("the API key must be printable ASCII and must not be empty")
        headers["Authorization"] = f"Bearer {api_key}"
    return headers
