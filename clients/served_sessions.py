"""`nbest rescore` with sessions of the service: each session's utterances in order, different sessions together.

The sessions' ids come from an id of the run, which stands in OUTPUT.part.run while the run may be resumed. A resumed
run thus goes on in the same sessions, and what was on its way when the run ended is answered from their logs.
"""

import asyncio
import re
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .batches import Limits, Unit, units
from .errors import (
    BusyError,
    NoAnswerError,
    OutputFileError,
    RescoreFailedError,
    ServerError,
    SessionExistsError,
    SessionGoneError,
    UnknownSessionError,
)
from .exchange import encode
from .files import NBestLine, ResultLine
from .jsonl import JsonLines, json_object
from .progress import Reporter
from .sdk import AsyncClient
from .session import AsyncSession
from .session_plan import SessionPlan, gains, session_id
from .targets import ServerTarget
from .types import Form, Settings
from .writing import Answered, Batch, Writer, in_order

# Lines read ahead of the one whose result is written next, to find sessions that can be served together.
_AHEAD = 256
# What a run that cannot be resumed spends on deleting its sessions.
_PARTING_SECONDS = 5.0
_RUN = re.compile(r"[0-9a-f]{32}")


class ServedSessions:
    """The course of a run with sessions of a service.

    target:   the service; its concurrency is the number of sessions served together
    settings: of the run; only what concerns a single request is used
    """

    def __init__(self, target: ServerTarget, plan: SessionPlan, settings: Settings, limits: Limits) -> None:
        self._target, self._plan, self._limits = target, plan, limits
        self._form = Form(
            log_base=settings.get("log_base", "e"),
            word_scores=settings.get("word_scores", False),
            compact=settings.get("compact", False),
        )
        self._name = ""
        self._kept = 0
        self._known: Counter[str] = Counter()
        self._run = uuid.uuid4().hex
        self._run_file: Path | None = None

    @property
    def retry_seconds(self) -> float:
        """How long a request is tried again."""
        return self._target.retry_seconds

    def units(self, lines: JsonLines) -> Iterator[Unit]:
        """Single utterances."""
        self._name = lines.name
        return units(lines.name, self._plan.read(lines), None, self._limits)

    def recall(self, line: NBestLine, result: ResultLine) -> None:  # noqa: ARG002 - the server knows the result
        """Its session exists."""
        self._kept += 1
        if self._plan.per != "utterance":
            self._known[self._plan.label(line, self._name)] += 1

    def begin(self, part: Path | None, *, resume: bool) -> None:
        """Find or keep the id of the run. Raises OutputFileError where a resumed run has lost it."""
        if part is None:
            return
        self._run_file = part.with_name(part.name + ".run")
        plan = self._plan
        asked = {"per": plan.per, "options": plan.options, "rescoring": plan.rescoring, "form": self._form}
        try:
            if resume and self._run_file.exists():
                self._run = _read_run(self._run_file, asked)
                return
            if self._kept:
                raise OutputFileError(
                    f"{self._run_file}: is missing; it names the sessions that the results in {part} were made in: "
                    "start anew without --resume"
                )
            self._run_file.write_bytes(encode({"run": self._run, "sessions": asked}) + b"\n")
        except OSError as error:
            raise OutputFileError(f"{self._run_file}: cannot be used: {error.strerror}") from error

    def end(self) -> None:
        """The run needs no id any more."""
        if self._run_file is not None:
            self._run_file.unlink(missing_ok=True)

    async def run(self, todo: Iterator[Unit], writer: Writer, reporter: Reporter) -> None:
        """Rescore, and delete the sessions when all results are written."""
        try:
            async with self._target.client(reporter.retrying) as client:
                live = _Live(client, self._plan, self._form, self._run, self._name, self._known)
                live.slots = asyncio.Semaphore(self._target.concurrency)

                async def finish(batch: Batch, task: Answered) -> None:
                    await writer.finish(batch, task)
                    live.written(batch)

                try:
                    await in_order((list(unit.lines) for unit in todo), live.start, self._ahead(writer), finish)
                except BaseException:
                    if not self._resumable(writer):
                        await live.abandon()
                    raise
                else:
                    await live.close(reporter)
                finally:
                    await live.settle()
        except BaseException:
            if not self._resumable(writer):
                self.end()
            raise

    def _resumable(self, writer: Writer) -> bool:
        return self._run_file is not None and self._kept + writer.written > 0

    def _ahead(self, writer: Writer) -> int:
        """How many lines are read before the first is written; of a pipe few, for the next may be long in coming."""
        few = self._target.concurrency
        return few if self._plan.per != "speaker" or writer.lines.total_bytes is None else max(few, _AHEAD)


@dataclass
class _Live:
    """The sessions of a run while it runs.

    known: label of each session that an earlier run has used -> how many of its results stand
    slots: held by whoever talks to the server
    """

    client: AsyncClient
    plan: SessionPlan
    form: Form
    run: str
    name: str
    known: Mapping[str, int]
    slots: asyncio.Semaphore = field(default_factory=asyncio.Semaphore)
    _open: dict[str, tuple[AsyncSession, Mapping[str, Any]]] = field(default_factory=dict)
    _newest: dict[str, Answered] = field(default_factory=dict)
    _leaving: set[asyncio.Task[None]] = field(default_factory=set)
    _left: int = 0
    _unreachable: bool = False

    def start(self, batch: Batch) -> Answered:
        """Rescore one utterance, once the one before it in its session is done."""
        (line,) = batch
        label = self.plan.label(line, self.name)
        task = asyncio.create_task(self._answer(line, label, self._newest.get(label)))
        self._newest[label] = task
        return task

    def written(self, batch: Batch) -> None:
        """A result is in the file. A session of one utterance has done its work with that."""
        if self.plan.per == "utterance":
            label = self.plan.label(batch[0], self.name)
            del self._newest[label]
            session, _ = self._open.pop(label)
            if not self.plan.keep:
                task = asyncio.create_task(self._leave(session))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)

    async def close(self, reporter: Reporter) -> None:
        """Say what the sessions have learnt, and delete them unless they are to be kept."""
        sessions = [self._session(label) for label in sorted({*self.known, *self._open})]
        every = await asyncio.gather(*map(self._last_words, sessions))
        await asyncio.gather(*self._leaving)
        if report := gains(description for description in every if description is not None):
            reporter.note(report)
        if self._left:
            reporter.note(f"sessions that could not be deleted: {self._left:,}; the server lets them go in time")
        if self.plan.keep:
            reporter.note(f"the sessions are kept; their ids begin with {self.run}")

    async def abandon(self) -> None:
        """Delete the sessions of a run that nobody can go on with, as far as that is quickly done."""
        if self.plan.keep:
            return
        sessions = [session for session, _ in self._open.values()]
        with suppress(TimeoutError):
            async with asyncio.timeout(_PARTING_SECONDS):
                await asyncio.gather(*map(self._leave, sessions), *self._leaving)

    async def settle(self) -> None:
        """End what is still going on."""
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)

    async def _answer(self, line: NBestLine, label: str, before: Answered | None) -> Mapping[str, Any]:
        if before is not None:
            await before  # what makes it fail must stop those that come after it in its session
        async with self.slots:
            session, made_with = self._open.get(label) or await self._opened(label)
            answer = await session.rescore(line.utterance, **self.form)
            if (text := self.plan.confirmed(line)) is not None:
                await session.confirm(line.utterance_id, text)
        return {**made_with, "bundle": answer["bundle"], "results": [answer["result"]]}

    async def _opened(self, label: str) -> tuple[AsyncSession, Mapping[str, Any]]:
        session = self._session(label)
        try:
            if label in self.known:
                description = await session.open()
            else:
                try:
                    made = self.client.session(session.id, rescoring=self.plan.rescoring, **self.plan.options)
                    description = await made.open()
                except SessionExistsError:
                    # Made by the run that this one resumes, which was stopped before its first result was written.
                    description = await session.open()
        except (UnknownSessionError, SessionGoneError) as error:
            raise RescoreFailedError(f"{error}; start anew without --resume") from error
        if description["utterances"] < self.known.get(label, 0):
            raise RescoreFailedError(
                f"session {session.id!r} has accepted fewer utterances than there are results of it; "
                "start anew without --resume"
            )
        self._open[label] = session, self.plan.made_with(description)
        return self._open[label]

    def _session(self, label: str) -> AsyncSession:
        return self.client.attach(session_id(self.run, label))

    async def _last_words(self, session: AsyncSession) -> Mapping[str, Any] | None:
        description: Mapping[str, Any] | None = None

        async def ask() -> None:
            nonlocal description
            description = await session.describe()

        if self.plan.learns:
            await self._try(ask)
        if not self.plan.keep:
            await self._leave(session)
        return description

    async def _leave(self, session: AsyncSession) -> None:
        if not await self._try(session.delete):
            self._left += 1

    async def _try(self, call: Callable[[], Awaitable[None]]) -> bool:
        """What the results do not depend on: an error is no failure of the run, and not waited out again and again."""
        async with self.slots:
            if self._unreachable:
                return False
            try:
                await call()
            except UnknownSessionError:
                pass
            except ServerError as error:
                self._unreachable = isinstance(error, NoAnswerError | BusyError)
                return False
        return True


def _read_run(path: Path, asked: Mapping[str, Any]) -> str:
    """The id of an interrupted run. Raises OutputFileError where its sessions are other ones than asked for."""
    try:
        document = json_object(path.read_bytes())
    except ValueError as error:
        raise OutputFileError(f"{path}: cannot be read: {error}; start anew without --resume") from error
    run = document.get("run")
    if not isinstance(run, str) or not _RUN.fullmatch(run):
        raise OutputFileError(f"{path}: holds no id of a run; start anew without --resume")
    if document.get("sessions") != asked:
        raise OutputFileError(
            f"{path}: the sessions there are of another kind; continue with the same options, "
            "or start anew without --resume"
        )
    return run
