"""What the service says about itself: metrics, and a JSON line for each request, without its texts."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO

import orjson
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from structlog.typing import FilteringBoundLogger, Processor

from service.evaluation_metrics import EvaluationMetrics
from service.session_metrics import SessionMetrics
from service.timing import Timing

METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STAGES = ("receive", "parse", "prepare", "queue", "score", "encode", "count", "summarise")

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TOKENS = tuple(float(4**power) for power in range(1, 11))
_LISTS = tuple(float(2**power) for power in range(11))


@dataclass
class RequestRecord:
    """What the log says of one request beside method, path and status; handlers fill it in.

    fields: by name; numbers and ids the service gave, never what the client wrote as text
    """

    request_id: str
    fields: dict[str, Any] = field(default_factory=dict)


class Telemetry:
    """The metrics of one app, in a registry of their own, and its log. sessions, evaluations: those about these."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self.log = log
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "nbest_requests", "Requests answered.", ["route", "method", "status"], registry=self.registry
        )
        self._request_seconds = Histogram(
            "nbest_request_seconds", "Time to answer.", ["route"], buckets=_SECONDS, registry=self.registry
        )
        stages = Histogram(
            "nbest_stage_seconds",
            "Time in a stage; score is per step, queue per list; count and summarise are of evaluations.",
            ["stage"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._stages = {stage: stages.labels(stage) for stage in STAGES}
        self._batch_tokens = Histogram(
            "nbest_batch_tokens",
            "Words and sentence ends in a step.",
            buckets=_TOKENS,
            registry=self.registry,
        )
        self._batch_lists = Histogram(
            "nbest_batch_lists", "N-best lists in a step.", buckets=_LISTS, registry=self.registry
        )
        self._failures = Counter("nbest_step_failures", "Units of work that a model failed on.", registry=self.registry)
        self.sessions = SessionMetrics(self.registry)
        self.evaluations = EvaluationMetrics(self.registry)
        self._queue_lists = Gauge("nbest_queue_lists", "Lists waiting to be scored.", registry=self.registry)
        self._queue_tokens = Gauge(
            "nbest_queue_tokens", "Words and sentence ends waiting to be scored.", registry=self.registry
        )

    def watch_queue(self, lists: Callable[[], int], tokens: Callable[[], int]) -> None:
        """Read the queue's length from these whenever the metrics are asked for."""
        self._queue_lists.set_function(lists)
        self._queue_tokens.set_function(tokens)

    @contextlib.contextmanager
    def stage(self, name: str, timing: Timing | None = None) -> Iterator[None]:
        """Time a stage; a stage that fails is timed too. timing: of the request, where it is told its times."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begin
            self.observe_stage(name, seconds)
            if timing is not None:
                timing.add(name, seconds)

    def observe_stage(self, name: str, seconds: float) -> None:
        """Count a stage's time in seconds."""
        self._stages[name].observe(seconds)

    def observe_step(self, *, lists: int, tokens: int, seconds: float, failures: int) -> None:
        """Count one step of the worker."""
        self._batch_lists.observe(lists)
        self._batch_tokens.observe(tokens)
        self.observe_stage("score", seconds)
        if failures:
            self._failures.inc(failures)

    def observe_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answered request. route: its template, so that no client can make a new time series."""
        self._requests.labels(route, method, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def metrics(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return generate_latest(self.registry)


def make_log(stream: TextIO, level: str = "info") -> FilteringBoundLogger:
    """A log that writes one JSON object a line."""
    log: FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(stream),
        processors=[*_shared_processors(), _render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )
    return log


def route_standard_logging(stream: TextIO, level: str = "info") -> None:
    """Write what libraries log, uvicorn above all, as the same kind of line."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_shared_processors(),
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _shared_processors() -> list[Processor]:
    return [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]


def _render(_: Any, __: str, event: Any) -> str:
    return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
