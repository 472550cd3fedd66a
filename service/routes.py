"""The endpoints: translate in, await, translate out."""

import asyncio

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from models.bundle import Bundle
from service import openapi_parts as parts
from service.engine import SMALL_BYTES, Engine
from service.errors import NotReadyError, UnsupportedMediaTypeError
from service.middleware import RECORD, run_while_connected
from service.request_reader import RequestReader
from service.schemas import RescoreRequest, Utterance, unknown_fields
from service.settings import Limits
from service.telemetry import METRICS_MEDIA_TYPE, RequestRecord, Telemetry
from service.timing import HEADER, Timing

JSON = "application/json"
# A probe waits in the same queue as everybody, but whoever asks for readiness does not wait as long.
_PROBE_TIMEOUT_S = 5.0


class Routes:
    """The handlers of one app.

    draining: set when the service is about to stop
    """

    def __init__(self, bundle: Bundle, limits: Limits, engine: Engine, telemetry: Telemetry) -> None:
        self._limits = limits
        self._engine = engine
        self._telemetry = telemetry
        self._reader = RequestReader(RescoreRequest, unknown_fields, ("utterances", Utterance))
        self._description = orjson.dumps(bundle.describe())
        self._probe: asyncio.Task[None] | None = None
        self.draining = False

    @property
    def busy(self) -> bool:
        """Whether a step is running."""
        return self._engine.batcher.busy_s() > 0

    def router(self) -> APIRouter:
        """The endpoints with their documentation."""
        router = APIRouter(redirect_slashes=False)
        router.add_api_route("/v1/rescore", self.rescore, methods=["POST"], **parts.RESCORE)
        router.add_api_route("/v1/models", self.models, methods=["GET"], **parts.MODELS)
        router.add_api_route("/health/live", self.live, methods=["GET"], **parts.LIVE)
        router.add_api_route("/health/ready", self.ready, methods=["GET"], **parts.READY)
        router.add_api_route("/metrics", self.metrics, methods=["GET"], **parts.METRICS)
        return router

    async def rescore(self, request: Request) -> Response:
        """Rescore one or many N-best lists."""
        check_media_type(request)
        with self._telemetry.stage("receive"):
            body = await request.body()
        deadline = asyncio.get_running_loop().time() + self._limits.deadline_s
        timing = Timing()
        with self._telemetry.stage("parse", timing):
            document = await self._engine.aside(len(body) > SMALL_BYTES, lambda: self._reader.read(body))
        plan = await self._engine.plan(document, len(body), timing)
        record: RequestRecord = request.scope[RECORD]
        record.fields |= {
            "utterances": len(plan.lists),
            "hypotheses": sum(len(prepared.ids) for prepared in plan.lists),
            "tokens": plan.tokens,
            "bytes": len(body),
            "prepare_ms": round(1e3 * timing.seconds["prepare"], 3),
        }
        answer = await run_while_connected(request.receive, self._engine.answer(plan, deadline, timing))
        return Response(answer, headers={HEADER: timing.header()}, media_type=JSON)

    async def models(self) -> Response:
        """Describe the bundle: models, weights, normaliser, vocabulary."""
        return Response(self._description, media_type=JSON)

    async def live(self) -> Response:
        """Answer while the process serves requests at all."""
        return Response(b'{"status":"alive"}', media_type=JSON)

    async def ready(self) -> Response:
        """Answer 200 when the last step of the models succeeded; else a sentence is scored to find out."""
        if self.draining:
            raise NotReadyError("the service is stopping")
        batcher = self._engine.batcher
        if not batcher.alive:
            raise NotReadyError("the service is not running")
        if batcher.busy_s() > self._limits.deadline_s:
            raise NotReadyError(f"one step has been running for {batcher.busy_s():.0f} s", retry_after_s=1)
        if not batcher.last_step_succeeded:
            await asyncio.shield(self.start_probe())
        return Response(b'{"status":"ready"}', media_type=JSON)

    async def metrics(self) -> Response:
        """The service's metrics for Prometheus."""
        return Response(self._telemetry.metrics(), headers={"content-type": METRICS_MEDIA_TYPE})

    def start_probe(self) -> "asyncio.Task[None]":
        """Score a real sentence; who asks meanwhile shares the probe. It fails with NotReadyError."""
        if self._probe is None or self._probe.done():
            timeout_s = min(_PROBE_TIMEOUT_S, self._limits.deadline_s)
            self._probe = asyncio.create_task(self._engine.probe(timeout_s))
            # A failure that nobody asked after is no more than the next question's answer.
            self._probe.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._probe


def check_media_type(request: Request, expected: str = JSON) -> None:
    """Take what is expected, said or unsaid; refuse packed bodies, and forms, which any page on the web can send."""
    media_type = request.headers.get("content-type", expected).partition(";")[0].strip().lower()
    if media_type != expected and not (expected == JSON and media_type.endswith("+json")):
        raise UnsupportedMediaTypeError(f"send the request as {expected}")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMediaTypeError("send the request without Content-Encoding")
