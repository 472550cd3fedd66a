"""One evaluation: utterances scored a few at a time through the queue, and counted in the order in which they came.

The counting is that of `clients.evaluation`: there is one, for files and for the service. Of an utterance that is
counted some numbers are kept, so an evaluation holds no more lists than are in the queue at the time.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from clients.errors import EvaluationError
from clients.evaluation.as_json import to_json
from clients.evaluation.evaluator import Choices, Evaluator
from clients.evaluation.summary import summarise
from clients.evaluation.tally import SystemTally
from clients.evaluation.utterance import Utterance as Evaluated
from models.bundle import weights_to_json
from models.decision import Decision
from models.errors import RescoringError
from models.ranking import RescoredList
from models.score import Weights
from models.scored_lists import PreparedList
from service.engine import SMALL_BYTES, Engine
from service.errors import (
    CannotEvaluateError,
    FieldError,
    InvalidRequestError,
    QueueFullError,
    RefusedListError,
    RequestTooLargeError,
    WaitedTooLongError,
)
from service.evaluation_threads import EvaluationThreads
from service.jobs import Job
from service.schemas import Utterance
from service.settings import Limits
from service.telemetry import Telemetry

T = TypeVar("T")

_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be evaluated, and how.

    unit:       what one unit of the scores sent is in natural logs
    skip:       leave out utterances without a reference
    breakdowns: the groups to tell of; None for all
    bundle:     hash of the bundle
    """

    set_name: str
    system: str
    weights: Weights
    decision: Decision
    unit: float
    choices: Choices
    skip: bool
    breakdowns: frozenset[str] | None
    bundle: str


@dataclass(frozen=True, slots=True)
class Given:
    """An utterance as it was sent.

    place:  the number of where it stood
    called: what such a place is called, with {} for the number
    size:   in bytes
    """

    utterance: Utterance
    place: int
    called: str
    size: int

    @property
    def field(self) -> str:
        """Where it stood, such as "line 7" or "utterances[6]"."""
        return self.called.format(self.place)


@dataclass(frozen=True, slots=True)
class _Scoring:
    tokens: int
    task: "asyncio.Task[RescoredList]"


@dataclass(slots=True)
class Progress:
    """How far an evaluation is. errors, first_pass_errors: of words, in the utterances that are done."""

    stage: str = "scoring"
    done: int = 0
    skipped: int = 0
    words: int = 0
    errors: int = 0
    first_pass_errors: int = 0


class Evaluation:
    """An evaluation that runs once. threads: where it counts."""

    def __init__(
        self, asked: Asked, engine: Engine, limits: Limits, telemetry: Telemetry, threads: EvaluationThreads
    ) -> None:
        self._asked = asked
        self._engine = engine
        self._limits = limits
        self._telemetry = telemetry
        self._threads = threads
        self._evaluator = Evaluator(asked.choices)
        self._places: dict[str, int] = {}
        self._queued: deque[_Scoring] = deque()
        self.progress = Progress()
        try:
            self._evaluator.add_system(asked.system)
        except EvaluationError as error:
            raise CannotEvaluateError(f"system: {error}", errors=[FieldError("system", str(error))]) from error

    async def run(self, source: AsyncIterable[Given]) -> dict[str, Any]:
        """Evaluate all that the source gives; the result as JSON.

        Raises what makes the whole evaluation worthless, naming the utterance: nothing is counted by half.
        """
        with self._telemetry.evaluations.evaluation():
            try:
                async for given in source:
                    await self._take(given)
                while self._queued:
                    await self._settle()
                self.progress.stage = "summarising"
                with self._telemetry.stage("summarise"):
                    return await self._on_thread(self._summary)
            finally:
                for scoring in self._queued:
                    scoring.task.cancel()
                await asyncio.gather(*(scoring.task for scoring in self._queued), return_exceptions=True)

    def record(self) -> dict[str, Any]:
        """What the log says of it."""
        return {"utterances": self.progress.done, "skipped": self.progress.skipped, "words": self.progress.words}

    async def _take(self, given: Given) -> None:
        """Put an utterance into the queue, once there is room among those of this evaluation."""
        self._check(given)
        if given.utterance.get("reference") is None:
            self.progress.skipped += 1
            return
        asked = self._asked
        prepared = await self._engine.aside(
            given.size > SMALL_BYTES,
            lambda: self._engine.prepare(given.utterance, given.field, asked.unit, asked.decision),
        )
        while self._queued and not self._has_room(prepared.tokens):
            await self._settle()
        task = asyncio.create_task(self._score(prepared, given.field))
        self._queued.append(_Scoring(prepared.tokens, task))

    def _check(self, given: Given) -> None:
        utterance, name = given.utterance, given.utterance["id"]
        before = self._places.setdefault(name, given.place)
        if before != given.place:
            message = f"the id of {given.called.format(before)} already; ids are unique within a set"
            raise _refusal(f"{given.field}.id", message, name)
        if utterance.get("reference") is None and not self._asked.skip:
            message = "missing; skip_missing_reference leaves such utterances out"
            raise _refusal(f"{given.field}.reference", message, name)
        counted = len(self._places) - self.progress.skipped
        if counted * self._asked.choices.resamples > self._limits.max_evaluation_draws:
            raise RequestTooLargeError(
                f"{given.field}: {counted} utterances are too many for {self._asked.choices.resamples} resamples; ask "
                "for fewer"
            )

    def _has_room(self, tokens: int) -> bool:
        """Whether so many tokens more may be queued: others shall not wait long behind an evaluation."""
        queued = sum(scoring.tokens for scoring in self._queued)
        return len(self._queued) < self._limits.evaluation_lists and queued + tokens <= self._limits.max_batch_tokens

    async def _settle(self) -> None:
        """Count the utterance that was queued first, and with it those behind it that are scored by then."""
        results = [await self._queued[0].task]
        self._queued.popleft()
        while self._queued and self._queued[0].task.done():
            results.append(self._queued.popleft().task.result())
        with self._telemetry.stage("count"):
            await self._on_thread(lambda: self._count(results))
        self._telemetry.evaluations.utterances.inc(len(results))

    async def _score(self, prepared: PreparedList, field: str) -> RescoredList:
        """The ranking of a list. While the queue has no room, try again: an evaluation is more patient than others."""
        loop = asyncio.get_running_loop()
        job = Job((prepared,), self._asked.weights)
        ends = loop.time() + self._limits.evaluation_patience_s
        while True:
            try:
                ((result,),) = await self._engine.batcher.score([job], loop.time() + self._limits.deadline_s)
                break
            except (QueueFullError, WaitedTooLongError) as error:
                left_s = ends - loop.time()
                if left_s <= 0:
                    raise
                await asyncio.sleep(min(error.retry_after_s or _PAUSE_S, left_s))
        if isinstance(result, RescoringError):
            raise RefusedListError(result, [FieldError(field, str(result), prepared.nbest.utterance_id)])
        return result

    def _count(self, results: Sequence[RescoredList]) -> None:
        """On the thread: align and count."""
        evaluator, progress = self._evaluator, self.progress
        for result in results:
            evaluator.add(_evaluated(result))
            row = len(evaluator.rows) - 1
            progress.words += evaluator.words[row]
            progress.errors += _errors(evaluator.systems[0], row)
            progress.first_pass_errors += _errors(evaluator.first_pass, row)
            progress.done += 1

    def _summary(self) -> dict[str, Any]:
        """On the thread: all that there is to say."""
        asked = self._asked
        made_with = {
            "bundle": asked.bundle,
            "weights": weights_to_json(asked.weights),
            "state": "reset",
            "decision": asked.decision.rule,
        }
        evaluation = summarise(
            self._evaluator,
            set_name=asked.set_name,
            normalised=True,
            skipped=self.progress.skipped,
            made_with=[made_with],
        )
        if (wanted := asked.breakdowns) is not None:
            evaluation = replace(evaluation, breakdowns=tuple(b for b in evaluation.breakdowns if b.by in wanted))
        return to_json(evaluation)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        try:
            return await self._threads.do(work)
        except EvaluationError as error:
            raise CannotEvaluateError(str(error)) from error


def _evaluated(result: RescoredList) -> Evaluated:
    nbest = result.nbest
    in_order = sorted(result.ranking, key=lambda hypothesis: hypothesis.index)
    return Evaluated(
        nbest.utterance_id,
        result.reference_words or (),
        [hypothesis.words for hypothesis in in_order],
        [[hypothesis.index for hypothesis in result.ranking]],
        nbest.speaker,
        nbest.session_id,
        [None if result.consensus is None else result.consensus.word_confidences.words],
    )


def _errors(tally: SystemTally, row: int) -> int:
    return tally.substitutions[row] + tally.deletions[row] + tally.insertions[row]


def _refusal(field: str, message: str, name: str) -> InvalidRequestError:
    return InvalidRequestError(f"{field}: {message}", errors=[FieldError(field, message, name)])
