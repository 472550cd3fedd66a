"""An evaluation on the server: lists sent line by line, what the server says meanwhile, the result.

A flow, as in exchange.py. The whole set is sent before an answer is read; while it is sent, the pace of sending is that
of the server, which reads no more than it scores.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from http import HTTPStatus
from typing import Any, cast

from .errors import BadAnswerError, BusyError, ProblemError
from .exchange import Call, Exchange, Flow, encode, problem_of, refusal
from .jsonl import json_object
from .retry import BUSY, RetryPolicy
from .types import EvaluationSettings, Problem, Progress, Utterance

NDJSON = "application/x-ndjson"
OnProgress = Callable[[Progress], None]

_HEADERS = {"Content-Type": NDJSON, "Accept": NDJSON}
# Sent in pieces of about this size, since a line may be much smaller than what the network takes at once; but no line
# is kept for longer than this while others come, for the server does not wait for ever.
_PIECE_BYTES = 32_768
_PIECE_SECONDS = 0.5


def evaluating(
    exchange: Exchange,
    utterances: Iterable[Utterance],
    settings: EvaluationSettings,
    on_progress: OnProgress | None = None,
) -> Flow[dict[str, Any]]:
    """POST /v1/evaluate, the set as lines of JSON. `Client.evaluate` documents the parameters."""
    repeatable = iter(utterances) is not utterances
    if not repeatable:
        exchange = replace(exchange, retry=RetryPolicy(total_seconds=0.0))
    events = _Events(on_progress)
    call = Call("POST", "v1/evaluate", _Body(settings, utterances, exchange.now), _HEADERS, events.take)
    reply = yield from exchange.reply(call)
    if not reply.response.is_success:
        raise refusal(reply.response)
    return events.result()


class _Body:
    """The body of the request in pieces, made anew each time that it is sent. now: a clock in seconds."""

    def __init__(self, settings: EvaluationSettings, utterances: Iterable[Utterance], now: Callable[[], float]) -> None:
        self._settings = settings
        self._utterances = utterances
        self._now = now

    def __iter__(self) -> Iterator[bytes]:
        yield encode(self._settings) + b"\n"
        piece, begun = bytearray(), self._now()
        for utterance in self._utterances:
            piece += encode(utterance) + b"\n"
            if len(piece) >= _PIECE_BYTES or self._now() - begun >= _PIECE_SECONDS:
                yield bytes(piece)
                piece.clear()
                begun = self._now()
        if piece:
            yield bytes(piece)


class _Events:
    """Takes the lines of an answer. on_progress: told of those that say how far the server is."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._last: dict[str, Any] | None = None

    def take(self, line: str) -> None:
        """Take a line. Raises BadAnswerError for what is no event."""
        try:
            event = json_object(line.encode())
        except ValueError as error:
            raise BadAnswerError(f"the server's answer cannot be read: {error}") from error
        self._last = event
        if event.get("event") == "progress" and self._on_progress is not None:
            self._on_progress(cast("Progress", event))

    def result(self) -> dict[str, Any]:
        """The result that the last event told of. Raises ProblemError where it told of an error."""
        event = dict(self._last or {})
        kind = event.pop("event", None)
        if kind == "result":
            return event
        if kind != "error":
            raise BadAnswerError("the server's answer ended without a result; is this the address of the service?")
        status = event.get("status")
        fallback: Problem = {
            "type": "about:blank",
            "title": "error",
            "status": status if isinstance(status, int) else int(HTTPStatus.INTERNAL_SERVER_ERROR),
            "detail": "the server gives no detail",
        }
        problem = problem_of(event, fallback)
        raise BusyError(problem) if problem["status"] in BUSY else ProblemError(problem)
