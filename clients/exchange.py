"""The client without its input and output: what to send, when to send it again, what an answer means.

A flow is a generator. It yields a Call, and is sent the response or the error of the connection; or it yields
a Pause, and is resumed after it. What it returns is the result; what it raises is a ServerError. The two
clients, synchronous and asynchronous, only drive flows (sdk.py).
"""

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar, cast

import httpx

from .errors import BadAnswerError, BusyError, NoAnswerError, ProblemError, ServerError, UsageError
from .jsonl import strict_json
from .retry import BUSY, RetryPolicy, is_passing, retry_after
from .types import Answer, FieldProblem, Problem, Request, Result, Settings, Utterance


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request.

    path:    below the base URL
    body:    JSON, where the headers say nothing else; in pieces, it is sent as they come
    headers: beside, or in place of, those of every request
    on_line: told of each line of a successful answer as it comes; the response then holds no content
    """

    method: str
    path: str
    body: bytes | Iterable[bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    on_line: Callable[[str], None] | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """A wait before the next call."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """The response that ended the trying: a success, or a refusal that trying again would not change.

    retried: whether the call was sent before, and may have done its work already
    """

    response: httpx.Response
    retried: bool


T = TypeVar("T")
Outcome = httpx.Response | httpx.TransportError | None
Flow = Generator[Call | Pause, Outcome, T]
OnRetry = Callable[[ServerError, float], None]


def make_request(utterances: Sequence[Utterance], settings: Settings) -> Request:
    """The body of a rescoring request; settings left out are left to the server."""
    return {"utterances": list(utterances), **settings}


def encode(document: Any) -> bytes:
    """A JSON value as compact UTF-8. Raises UsageError for what strict JSON cannot hold, such as NaN."""
    try:
        return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, TypeError) as error:
        raise UsageError(f"the request cannot be written as JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class Exchange:
    """The flows of the service's endpoints.

    retry:    when to try again
    now:      a clock in seconds, which only goes forward
    on_retry: told of each failure that is tried again, and of the seconds until then
    """

    retry: RetryPolicy
    now: Callable[[], float]
    on_retry: OnRetry | None = None

    def rescore(self, request: Request) -> Flow[Answer]:
        """POST /v1/rescore."""
        document = yield from self._json(Call("POST", "v1/rescore", encode(request)))
        return _checked_answer(document, [utterance["id"] for utterance in request["utterances"]])

    def rescore_one(self, request: Request) -> Flow[Result]:
        """POST /v1/rescore of one utterance."""
        answer = yield from self.rescore(request)
        return answer["results"][0]

    def models(self) -> Flow[dict[str, Any]]:
        """GET /v1/models."""
        return (yield from self._json(Call("GET", "v1/models")))

    def ready(self) -> Flow[bool]:
        """GET /health/ready, once: readiness is a question about now."""
        outcome = yield Call("GET", "health/ready")
        if not isinstance(outcome, httpx.Response) or outcome.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            return False
        if not outcome.is_success:
            raise refusal(outcome)
        return True

    def reply(self, call: Call) -> Flow[Reply]:
        """Send a call, again and again while what fails may pass. Raises ServerError where nothing else came."""
        retries, deadline = 0, None
        while True:
            outcome = yield call
            if isinstance(outcome, httpx.Response) and outcome.status_code not in BUSY:
                return Reply(outcome, retries > 0)
            failure, passing, asked = _judge(outcome)
            if not passing:
                raise failure
            now = self.now()
            deadline = now + self.retry.total_seconds if deadline is None else deadline
            delay = self.retry.delay(retries, deadline - now, asked)
            if delay is None:
                raise failure
            if self.on_retry is not None:
                self.on_retry(failure, delay)
            yield Pause(delay)
            retries += 1

    def _json(self, call: Call) -> Flow[dict[str, Any]]:
        reply = yield from self.reply(call)
        if not reply.response.is_success:
            raise refusal(reply.response)
        return json_answer(reply.response)


def _judge(outcome: Outcome) -> tuple[ServerError, bool, float | None]:
    """What a call without a final response means: the error, whether it may pass, the seconds the server asks for."""
    if isinstance(outcome, httpx.Response):
        return refusal(outcome), True, retry_after(outcome)
    if outcome is None:
        raise RuntimeError("a call was answered with nothing")
    reason = str(outcome) or type(outcome).__name__
    return NoAnswerError(f"no answer from the server: {reason}"), is_passing(outcome), None


def refusal(response: httpx.Response) -> ServerError:
    """What a response that is no success means."""
    status = response.status_code
    if status < HTTPStatus.BAD_REQUEST:
        return BadAnswerError(f"the server answered with status {status}; is this the address of the service?")
    problem: Problem = {
        "type": "about:blank",
        "title": response.reason_phrase or "error",
        "status": status,
        "detail": response.text[:200].strip() or "the server gives no detail",
    }
    if response.headers.get("content-type", "").startswith("application/problem+json"):
        problem = _problem(response, problem)
    return BusyError(problem) if status in BUSY else ProblemError(problem)


def _problem(response: httpx.Response, fallback: Problem) -> Problem:
    """The problem document of a response; what it lacks, or has in another type, is taken from `fallback`."""
    try:
        document = strict_json(response.content)
    except ValueError:
        return fallback
    return problem_of(document, fallback) if isinstance(document, dict) else fallback


def problem_of(document: Mapping[str, Any], fallback: Problem) -> Problem:
    """The problem that a JSON object tells of; what it lacks, or has in another type, is taken from `fallback`."""
    problem: Problem = {**fallback}
    for name in ("type", "title", "detail"):
        if isinstance(document.get(name), str):
            problem[name] = document[name]
    errors = document.get("errors")
    problem["errors"] = [
        cast("FieldProblem", entry)
        for entry in (errors if isinstance(errors, list) else [])
        if isinstance(entry, dict) and all(isinstance(entry.get(name), str) for name in ("field", "message"))
    ]
    if isinstance(document.get("version"), int):
        problem["version"] = document["version"]
    return problem


def json_answer(response: httpx.Response) -> dict[str, Any]:
    """The object that a successful response holds. Raises BadAnswerError where it holds none."""
    try:
        document = strict_json(response.content)
    except ValueError as error:
        raise BadAnswerError(f"the server's answer cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise BadAnswerError("the server's answer is no object; is this the address of the service?")
    return document


def _checked_answer(document: dict[str, Any], ids: list[str]) -> Answer:
    """The answer to a request of these utterances: the same ones, in the same order."""
    results = document.get("results")
    if not isinstance(results, list) or not all(isinstance(r, dict) and r.get("ranking") for r in results):
        raise BadAnswerError("the server's answer holds no results; is this the address of the service?")
    if [result.get("id") for result in results] != ids:
        raise BadAnswerError("the server answered other utterances than it was asked for")
    return cast("Answer", document)
