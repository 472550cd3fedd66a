"""One queue in front of one scoring thread.

Whatever waits has been prepared already, and the thread takes its next batch itself in the moment that it is free: it
never idles while something waits, and who comes during a step is in time for the next. What is waiting is scored
together, up to a budget of tokens and of time; nothing waits for company. Each job has its own future, so a failure
reaches its callers and nobody else, and a job whose caller left is not scored.
"""

import asyncio
import math
import threading
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from models.errors import ModelFailedError, RescoringError
from models.session import SessionModel
from service.cost_model import Costs, Load
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
from service.timing import Timing

_MAX_RETRY_AFTER_S = 60
# What is admitted and then misses its deadline has cost others their time, so foretold times are taken for longer.
_CAUTION = 1.25


@dataclass(eq=False, slots=True)
class _Waiting:
    """A job in the queue. Times in seconds: the deadline by the event loop's clock, the others by time.monotonic."""

    job: Job
    future: "asyncio.Future[Results]"
    since: float
    deadline: float
    began: float | None = None
    ended: float | None = None


class Batcher:
    """The queue and its worker.

    Lives on one event loop, between `start` and `stop`; only the worker runs on a thread of its own. What both touch,
    the queue and the costs, is held under one lock, and by the worker for no longer than it takes to look through the
    queue.
    """

    def __init__(self, scorer: Scorer, limits: Limits, telemetry: Telemetry) -> None:
        self._scorer = scorer
        self._limits = limits
        self._telemetry = telemetry
        self._changed = threading.Condition()
        self._waiting: dict[_Waiting, None] = {}
        self._loads: dict[Hashable, Load] = {}
        self._tokens = 0
        self._costs = Costs()
        self._loop: asyncio.AbstractEventLoop | None = None
        # The event loop's clock, seen from the thread.
        self._clock_offset = 0.0
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._running: list[_Waiting] = []
        self._step_began: float | None = None
        self._step_ends: float | None = None
        self._last_step_succeeded: bool | None = None
        telemetry.watch_queue(lambda: len(self._waiting), lambda: self._tokens)

    def start(self) -> None:
        """Start the worker, which answers on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._clock_offset = self._loop.time() - time.monotonic()
        # A daemon, since a step that does not end must not keep the process.
        self._thread = threading.Thread(target=self._work, name="scoring", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the worker; whoever still waits is told so. A step that is running is not waited for."""
        with self._changed:
            self._stopping = True
            left = [*self._waiting, *self._running]
            self._waiting.clear()
            self._loads.clear()
            self._tokens = 0
            self._changed.notify()
        for item in left:
            _fail(item, NotReadyError("the service is stopping"))

    @property
    def alive(self) -> bool:
        """Whether there is a worker to take what waits."""
        return self._thread is not None and self._thread.is_alive() and not self._stopping

    @property
    def last_step_succeeded(self) -> bool | None:
        """Whether the last step scored something; None before the first step."""
        return self._last_step_succeeded

    def busy_s(self) -> float:
        """How long the running step has taken so far, in seconds; 0 when none is running."""
        # Set and cleared on the scoring thread, so read once: a step outlives even the queue.
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    async def score(self, jobs: Sequence[Job], deadline: float, timing: Timing | None = None) -> list[Results]:
        """Score jobs: all of them, or an error. Leaving early takes what has not begun out of the queue.

        deadline: time of the event loop's clock, in seconds
        timing:   takes up the stages queue, until the first job began, and score, from then to the end of the last

        Raises QueueFullError, RequestTooLargeError, WaitedTooLongError, ScoringTooSlowError, or
        ModelFailedError.
        """
        items = self._admit(jobs, deadline)
        try:
            async with asyncio.timeout_at(deadline):
                results = await asyncio.gather(*(item.future for item in items))
        except TimeoutError:
            allowed = f"{self._limits.deadline_s:g} s"
            if any(item.began is not None for item in items):
                raise ScoringTooSlowError(f"scoring took longer than {allowed}; send fewer utterances") from None
            raise WaitedTooLongError(
                f"the request waited in the queue for {allowed}", retry_after_s=self.retry_after_s()
            ) from None
        finally:
            for item in items:
                item.future.cancel()
            with self._changed:
                for item in items:
                    self._remove(item)
        if timing is not None:
            began = min(item.began or item.since for item in items)
            timing.add("queue", began - items[0].since)
            timing.add("score", max(item.ended or began for item in items) - began)
        return results

    def retry_after_s(self) -> int:
        """In how many whole seconds the queue as it stands will have been worked off, as far as steps are known."""
        with self._changed:
            seconds = self._backlog_s()
        return max(1, min(_MAX_RETRY_AFTER_S, math.ceil(seconds)))

    def _backlog_s(self) -> float:
        """Seconds of work ahead of who comes now: the rest of the step that runs, and what waits."""
        ends = self._step_ends
        running = 0.0 if ends is None else max(0.0, ends - time.monotonic())
        return running + self._costs.backlog_s(self._loads.items(), self._limits.target_step_s)

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
        now = loop.time()
        with self._changed:
            # Where nobody waits the request is taken whatever is foretold of it: so the costs go on being learnt.
            ahead = self._backlog_s() if self._waiting else 0.0
            own = self._costs.backlog_s(_loads(jobs).items(), self._limits.target_step_s) if ahead else 0.0
            late_s = now + _CAUTION * (ahead + own) - deadline
            if ahead and late_s > 0:
                retry_after_s = max(1, min(_MAX_RETRY_AFTER_S, math.ceil(late_s)))
                raise QueueFullError(
                    f"what waits already takes about {ahead:.1f} s: this request would not be answered in time",
                    retry_after_s=retry_after_s,
                )
            items = [_Waiting(job, loop.create_future(), time.monotonic(), deadline) for job in jobs]
            for item in items:
                self._add(item)
            self._changed.notify()
        return items

    def _add(self, item: _Waiting) -> None:
        kind, load = item.job.company, _load(item.job)
        self._waiting[item] = None
        self._loads[kind] = self._loads.get(kind, Load(0, 0)) + load
        self._tokens += load.tokens

    def _remove(self, item: _Waiting) -> None:
        if item not in self._waiting:
            return
        kind, load = item.job.company, _load(item.job)
        del self._waiting[item]
        self._loads[kind] -= load
        if not self._loads[kind].lists:
            del self._loads[kind]
        self._tokens -= load.tokens

    def _take(self) -> list[_Waiting]:
        """The next batch: the job that waited longest, and what may be scored with it within the budget.

        The budget of tokens counts padding, hypotheses x longest hypothesis, since that is what memory is used for;
        that of time keeps a step short where that costs nothing, so that few wait long. The oldest job is taken
        whatever its size, so none is overtaken for ever.
        """
        now = time.monotonic()
        batch: list[_Waiting] = []
        hypotheses, longest, load, allowed_s = 0, 0, Load(0, 0), math.inf
        for item in list(self._waiting):
            if item.deadline <= now + self._clock_offset:
                self._remove(item)
                continue
            job = item.job
            size = (hypotheses + job.hypotheses) * max(longest, job.longest)
            if batch and (
                job.carried
                or job.company != batch[0].job.company
                or size > self._limits.max_batch_tokens
                or self._costs.seconds(job.company, load + _load(job)) > allowed_s
            ):
                continue
            if not batch:
                allowed_s = self._costs.step_limit_s(job.company, self._limits.target_step_s)
            batch.append(item)
            self._remove(item)
            item.began = now
            hypotheses, longest, load = hypotheses + job.hypotheses, max(longest, job.longest), load + _load(job)
            if job.carried or size >= self._limits.max_batch_tokens:
                break
        return batch

    def _work(self) -> None:
        """On the scoring thread: step after step until told to stop."""
        assert self._loop is not None
        while batch := self._next():
            seconds = -time.monotonic()
            try:
                outcomes = self._run(batch)
            except BaseException:
                self._telemetry.log.exception("step failed")
                outcomes = [ModelFailedError("scoring failed") for _ in batch]
            seconds += time.monotonic()
            for item in batch:
                item.ended = time.monotonic()
            if not any(isinstance(outcome, RescoringError) for outcome in outcomes):
                with self._changed:
                    self._costs.observe(batch[0].job.company, _load_of(batch), seconds)
            try:
                self._loop.call_soon_threadsafe(self._deliver, batch, outcomes, seconds)
            except RuntimeError:
                # The event loop is closed, and with it whoever waited.
                return

    def _next(self) -> list[_Waiting]:
        """The next batch, as soon as there is one; empty when told to stop."""
        with self._changed:
            self._running = []
            while not self._stopping:
                if batch := self._take():
                    self._running = batch
                    self._step_began = time.monotonic()
                    self._step_ends = self._step_began + self._costs.seconds(batch[0].job.company, _load_of(batch))
                    return batch
                self._changed.wait()
            return []

    def _deliver(self, batch: list[_Waiting], outcomes: list[Results | RescoringError], seconds: float) -> None:
        failures = 0
        for item, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, RescoringError):
                failures += 1
                _fail(item, outcome)
            elif not item.future.done():
                item.future.set_result(outcome)
        self._last_step_succeeded = failures < len(batch)
        for item in batch:
            self._telemetry.observe_stage("queue", (item.began or item.since) - item.since)
        load = _load_of(batch)
        self._telemetry.observe_step(lists=load.lists, tokens=load.tokens, seconds=seconds, failures=failures)

    def _run(self, batch: list[_Waiting]) -> list[Results | RescoringError]:
        """On the scoring thread: an outcome per item, whatever happens.

        A batch that fails is scored again job by job, so that one job's failure does not become its
        neighbours'.
        """
        try:
            return self._outcomes(batch)
        finally:
            self._step_began = self._step_ends = None

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


def _load(job: Job) -> Load:
    return Load(len(job.lists), job.tokens)


def _load_of(batch: Sequence[_Waiting]) -> Load:
    return sum((_load(item.job) for item in batch), Load(0, 0))


def _loads(jobs: Sequence[Job]) -> dict[Hashable, Load]:
    out: dict[Hashable, Load] = {}
    for job in jobs:
        out[job.company] = out.get(job.company, Load(0, 0)) + _load(job)
    return out
