"""Answers on their way into the result file: in input order, and all the work of one system."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from .errors import InputFileError, OutputFileError, RescoreFailedError
from .exchange import encode
from .files import MADE_WITH, NBestLine, ResultLine
from .interrupt import interruptible
from .jsonl import JsonLines
from .output import Sink
from .progress import Reporter

Batch: TypeAlias = list[NBestLine]
Answered: TypeAlias = asyncio.Task[Mapping[str, Any]]


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

    async def finish(self, batch: Batch, task: Answered) -> None:
        """Wait for a batch's answer, "results" and what they were made with, and write it."""
        span = f"{self.lines.name}:{batch[0].line}" + (f"-{batch[-1].line}" if len(batch) > 1 else "")
        try:
            answer = await task
        except Exception as error:
            if isinstance(getattr(error, "exit_code", None), int):
                raise RescoreFailedError(f"{span}: {error}") from error
            raise
        made_with = {name: answer[name] for name in MADE_WITH if name in answer}
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
        for name in MADE_WITH:
            value, known = made_with.get(name), self._made_with.get(name)
            if value != known:
                raise OutputFileError(
                    f"{span}: the {name} changed: these results are made with {value!r}, "
                    f"those before with {known!r}; start anew without --resume"
                )


async def in_order(
    work: Iterator[Batch],
    start: Callable[[Batch], Answered],
    ahead: int,
    finish: Callable[[Batch, Answered], Awaitable[None]],
) -> None:
    """Start batches, so many at a time, and finish them in order. What is still going on at an error is cancelled."""
    flying: deque[tuple[Batch, Answered]] = deque()
    try:
        while batch := _next(work):
            flying.append((batch, start(batch)))
            if len(flying) >= ahead:
                await finish(*flying.popleft())
        while flying:
            await finish(*flying.popleft())
    except InputFileError:
        # What was sent before the bad line is good: it is written, for --resume to go on from.
        while flying:
            await finish(*flying.popleft())
        raise
    finally:
        for _, task in flying:
            task.cancel()
        await asyncio.gather(*(task for _, task in flying), return_exceptions=True)


def _next(work: Iterator[Batch]) -> Batch | None:
    with interruptible():
        return next(work, None)
