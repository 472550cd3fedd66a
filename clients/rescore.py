"""`nbest rescore`: an N-best file in, results in the same order out, through a server or in this process."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeAlias

from .batches import Limits, Unit, batches, units
from .errors import InputFileError, MissingExtraError, OutputFileError, RescoreFailedError, UsageError
from .exchange import OnRetry, encode, make_request
from .files import NBestLine, ResultLine, read_nbest
from .interrupt import interruptible, run_until_interrupted
from .jsonl import JsonLines
from .output import PartFile, Sink, part_file, stream_sink
from .progress import Reporter
from .retry import RetryPolicy
from .sdk import AsyncClient
from .types import Answer, Request, Settings

Send: TypeAlias = Callable[[Request], Coroutine[Any, Any, Answer]]
Batch: TypeAlias = list[NBestLine]


class Engine(Protocol):
    """What rescores in this process: it takes the body of POST /v1/rescore and gives its answer."""

    def rescore(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Rescore the utterances of a request."""


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """A service to send requests to. concurrency: requests in flight at a time."""

    url: str
    api_key: str | None = None
    concurrency: int = 2
    retry_seconds: float = 120.0

    @asynccontextmanager
    async def connect(self, on_retry: OnRetry) -> AsyncIterator[Send]:
        """What sends a request."""
        policy = RetryPolicy(total_seconds=self.retry_seconds)
        async with AsyncClient(self.url, api_key=self.api_key, retry=policy, on_retry=on_retry) as client:
            yield client.send


@dataclass(frozen=True, slots=True)
class EngineTarget:
    """An engine in this process, found through the entry points: nothing of it is imported before."""

    bundle: str
    device: str = "auto"
    threads: int = 0
    concurrency: int = 1
    retry_seconds: float = 0.0

    @asynccontextmanager
    async def connect(self, on_retry: OnRetry) -> AsyncIterator[Send]:  # noqa: ARG002 - nothing here is retried
        """What hands a request to the engine."""
        found = list(entry_points(group="nbest.engines", name="local"))
        if not found:
            raise UsageError("no engine is installed that rescores in process; use --url")
        try:
            load = found[0].load()
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                "nbest rescore --bundle needs the extra \"models\": pip install 'nbest-rescoring[models]'"
            ) from error
        engine: Engine = load(self.bundle, device=self.device, threads=self.threads)

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
) -> ServerTarget | EngineTarget:
    """A service or an engine, as the options say. Raises UsageError where they say both, neither or nonsense."""
    if url is not None and bundle is None:
        if device is not None or threads is not None:
            raise UsageError("--device and --threads go with --bundle; the server has its own")
        return ServerTarget(url, api_key, concurrency, retry_seconds)
    if bundle is not None and url is None:
        return EngineTarget(bundle, device or "auto", threads or 0)
    raise UsageError("give either --url URL or --bundle DIR")


@dataclass(frozen=True, slots=True)
class Job:
    """One run of `nbest rescore`.

    source, output: file names; "-" for standard input and output
    resume:         continue OUTPUT.part where there is one
    """

    source: str
    output: str
    target: ServerTarget | EngineTarget
    settings: Settings
    limits: Limits
    resume: bool = False
    quiet: bool = False

    def run(self) -> None:
        """Do the work. Raises ClientError, or the engine's own error, naming the lines it is about."""
        part = part_file(self.output, self.source)
        if self.resume and part is None:
            raise UsageError("--resume needs --output FILE")
        with ExitStack() as stack:
            lines = stack.enter_context(JsonLines(self.source))
            reporter = Reporter(lines.total_bytes, quiet=self.quiet, retry_seconds=self.target.retry_seconds)
            state = self.settings.get("options", {}).get("state")
            todo = units(lines.name, read_nbest(lines), state, self.limits)
            before: ResultLine | None = None
            if part is not None:
                stack.enter_context(part)
                start = find_start(lines.name, todo, part) if self.resume else Start(todo)
                todo, before = start.units, start.last
                part.open(start.keep_bytes)
                kept = start.keep_lines
                sink: Sink = part
            else:
                kept = 0
                sink, closing = stream_sink(self.output)
                if closing is not None:
                    stack.enter_context(closing)
            stack.enter_context(reporter)
            writer = Writer(lines, sink, reporter, before)
            try:
                run_until_interrupted(self._send_all(batches(todo, self.limits), writer, reporter))
            except BaseException:
                if part is not None and kept + writer.written:
                    reporter.note(
                        f"{kept + writer.written:,} results are kept in {part.path}; --resume continues there"
                    )
                raise
            sink.commit()
        reporter.summary(kept)

    async def _send_all(self, work: Iterator[Batch], writer: "Writer", reporter: Reporter) -> None:
        """Send batches, several at a time, and write their results in order."""
        flying: deque[tuple[Batch, asyncio.Task[Answer]]] = deque()
        async with self.target.connect(reporter.retrying) as send:
            try:
                while batch := _next(work):
                    request = make_request([line.utterance for line in batch], self.settings)
                    flying.append((batch, asyncio.create_task(send(request))))
                    if len(flying) >= self.target.concurrency:
                        await writer.finish(*flying.popleft())
                while flying:
                    await writer.finish(*flying.popleft())
            except InputFileError:
                # What was sent before the bad line is good: it is written, for --resume to go on from.
                while flying:
                    await writer.finish(*flying.popleft())
                raise
            finally:
                for _, task in flying:
                    task.cancel()
                await asyncio.gather(*(task for _, task in flying), return_exceptions=True)


def _next(work: Iterator[Batch]) -> Batch | None:
    with interruptible():
        return next(work, None)


@dataclass
class Writer:
    """Turns answers into lines, and sees to it that one file is the work of one bundle and its weights.

    before:  the last result that was there already, or was written
    written: results written in this run
    """

    lines: JsonLines
    sink: Sink
    reporter: Reporter
    before: ResultLine | None
    written: int = 0
    _made_with: Mapping[str, Any] | None = None

    async def finish(self, batch: Batch, task: asyncio.Task[Answer]) -> None:
        """Wait for a batch's answer and write it."""
        span = f"{self.lines.name}:{batch[0].line}" + (f"-{batch[-1].line}" if len(batch) > 1 else "")
        try:
            answer = await task
        except Exception as error:
            if isinstance(getattr(error, "exit_code", None), int):
                raise RescoreFailedError(f"{span}: {error}") from error
            raise
        made_with = {name: answer.get(name) for name in ("bundle", "weights", "state")}
        self._check(made_with, frozenset(answer["results"][0]["ranking"][0]), span)
        self.sink.write(b"".join(encode({**result, **made_with}) + b"\n" for result in answer["results"]))
        self.written += len(batch)
        words = sum(len(h["text"].split()) for line in batch for h in line.utterance["hypotheses"])
        self.reporter.advance(len(batch), words, self.lines.position)

    def _check(self, made_with: Mapping[str, Any], shape: frozenset[str], span: str) -> None:
        if self._made_with is None and self.before is not None:
            self._made_with = self.before.made_with
            if shape != self.before.shape:
                raise OutputFileError(
                    "the results there are of another kind (--compact or --word-scores); "
                    "continue with the same options, or start anew without --resume"
                )
        if self._made_with is None:
            self._made_with = made_with
        for name, value in made_with.items():
            if value != self._made_with.get(name):
                raise OutputFileError(
                    f"{span}: the {name} changed: these results are made with {value!r}, "
                    f"those before with {self._made_with.get(name)!r}; start anew without --resume"
                )


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run begins.

    units:      what is still to do
    keep_bytes: what of the part file stands
    keep_lines: the same in results
    last:       the last of these
    """

    units: Iterator[Unit]
    keep_bytes: int = 0
    keep_lines: int = 0
    last: ResultLine | None = None


def find_start(name: str, todo: Iterator[Unit], part: PartFile) -> Start:
    """Walk the input beside an earlier run's results, to the first unit whose results are not all there.

    Raises OutputFileError where the two are not of the same utterances.
    """
    done = part.whole_lines()
    keep, count, last = 0, 0, None
    for unit in todo:
        there = list(itertools.islice(done, len(unit.lines)))
        for line, (result, _) in zip(unit.lines, there, strict=False):
            found, wanted = result.utterance_id, line.utterance_id
            if found != wanted:
                raise OutputFileError(
                    f"{part.path}:{result.line}: id: {found!r} is no result for {wanted!r} of {name}:{line.line}: "
                    "another run's work; start anew without --resume"
                )
        if len(there) < len(unit.lines):
            return Start(itertools.chain([unit], todo), keep, count, last)
        last, keep = there[-1]
        count += len(there)
    if next(done, None) is not None:
        raise OutputFileError(
            f"{part.path}: holds more results than {name} has utterances; start anew without --resume"
        )
    return Start(iter(()), keep, count, last)
