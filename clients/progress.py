"""What `nbest rescore` tells a person: a bar, a note when the server is away, one line at the end."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from .errors import ServerError


class Reporter:
    """Reports to standard error; the bar is shown on a terminal only.

    total: the size of the work; None where it is not known
    quiet: say nothing that is no error
    """

    def __init__(self, total: int | None, *, quiet: bool = False, retry_seconds: float = 0.0) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=quiet or not sys.stderr.isatty(),
            transient=True,
        )
        self._task = self._bar.add_task("rescoring", total=total, speed="")
        self._quiet = quiet
        self._retry_seconds = retry_seconds
        self._away = False
        self._started = time.monotonic()
        self.utterances = 0
        self.words = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self, utterances: int, words: int, position: int) -> None:
        """So many more utterances and hypothesis words are done; `position` of the total has been read."""
        self.utterances += utterances
        self.words += words
        self._away = False
        self._bar.update(
            self._task,
            completed=position,
            description=f"{self.utterances:,} utterances",
            speed=f"{self.words / self._seconds():,.0f} words/s",
        )

    def retrying(self, failure: ServerError, delay: float) -> None:
        """A request failed and is tried again in `delay` seconds; said once each time the server is away."""
        if not self._away:
            self.note(f"{failure}; trying again in {delay:.1f} s, for up to {self._retry_seconds:g} s")
        self._away = True

    def note(self, text: str) -> None:
        """Say one line."""
        if not self._quiet:
            self._console.print(f"nbest: {text}")

    def summary(self, kept: int) -> None:
        """Say what was done; `kept` utterances were there from an earlier run."""
        seconds = self._seconds()
        before = f" ({kept:,} more were kept from an earlier run)" if kept else ""
        self.note(
            f"{self.utterances:,} utterances{before}, {self.words:,} hypothesis words in {seconds:.1f} s "
            f"({self.words / seconds:,.0f} words/s)"
        )

    def _seconds(self) -> float:
        return max(time.monotonic() - self._started, 1e-9)
