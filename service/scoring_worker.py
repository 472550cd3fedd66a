"""One scoring thread's own: whom it scores for, and what becomes of a batch, whatever happens."""

import asyncio
import threading
from dataclasses import dataclass, field

from structlog.typing import FilteringBoundLogger

from models.errors import ModelFailedError, RescoringError
from models.session import SessionModel
from service.jobs import Job, Results, Scorer


@dataclass(eq=False, slots=True)
class Waiting:
    """A job in the queue. Times in seconds: the deadline by the event loop's clock, the others by time.monotonic.

    only: the number of the worker that must take it; None where any may
    """

    job: Job
    future: "asyncio.Future[Results]"
    since: float
    deadline: float
    only: int | None = None
    began: float | None = None
    ended: float | None = None

    def fail(self, error: Exception) -> None:
        """Tell the caller, where one still waits."""
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(eq=False, slots=True)
class Worker:
    """A scorer and its thread. The queue fills in what the worker is at.

    number:              its place among the workers
    running:             the batch that is being scored, or was last
    step_began:          when that was begun, by time.monotonic in seconds; None when none is being scored
    step_ends:           when it is foreseen to end
    last_step_succeeded: whether the last step scored something; None before the first step
    """

    number: int
    scorer: Scorer
    log: FilteringBoundLogger
    thread: threading.Thread | None = None
    running: list[Waiting] = field(default_factory=list)
    step_began: float | None = None
    step_ends: float | None = None
    last_step_succeeded: bool | None = None

    @property
    def alive(self) -> bool:
        """Whether there is a thread to take what waits."""
        return self.thread is not None and self.thread.is_alive()

    def outcomes(self, batch: list[Waiting]) -> list[Results | RescoringError]:
        """On the worker's thread: an outcome per item, whatever happens.

        A batch that fails is scored again job by job, so that one job's failure does not become its neighbours'.
        """
        try:
            return self._outcomes(batch)
        finally:
            self.step_began = self.step_ends = None

    def _outcomes(self, batch: list[Waiting]) -> list[Results | RescoringError]:
        outcome = self._attempt([item.job for item in batch])
        if not isinstance(outcome, RescoringError):
            return list(outcome)
        if len(batch) == 1:
            return [outcome]
        outcomes: list[Results | RescoringError] = []
        for item in batch:
            alone = outcome if item.future.done() else self._attempt([item.job])
            outcomes.append(alone if isinstance(alone, RescoringError) else alone[0])
        return outcomes

    def _attempt(self, jobs: list[Job]) -> list[Results] | RescoringError:
        first = jobs[0]
        try:
            if first.carried:
                carried = self.scorer.rescore_carried(first.lists, first.weights, word_scores=first.word_scores)
                return [carried]
            if first.place is not None:
                return self._attempt_sessions(jobs, first.place.model)
            results = self.scorer.rescore(
                [job.lists[0] for job in jobs], [job.weights for job in jobs], word_scores=first.word_scores
            )
            return [[result] for _, result in zip(jobs, results, strict=True)]
        except RescoringError as error:
            self.log.exception("scoring failed", jobs=len(jobs), worker=self.number)
            return error
        except BaseException as error:
            self.log.exception("scoring failed", jobs=len(jobs), worker=self.number)
            return ModelFailedError(f"scoring failed: {type(error).__name__}")

    def _attempt_sessions(self, jobs: list[Job], model: SessionModel) -> list[Results]:
        """Score lists of sessions of one kind, each from its own state."""
        states = [job.place.state for job in jobs if job.place is not None]
        results = model.rescore([job.lists[0] for job in jobs], states, word_scores=jobs[0].word_scores)
        return [[result] for _, result in zip(jobs, results, strict=True)]
