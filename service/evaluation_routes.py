"""The endpoint of evaluations: translate in, await, translate out."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from clients.evaluation.evaluator import Choices
from clients.evaluation.normalisation import Normalisation
from models.bundle import Bundle
from models.wire import LOG_UNITS
from service import openapi_evaluation as parts
from service.engine import SMALL_BYTES, Engine
from service.errors import RequestTooLargeError, TooManyEvaluationsError
from service.evaluation import Asked, Evaluation
from service.evaluation_events import EventStream, Running
from service.evaluation_lines import Lines
from service.evaluation_schemas import EvaluateRequest, EvaluationSettings, unknown_in_evaluate
from service.evaluation_sources import Listed, Streamed, read_settings
from service.evaluation_threads import EvaluationThreads
from service.middleware import EVALUATE_PATH, NDJSON, RECORD, media_type, run_while_connected
from service.request_reader import RequestReader
from service.routes import JSON, check_media_type
from service.schemas import Utterance
from service.settings import Limits
from service.telemetry import RequestRecord, Telemetry

_RETRY_AFTER_S = 10


class EvaluationRoutes:
    """The handler of one app's evaluations.

    draining: whether the service is about to stop
    """

    def __init__(
        self, bundle: Bundle, limits: Limits, engine: Engine, telemetry: Telemetry, draining: Callable[[], bool]
    ) -> None:
        self._bundle = bundle
        self._limits = limits
        self._engine = engine
        self._telemetry = telemetry
        self._draining = draining
        self._reader = RequestReader(EvaluateRequest, unknown_in_evaluate, ("utterances", Utterance))
        self._running = 0
        self._threads = EvaluationThreads(limits.max_evaluations)

    @property
    def busy(self) -> bool:
        """Whether a thread is computing."""
        return self._threads.busy

    def router(self) -> APIRouter:
        """The endpoint with its documentation."""
        router = APIRouter(redirect_slashes=False)
        router.add_api_route(EVALUATE_PATH, self.evaluate, methods=["POST"], **parts.EVALUATE)
        return router

    def stop(self) -> None:
        """Take no more evaluations."""
        self._threads.stop()

    async def evaluate(self, request: Request) -> Response:
        """Rescore a set of N-best lists with references, and evaluate the ranking."""
        if media_type(request.scope) == NDJSON:
            check_media_type(request, NDJSON)
            return EventStream(self._open_lines, self._telemetry, self._draining)
        check_media_type(request)
        body = await request.body()
        document = await self._engine.aside(len(body) > SMALL_BYTES, lambda: self._reader.read(body))
        if len(document["utterances"]) > self._limits.max_utterances:
            raise RequestTooLargeError(
                f"the request holds {len(document['utterances'])} utterances; at most {self._limits.max_utterances} "
                f"are taken in one document, and {self._limits.max_evaluation_lines} as {NDJSON}"
            )
        source = Listed(document["utterances"], len(body))
        if NDJSON in request.headers.get("accept", ""):

            @asynccontextmanager
            async def opened(_: Receive) -> AsyncIterator[Running]:
                with self._slot():
                    yield Running(self._evaluation(document), source)

            return EventStream(opened, self._telemetry, self._draining)
        with self._slot():
            evaluation = self._evaluation(document)
            record: RequestRecord = request.scope[RECORD]
            try:
                result = await run_while_connected(request.receive, evaluation.run(source))
            finally:
                record.fields |= evaluation.record()
        return Response(orjson.dumps(result), media_type=JSON)

    @asynccontextmanager
    async def _open_lines(self, receive: Receive) -> AsyncIterator[Running]:
        with self._slot():
            lines = Lines(receive, self._limits)
            evaluation = self._evaluation(await read_settings(lines))
            yield Running(evaluation, Streamed(lines, self._engine))

    @contextmanager
    def _slot(self) -> Iterator[None]:
        """One of the evaluations that may run at a time. Raises TooManyEvaluationsError where all are taken."""
        if self._running >= self._limits.max_evaluations:
            raise TooManyEvaluationsError(
                f"{self._running} evaluations are running, as many as may; try again later",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def _evaluation(self, settings: EvaluationSettings | EvaluateRequest) -> Evaluation:
        weights, decision = self._engine.choices(settings.get("options", {}))
        breakdowns = settings.get("breakdowns")
        asked = Asked(
            set_name=settings.get("set_name", "evaluation"),
            system=settings.get("system", "rescored"),
            weights=weights,
            decision=decision,
            unit=LOG_UNITS[settings.get("log_base", "e")],
            choices=_choices(settings),
            skip=settings.get("skip_missing_reference", False),
            breakdowns=None if breakdowns is None else frozenset(breakdowns),
            bundle=self._bundle.sha256,
        )
        return Evaluation(asked, self._engine, self._limits, self._telemetry, self._threads)


def _choices(settings: EvaluationSettings | EvaluateRequest) -> Choices:
    """What was chosen; what was left out is as in `nbest evaluate`."""
    normalisation = settings.get("normalisation", {})
    usual = Choices()
    return Choices(
        normalisation=Normalisation(
            normalisation.get("unicode_form"),
            normalisation.get("lowercase", False),
            normalisation.get("strip_punctuation", False),
            frozenset(normalisation.get("dropped_words", [])),
        ),
        resamples=settings.get("resamples", usual.resamples),
        seed=settings.get("seed", usual.seed),
        boundary_words=settings.get("boundary_words", usual.boundary_words),
        confusions=settings.get("confusions", usual.confusions),
        worst=settings.get("worst", usual.worst),
    )
