"""What the service says of its sessions: how many, what they hold, what comes and goes, and what they learn."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from service.timing import Timing

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class SessionMetrics:
    """The metrics of one app's sessions.

    live:     sessions in the store, as last counted
    evicted:  states that left memory for lack of room; expired: sessions let go because nobody used them
    restored: states made from the store, as a snapshot and the log after it
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.live = Gauge("nbest_sessions", "Sessions in the store, as last counted.", registry=registry)
        self._held = Gauge("nbest_sessions_in_memory", "Sessions whose state is in memory.", registry=registry)
        self._bytes = Gauge("nbest_session_memory_bytes", "What sessions' states take in memory.", registry=registry)
        self.evicted = Counter(
            "nbest_session_evictions", "States that left memory for lack of room.", registry=registry
        )
        self.restored = Counter("nbest_session_restores", "States made from the store.", registry=registry)
        self.expired = Counter("nbest_session_expirations", "Sessions that expired.", registry=registry)
        self._lessons = Counter(
            "nbest_session_lessons",
            "Accepted utterances: learnt from, undone because that did harm, or not to be learnt from.",
            ["outcome"],
            registry=registry,
        )
        self._commit = Histogram(
            "nbest_session_commit_seconds",
            "Time to accept an utterance: to learn from it and to make it durable.",
            buckets=_SECONDS,
            registry=registry,
        )
        for outcome in ("learnt", "undone", "none"):
            self._lessons.labels(outcome)

    def watch_memory(self, sessions: Callable[[], int], size: Callable[[], int]) -> None:
        """Read what is held from these whenever the metrics are asked for."""
        self._held.set_function(sessions)
        self._bytes.set_function(size)

    def count_lesson(self, *, learnt: bool, undone: bool) -> None:
        """Count an accepted utterance."""
        self._lessons.labels("undone" if undone else "learnt" if learnt else "none").inc()

    @contextmanager
    def commit(self, timing: Timing) -> Iterator[None]:
        """Time the acceptance of an utterance; one that fails is timed too. timing: of its request."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begin
            self._commit.observe(seconds)
            timing.add("commit", seconds)
