"""What the service says of its evaluations: how many run, how they end, and how much they have counted."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge

from service.errors import ClientLeftError


class EvaluationMetrics:
    """The metrics of one app's evaluations. utterances: those counted; running: evaluations at this moment."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.running = Gauge("nbest_evaluations_running", "Evaluations at this moment.", registry=registry)
        self.utterances = Counter("nbest_evaluated_utterances", "Utterances counted in evaluations.", registry=registry)
        self._ended = Counter(
            "nbest_evaluations",
            "Evaluations that ended: with a result, with an error, or because caller or service went away.",
            ["outcome"],
            registry=registry,
        )
        for outcome in ("result", "error", "stopped"):
            self._ended.labels(outcome)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Count an evaluation, while it runs and by how it ends."""
        outcome = "error"
        self.running.inc()
        try:
            yield
            outcome = "result"
        except (ClientLeftError, asyncio.CancelledError):
            outcome = "stopped"
            raise
        finally:
            self.running.dec()
            self._ended.labels(outcome).inc()
