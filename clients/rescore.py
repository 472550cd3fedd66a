"""`nbest rescore`: an N-best file in, results in the same order out, through a server or in this process."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .batches import Limits, Unit, batches, units
from .errors import UsageError
from .exchange import make_request
from .files import NBestLine, ResultLine, read_nbest
from .interrupt import run_until_interrupted
from .jsonl import JsonLines
from .output import Sink, part_file, stream_sink
from .own_sessions import OwnSessions
from .progress import Reporter
from .resume import Start, find_start
from .served_sessions import ServedSessions
from .session_plan import SessionPlan
from .targets import EngineTarget, ServerTarget
from .types import Settings
from .writing import Answered, Batch, Writer, in_order


class Course(Protocol):
    """How a run goes about its work; made for one run."""

    @property
    def retry_seconds(self) -> float:
        """How long a request is tried again."""

    def units(self, lines: JsonLines) -> Iterator[Unit]:
        """The utterances of a file, in units whose results stand all or not at all when a run is resumed."""

    def recall(self, line: NBestLine, result: ResultLine) -> None:
        """An utterance whose result an earlier run has left, in order, before anything is done."""

    def begin(self, part: Path | None, *, resume: bool) -> None:
        """The run begins. part: where its results are kept if it is interrupted; None where they are not."""

    async def run(self, todo: Iterator[Unit], writer: Writer, reporter: Reporter) -> None:
        """Do the work."""

    def end(self) -> None:
        """The result file is complete."""


@dataclass(frozen=True, slots=True)
class Requests:
    """The course without sessions: requests of many utterances, each an answer of its own."""

    target: ServerTarget | EngineTarget
    settings: Settings
    limits: Limits

    @property
    def retry_seconds(self) -> float:
        """How long a request is tried again."""
        return self.target.retry_seconds

    def units(self, lines: JsonLines) -> Iterator[Unit]:
        """Single utterances, or whole sessions where state is carried."""
        return units(lines.name, read_nbest(lines), self.settings.get("options", {}).get("state"), self.limits)

    def recall(self, line: NBestLine, result: ResultLine) -> None:
        """Nothing of it matters to the others."""

    def begin(self, part: Path | None, *, resume: bool) -> None:
        """There is nothing to begin with."""

    def end(self) -> None:
        """There is nothing to tidy up."""

    async def run(self, todo: Iterator[Unit], writer: Writer, reporter: Reporter) -> None:
        """Send batches, several at a time, and write their results in order."""
        async with self.target.connect(reporter.retrying) as send:

            def start(batch: Batch) -> Answered:
                request = make_request([line.utterance for line in batch], self.settings)
                return asyncio.create_task(send(request))

            await in_order(batches(todo, self.limits), start, self.target.concurrency, writer.finish)


def choose_course(
    target: ServerTarget | EngineTarget, settings: Settings, limits: Limits, plan: SessionPlan | None
) -> Course:
    """The course of a run: with sessions where there is a plan for them."""
    if plan is None:
        return Requests(target, settings, limits)
    if isinstance(target, ServerTarget):
        return ServedSessions(target, plan, settings, limits)
    return OwnSessions(target, plan, settings, limits.utterances)


@dataclass(frozen=True, slots=True)
class Job:
    """One run of `nbest rescore`.

    source, output: file names; "-" for standard input and output
    resume:         continue OUTPUT.part where there is one
    """

    source: str
    output: str
    course: Course
    resume: bool = False
    quiet: bool = False

    def run(self) -> None:
        """Do the work. Raises ClientError, or the engine's own error, naming the lines it is about."""
        part = part_file(self.output, self.source)
        if self.resume and part is None:
            raise UsageError("--resume needs --output FILE")
        with ExitStack() as stack:
            lines = stack.enter_context(JsonLines(self.source))
            reporter = Reporter(lines.total_bytes, quiet=self.quiet, retry_seconds=self.course.retry_seconds)
            start = Start(self.course.units(lines))
            if part is not None:
                stack.enter_context(part)
                if self.resume:
                    start = find_start(lines.name, start.units, part, self.course.recall)
            self.course.begin(None if part is None else part.path, resume=self.resume)
            if part is not None:
                part.open(start.keep_bytes)
                sink: Sink = part
            else:
                sink, closing = stream_sink(self.output)
                if closing is not None:
                    stack.enter_context(closing)
            stack.enter_context(reporter)
            kept = start.keep_lines
            writer = Writer(lines, sink, reporter, start.last)
            try:
                run_until_interrupted(self.course.run(start.units, writer, reporter))
            except BaseException:
                if part is not None and kept + writer.written:
                    reporter.note(
                        f"{kept + writer.written:,} results are kept in {part.path}; --resume continues there"
                    )
                raise
            sink.commit()
        self.course.end()
        reporter.summary(kept)
