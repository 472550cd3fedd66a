"""One queue in front of the scoring threads: one, or one a GPU.

Whatever waits has been prepared already, and a thread takes its next batch itself in the moment that it is free: it
never idles while something waits that it may take, and who comes during a step is in time for the next. What is waiting
is scored together, up to a budget of tokens and of time; nothing waits for company. Each job has its own future, so a
failure reaches its callers and nobody else, and a job whose caller left is not scored.

Where there are several workers, sessions are scored by the first alone: their states and what they learn are on its
device.
"""

import asyncio
import math
import threading
import time
from collections.abc import Hashable, Mapping, Sequence

from models.errors import ModelFailedError, RescoringError
from service.cost_model import Costs, Load
from service.errors import (
    NotReadyError,
    QueueFullError,
    RequestTooLargeError,
    ScoringTooSlowError,
    WaitedTooLongError,
)
from service.jobs import Job, Results, Scorer
from service.scoring_worker import Waiting, Worker
from service.settings import Limits
from service.telemetry import Telemetry
from service.timing import Timing

_MAX_RETRY_AFTER_S = 60
# What is admitted and then misses its deadline has cost others their time, so foretold times are taken for longer.
_CAUTION = 1.25


# Work of one kind that one worker must do, or any may.
_Kind = tuple[int | None, Hashable]


class Batcher:
    """The queue and its workers.

    Lives on one event loop, between `start` and `stop`; only the workers run on threads of their own. What all touch,
    the queue and the costs, is held under one lock, and by a worker for no longer than it takes to look through the
    queue.

    scorer: that of the first worker, who scores sessions
    others: those of the others, one each
    """

    def __init__(self, scorer: Scorer, limits: Limits, telemetry: Telemetry, others: Sequence[Scorer] = ()) -> None:
        self._workers = [Worker(number, own, telemetry.log) for number, own in enumerate((scorer, *others))]
        self._limits = limits
        self._telemetry = telemetry
        self._changed = threading.Condition()
        self._waiting: dict[Waiting, None] = {}
        self._loads: dict[_Kind, Load] = {}
        self._tokens = 0
        self._costs = Costs()
        self._loop: asyncio.AbstractEventLoop | None = None
        # The event loop's clock, seen from the threads.
        self._clock_offset = 0.0
        self._stopping = False
        telemetry.watch_queue(lambda: len(self._waiting), lambda: self._tokens)

    def start(self) -> None:
        """Start the workers, which answer on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._clock_offset = self._loop.time() - time.monotonic()
        for worker in self._workers:
            # A daemon, since a step that does not end must not keep the process.
            name = f"scoring-{worker.number}"
            worker.thread = threading.Thread(target=self._work, args=(worker,), name=name, daemon=True)
            worker.thread.start()

    def stop(self) -> None:
        """Stop the workers; whoever still waits is told so. A step that is running is not waited for."""
        with self._changed:
            self._stopping = True
            left = [*self._waiting, *(item for worker in self._workers for item in worker.running)]
            self._waiting.clear()
            self._loads.clear()
            self._tokens = 0
            self._changed.notify_all()
        for item in left:
            item.fail(NotReadyError("the service is stopping"))

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self._workers)

    @property
    def alive(self) -> bool:
        """Whether all workers are there to take what waits."""
        return not self._stopping and all(worker.alive for worker in self._workers)

    @property
    def last_step_succeeded(self) -> bool | None:
        """Whether every worker's last step scored something; None where one has yet to take its first."""
        known = [worker.last_step_succeeded for worker in self._workers]
        return False if False in known else None if None in known else True

    def busy_s(self) -> float:
        """How long a running step has taken so far, the longest of them, in seconds; 0 when none is running."""
        # Set and cleared on the scoring threads, so read once: a step outlives even the queue.
        began = [moment for worker in self._workers if (moment := worker.step_began) is not None]
        return time.monotonic() - min(began) if began else 0.0

    async def score(self, jobs: Sequence[Job], deadline: float, timing: Timing | None = None) -> list[Results]:
        """Score jobs: all of them, or an error. Leaving early takes what has not begun out of the queue.

        deadline: time of the event loop's clock, in seconds
        timing:   takes up the stages queue, until the first job began, and score, from then to the end of the last

        Raises QueueFullError, RequestTooLargeError, WaitedTooLongError, ScoringTooSlowError, or
        ModelFailedError.
        """
        return await self._score(jobs, [self._place(job) for job in jobs], deadline, timing)

    async def score_everywhere(self, job: Job, deadline: float) -> list[Results]:
        """Have every worker score the same job; else as `score`."""
        several = len(self._workers) > 1
        places = [worker.number if several else None for worker in self._workers]
        return await self._score([job] * len(places), places, deadline, None)

    async def _score(
        self, jobs: Sequence[Job], places: Sequence[int | None], deadline: float, timing: Timing | None
    ) -> list[Results]:
        items = self._admit(jobs, places, deadline)
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

    def _place(self, job: Job) -> int | None:
        """The number of the worker that must score a job; None where any may."""
        return 0 if job.place is not None and len(self._workers) > 1 else None

    def _backlog_s(self, place: int | None = None) -> float:
        """Seconds of work ahead of who comes now: the rest of the steps that run, and what waits, fairly shared.

        place: the worker that must do it, who has at least what nobody else may do for it; None where any may
        """
        now = time.monotonic()
        rests = [max(0.0, (worker.step_ends or now) - now) for worker in self._workers]
        shared = (sum(rests) + self._costs_s(self._loads)) / len(self._workers)
        if place is None:
            return shared
        own = {kind: load for kind, load in self._loads.items() if kind[0] == place}
        return max(shared, rests[place] + self._costs_s(own))

    def _costs_s(self, loads: Mapping[_Kind, Load]) -> float:
        """What loads will take one worker, in seconds."""
        kinds = ((kind, load) for (_, kind), load in loads.items())
        return self._costs.backlog_s(kinds, self._limits.target_step_s)

    def _admit(self, jobs: Sequence[Job], places: Sequence[int | None], deadline: float) -> list[Waiting]:
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
            ahead = self._backlog_s(places[0]) if self._waiting else 0.0
            own = self._costs_s(_loads(jobs, places)) if ahead else 0.0
            late_s = now + _CAUTION * (ahead + own) - deadline
            if ahead and late_s > 0:
                retry_after_s = max(1, min(_MAX_RETRY_AFTER_S, math.ceil(late_s)))
                raise QueueFullError(
                    f"what waits already takes about {ahead:.1f} s: this request would not be answered in time",
                    retry_after_s=retry_after_s,
                )
            items = [
                Waiting(job, loop.create_future(), time.monotonic(), deadline, place)
                for job, place in zip(jobs, places, strict=True)
            ]
            for item in items:
                self._add(item)
            # All of them: the one that would be woken might not be who must take it.
            self._changed.notify_all()
        return items

    def _add(self, item: Waiting) -> None:
        kind, load = (item.only, item.job.company), _load(item.job)
        self._waiting[item] = None
        self._loads[kind] = self._loads.get(kind, Load(0, 0)) + load
        self._tokens += load.tokens

    def _remove(self, item: Waiting) -> None:
        if item not in self._waiting:
            return
        kind, load = (item.only, item.job.company), _load(item.job)
        del self._waiting[item]
        self._loads[kind] -= load
        if not self._loads[kind].lists:
            del self._loads[kind]
        self._tokens -= load.tokens

    def _take(self, worker: Worker) -> list[Waiting]:
        """A worker's next batch: the job that waited longest, and what may be scored with it within the budget.

        The budget of tokens counts padding, hypotheses x longest hypothesis, since that is what memory is used for;
        that of time keeps a step short where that costs nothing, so that few wait long. The oldest job is taken
        whatever its size, so none is overtaken for ever.
        """
        now = time.monotonic()
        batch: list[Waiting] = []
        hypotheses, longest, load, allowed_s = 0, 0, Load(0, 0), math.inf
        for item in list(self._waiting):
            if item.deadline <= now + self._clock_offset:
                self._remove(item)
                continue
            if item.only not in (None, worker.number):
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

    def _work(self, worker: Worker) -> None:
        """On a worker's thread: step after step until told to stop."""
        assert self._loop is not None
        while batch := self._next(worker):
            seconds = -time.monotonic()
            try:
                outcomes = worker.outcomes(batch)
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
                self._loop.call_soon_threadsafe(self._deliver, worker, batch, outcomes, seconds)
            except RuntimeError:
                # The event loop is closed, and with it whoever waited.
                return

    def _next(self, worker: Worker) -> list[Waiting]:
        """A worker's next batch, as soon as there is one; empty when told to stop."""
        with self._changed:
            worker.running = []
            while not self._stopping:
                if batch := self._take(worker):
                    worker.running = batch
                    worker.step_began = time.monotonic()
                    worker.step_ends = worker.step_began + self._costs.seconds(batch[0].job.company, _load_of(batch))
                    return batch
                self._changed.wait()
            return []

    def _deliver(
        self, worker: Worker, batch: list[Waiting], outcomes: list[Results | RescoringError], seconds: float
    ) -> None:
        failures = 0
        for item, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, RescoringError):
                failures += 1
                item.fail(outcome)
            elif not item.future.done():
                item.future.set_result(outcome)
        worker.last_step_succeeded = failures < len(batch)
        for item in batch:
            self._telemetry.observe_stage("queue", (item.began or item.since) - item.since)
        load = _load_of(batch)
        self._telemetry.observe_step(lists=load.lists, tokens=load.tokens, seconds=seconds, failures=failures)


def _load(job: Job) -> Load:
    return Load(len(job.lists), job.tokens)


def _load_of(batch: Sequence[Waiting]) -> Load:
    return sum((_load(item.job) for item in batch), Load(0, 0))


def _loads(jobs: Sequence[Job], places: Sequence[int | None]) -> dict[_Kind, Load]:
    out: dict[_Kind, Load] = {}
    for job, place in zip(jobs, places, strict=True):
        kind = place, job.company
        out[kind] = out.get(kind, Load(0, 0)) + _load(job)
    return out
