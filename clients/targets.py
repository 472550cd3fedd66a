"""Who rescores: a service, or an engine in this process."""

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeAlias

from .errors import MissingExtraError, UsageError
from .exchange import OnRetry
from .interrupt import interruptible
from .retry import RetryPolicy
from .sdk import AsyncClient
from .types import Answer, Request, SessionOptions, Settings, Utterance

Send: TypeAlias = Callable[[Request], Coroutine[Any, Any, Answer]]


class EngineSessions(Protocol):
    """Sessions of one kind in this process, by name; one that was never named before is fresh."""

    def describe(self) -> Mapping[str, Any]:
        """What they are: "bundle", "options" and "rescoring", as of a session of the service."""

    def rescore(self, entries: Sequence[tuple[str, Utterance]]) -> list[Mapping[str, Any]]:
        """The results of lists of different sessions, scored together; no session changes."""

    def accept(self, session: str, text: str, *, confirmed: bool) -> None:
        """Have a session accept a text: its winner, or a confirmed one."""

    def forget(self, session: str) -> None:
        """Let go of a session."""

    def gains(self) -> Sequence[Mapping[str, Any]]:
        """Of each session: "words_learnt", "lessons_undone" and "perplexity", as the service describes them."""


class Engine(Protocol):
    """What rescores in this process: it takes the body of POST /v1/rescore and gives its answer."""

    def rescore(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Rescore the utterances of a request."""

    def sessions(self, options: SessionOptions, settings: Settings) -> AbstractContextManager[EngineSessions]:
        """Sessions with the options of POST /v1/sessions and the settings of a request."""


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """A service to send requests to. concurrency: requests in flight at a time."""

    url: str
    api_key: str | None = None
    concurrency: int = 2
    retry_seconds: float = 120.0

    def client(self, on_retry: OnRetry) -> AsyncClient:
        """A client of it."""
        policy = RetryPolicy(total_seconds=self.retry_seconds)
        return AsyncClient(self.url, api_key=self.api_key, retry=policy, on_retry=on_retry)

    @asynccontextmanager
    async def connect(self, on_retry: OnRetry) -> AsyncIterator[Send]:
        """What sends a request."""
        async with self.client(on_retry) as client:
            yield client.send


@dataclass(frozen=True, slots=True)
class EngineTarget:
    """An engine in this process, found through the entry points: nothing of it is imported before."""

    bundle: str
    device: str = "auto"
    threads: int = 0
    precision: str = "float32"
    exact_normaliser: bool = False
    concurrency: int = 1
    retry_seconds: float = 0.0

    def engine(self) -> Engine:
        """Load it."""
        found = list(entry_points(group="nbest.engines", name="local"))
        if not found:
            raise UsageError("no engine is installed that rescores in process; use --url")
        try:
            load = found[0].load()
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                "nbest rescore --bundle needs the extra \"models\": pip install 'nbest-rescoring[models]'"
            ) from error
        engine: Engine = load(
            self.bundle,
            device=self.device,
            threads=self.threads,
            precision=self.precision,
            exact_normaliser=self.exact_normaliser,
        )
        return engine

    @asynccontextmanager
    async def connect(self, on_retry: OnRetry) -> AsyncIterator[Send]:  # noqa: ARG002 - nothing here is retried
        """What hands a request to the engine."""
        engine = self.engine()

        async def send(request: Request) -> Answer:
            with interruptible():
                return engine.rescore(request)  # type: ignore[return-value]  # the engine answers what the service answers

        yield send


def choose_target(
    url: str | None,
    bundle: str | None,
    api_key: str | None,
    concurrency: int,
    retry_seconds: float,
    device: str | None,
    threads: int | None,
    precision: str | None,
    *,
    exact_normaliser: bool,
) -> ServerTarget | EngineTarget:
    """A service or an engine, as the options say. Raises UsageError where they say both, neither or nonsense."""
    if url is not None and bundle is None:
        if device is not None or threads is not None or precision is not None:
            raise UsageError("--device, --threads and --precision go with --bundle; the server has its own")
        if exact_normaliser:
            raise UsageError("--exact-normaliser goes with --bundle")
        return ServerTarget(url, api_key, concurrency, retry_seconds)
    if bundle is not None and url is None:
        return EngineTarget(bundle, device or "auto", threads or 0, precision or "float32", exact_normaliser)
    raise UsageError("give either --url URL or --bundle DIR")
