"""One queue in front of one scoring thread.

What is waiting when the thread is free is scored together, up to a budget of tokens; nothing waits for
company. Each job has its own future, so a failure reaches its callers and nobody else, and a job whose caller
left is not scored.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from models.errors import ModelFailedError, RescoringError
from models.session import SessionModel
from service.errors import (
    NotReadyError,
    QueueFullError,
    RequestTooLargeError,
    ScoringTooSlowError,
    WaitedTooLongError,
)
from service.jobs import Job, Results, Scorer
from service.settings import Limits
from service.telemetry import Telemetry

_MAX_RETRY_AFTER_S = 60
_RATE_MEMORY = 0.8


@dataclass(eq=False, slots=True)
class _Waiting:
    """A job in the queue. since and deadline are times of the event loop's clock, in seconds."""

    job: Job
    future: "asyncio.Future[Results]"
    since: float
    deadline: float
    started: bool = False


class Batcher:
    """The queue and its worker.

    Lives on one event loop, between `start` and `stop`; only the scoring itself runs on a thread of its own.
    """

    def __init__(self, scorer: Scorer, limits: Limits, telemetry: Telemetry) -> None:
        self._scorer = scorer
        self._limits = limits
        self._telemetry = telemetry
        self._waiting: dict[_Waiting, None] = {}
        self._tokens = 0
        self._tokens_per_s = 0.0
        self._wake = asyncio.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="scoring")
        self._worker: asyncio.Task[None] | None = None
        self._step_began: float | None = None
        self._last_step_succeeded: bool | None = None
        telemetry.watch_queue(lambda: len(self._waiting), lambda: self._tokens)

    def start(self) -> None:
        """Start the worker on the running event loop."""
        self._worker = asyncio.create_task(self._work(), name="batching")

    def stop(self) -> None:
        """Stop the worker; whoever still waits is told so. A step that is running is not waited for."""
        if self._worker is not None:
            self._worker.cancel()
        for item in list(self._waiting):
            self._remove(item)
            _fail(item, NotReadyError("the service is stopping"))
        self._executor.shutdown(wait=False, cancel_futures=True)

    @property
    def alive(self) -> bool:
        """Whether there is a worker to take what waits."""
        return self._worker is not None and not self._worker.done()

    @property
    def last_step_succeeded(self) -> bool | None:
        """Whether the last step scored something; None before the first step."""
        return self._last_step_succeeded

    def busy_s(self) -> float:
        """How long the running step has taken so far, in seconds; 0 when none is running."""
        # Set and cleared on the scoring thread, so read once: a step outlives even the worker that began it.
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    async def score(self, jobs: Sequence[Job], deadline: float) -> list[Results]:
        """Score jobs: all of them, or an error. Leaving early takes what has not begun out of the queue.

        deadline: time of the event loop's clock, in seconds

        Raises QueueFullError, RequestTooLargeError, WaitedTooLongError, ScoringTooSlowError, or
        ModelFailedError.
        """
        items = self._admit(jobs, deadline)
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.gather(*(item.future for item in items))
        except TimeoutError:
            allowed = f"{self._limits.deadline_s:g} s"
            if any(item.started for item in items):
                raise ScoringTooSlowError(f"scoring took longer than {allowed}; send fewer utterances") from None
            raise WaitedTooLongError(
                f"the request waited in the queue for {allowed}", retry_after_s=self.retry_after_s()
            ) from None
        finally:
            for item in items:
                item.future.cancel()
                self._remove(item)

    def retry_after_s(self) -> int:
        """In how many whole seconds the queue as it stands will have been worked off, at the recent rate."""
        if not self._tokens_per_s:
            return 1
        return max(1, min(_MAX_RETRY_AFTER_S, math.ceil(self._tokens / self._tokens_per_s)))

    def _admit(self, jobs: Sequence[Job], deadline: float) -> list[_Waiting]:
        tokens = sum(job.tokens for job in jobs)
        if tokens > self._limits.max_queue_tokens or len(jobs) > self._limits.max_queue_lists:
            raise RequestTooLargeError(
                f"the request holds {len(jobs)} lists of {tokens} words and sentence ends; at most "
                f"{self._limits.max_queue_lists} of {self._limits.max_queue_tokens} are taken"
            )
        if not self.alive:
            raise NotReadyError("the service is not running")
        if (
            self._tokens + tokens > self._limits.max_queue_tokens
            or len(self._waiting) + len(jobs) > self._limits.max_queue_lists
        ):
            raise QueueFullError("the queue is full; try again later", retry_after_s=self.retry_after_s())
        loop = asyncio.get_running_loop()
        items = [_Waiting(job, loop.create_future(), loop.time(), deadline) for job in jobs]
        self._waiting.update(dict.fromkeys(items))
        self._tokens += tokens
        self._wake.set()
        return items

    def _remove(self, item: _Waiting) -> None:
        if item in self._waiting:
            del self._waiting[item]
            self._tokens -= item.job.tokens

    def _take(self) -> list[_Waiting]:
        """The next batch: the job that waited longest, and what may be scored with it within the budget.

        The budget counts padding, hypotheses x longest hypothesis, since that is what memory is used for. The
        oldest job is taken whatever its size, so none is overtaken for ever.
        """
        now = asyncio.get_running_loop().time()
        batch: list[_Waiting] = []
        hypotheses, longest = 0, 0
        for item in list(self._waiting):
            if item.deadline <= now:
                self._remove(item)
                continue
            job = item.job
            size = (hypotheses + job.hypotheses) * max(longest, job.longest)
            if batch and (job.carried or job.company != batch[0].job.company or size > self._limits.max_batch_tokens):
                continue
            batch.append(item)
            self._remove(item)
            item.started = True
            self._telemetry.observe_stage("queue", now - item.since)
            hypotheses, longest = hypotheses + job.hypotheses, max(longest, job.longest)
            if job.carried or size >= self._limits.max_batch_tokens:
                break
        return batch

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            batch = self._take()
            if not batch:
                self._wake.clear()
                continue
            begin = time.monotonic()
            outcomes: list[Results | RescoringError]
            try:
                outcomes = await loop.run_in_executor(self._executor, self._run, batch)
            except asyncio.CancelledError:
                for item in batch:
                    _fail(item, NotReadyError("the service is stopping"))
                raise
            except Exception:
                self._telemetry.log.exception("step failed")
                outcomes = [ModelFailedError("scoring failed") for _ in batch]
            self._deliver(batch, outcomes, time.monotonic() - begin)

    def _deliver(self, batch: list[_Waiting], outcomes: list[Results | RescoringError], seconds: float) -> None:
        failures = 0
        for item, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, RescoringError):
                failures += 1
                _fail(item, outcome)
            elif not item.future.done():
                item.future.set_result(outcome)
        self._last_step_succeeded = failures < len(batch)
        tokens = sum(item.job.tokens for item in batch)
        lists = sum(len(item.job.lists) for item in batch)
        rate = tokens / max(seconds, 1e-6)
        self._tokens_per_s = _RATE_MEMORY * (self._tokens_per_s or rate) + (1 - _RATE_MEMORY) * rate
        self._telemetry.observe_step(lists=lists, tokens=tokens, seconds=seconds, failures=failures)

    def _run(self, batch: list[_Waiting]) -> list[Results | RescoringError]:
        """On the scoring thread: an outcome per item, whatever happens.

        A batch that fails is scored again job by job, so that one job's failure does not become its
        neighbours'.
        """
        self._step_began = time.monotonic()
        try:
            return self._outcomes(batch)
        finally:
            self._step_began = None

    def _outcomes(self, batch: list[_Waiting]) -> list[Results | RescoringError]:
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
                carried = self._scorer.rescore_carried(first.lists, first.weights, word_scores=first.word_scores)
                return [carried]
            if first.place is not None:
                return self._attempt_sessions(jobs, first.place.model)
            results = self._scorer.rescore(
                [job.lists[0] for job in jobs], [job.weights for job in jobs], word_scores=first.word_scores
            )
            return [[result] for _, result in zip(jobs, results, strict=True)]
        except RescoringError as error:
            self._telemetry.log.exception("scoring failed", jobs=len(jobs))
            return error
        except BaseException as error:
            self._telemetry.log.exception("scoring failed", jobs=len(jobs))
            return ModelFailedError(f"scoring failed: {type(error).__name__}")

    def _attempt_sessions(self, jobs: list[Job], model: SessionModel) -> list[Results]:
        """Score lists of sessions of one kind, each from its own state."""
        states = [job.place.state for job in jobs if job.place is not None]
        results = model.rescore([job.lists[0] for job in jobs], states, word_scores=jobs[0].word_scores)
        return [[result] for _, result in zip(jobs, results, strict=True)]


def _fail(item: _Waiting, error: Exception) -> None:
    if not item.future.done():
        item.future.set_exception(error)
