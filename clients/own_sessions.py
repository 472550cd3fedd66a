"""`nbest rescore` with sessions of an engine in this process.

Lines are taken in windows. Of a window, the first lines of all sessions are scored together, then the second ones, and
so on; the next begins when a window is written. A resumed run begins with a window, so that it scores the same lists
together as a run that was never interrupted, and has the sessions accept again what stands in OUTPUT.part.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .batches import Unit
from .files import NBestLine, ResultLine
from .interrupt import interruptible
from .jsonl import JsonLines
from .progress import Reporter
from .session_plan import SessionPlan, gains
from .targets import EngineSessions, EngineTarget
from .types import Settings
from .writing import Answered, Batch, Writer, in_order


class OwnSessions:
    """The course of a run with sessions in this process.

    window: lines in a window
    """

    def __init__(self, target: EngineTarget, plan: SessionPlan, settings: Settings, window: int) -> None:
        self._target, self._plan, self._settings, self._window = target, plan, settings, window
        self._name = ""
        self._accepted: list[tuple[str, str, bool]] = []

    @property
    def retry_seconds(self) -> float:
        """Nothing is tried again."""
        return self._target.retry_seconds

    def units(self, lines: JsonLines) -> Iterator[Unit]:
        """Windows."""
        self._name = lines.name
        every = self._plan.read(lines)
        return (Unit(window, 0) for window in iter(lambda: tuple(itertools.islice(every, self._window)), ()))

    def recall(self, line: NBestLine, result: ResultLine) -> None:
        """Note what its session has accepted."""
        if self._plan.per != "utterance":
            winner = line.utterance["hypotheses"][result.order[0]]["text"]
            self._accepted.append((self._plan.label(line, self._name), *self._lesson(line, winner)))

    def begin(self, part: Path | None, *, resume: bool) -> None:
        """There is nothing to begin with."""

    def end(self) -> None:
        """There is nothing to tidy up."""

    async def run(self, todo: Iterator[Unit], writer: Writer, reporter: Reporter) -> None:
        """Rescore window after window."""
        engine = self._target.engine()
        with engine.sessions(self._plan.options, self._settings) as sessions:
            made_with = self._plan.made_with(sessions.describe())
            for label, text, confirmed in self._accepted:
                with interruptible():
                    sessions.accept(label, text, confirmed=confirmed)

            async def answer(batch: Batch) -> Mapping[str, Any]:
                return {**made_with, "results": self._rescore(batch, sessions)}

            def start(batch: Batch) -> Answered:
                return asyncio.create_task(answer(batch))

            await in_order((list(unit.lines) for unit in todo), start, 1, writer.finish)
            if self._plan.learns and (report := gains(sessions.gains())):
                reporter.note(report)

    def _rescore(self, batch: Batch, sessions: EngineSessions) -> list[Mapping[str, Any]]:
        """The results of a window, in its order."""
        results: dict[int, Mapping[str, Any]] = {}
        for together in self._rounds(batch):
            entries = [(label, line.utterance) for label, line in together]
            with interruptible():
                found = sessions.rescore(entries)
            for (label, line), result in zip(together, found, strict=True):
                results[line.line] = result
                if self._plan.per == "utterance":
                    sessions.forget(label)
                    continue
                text, confirmed = self._lesson(line, result["best_text"])
                with interruptible():
                    sessions.accept(label, text, confirmed=confirmed)
        return [results[line.line] for line in batch]

    def _rounds(self, batch: Iterable[NBestLine]) -> list[list[tuple[str, NBestLine]]]:
        """The first lines of all sessions, then the second ones, and so on."""
        rounds: list[list[tuple[str, NBestLine]]] = []
        met: Counter[str] = Counter()
        for line in batch:
            label = self._plan.label(line, self._name)
            if met[label] == len(rounds):
                rounds.append([])
            rounds[met[label]].append((label, line))
            met[label] += 1
        return rounds

    def _lesson(self, line: NBestLine, winner: str) -> tuple[str, bool]:
        """The text that a session accepts after a list, and whether it is a confirmed one."""
        confirmed = self._plan.confirmed(line)
        return (winner, False) if confirmed is None else (confirmed, True)
