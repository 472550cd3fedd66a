"""Every error as one kind of body: application/problem+json (RFC 9457).

    {"type": "/problems/NAME", "title", "status", "detail", "errors"?: [{"field", "utterance"?, "message"}], "version"?}

One table says which error is which problem; a test proves it complete. A problem never repeats what was sent,
beyond the names of fields and of utterances.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from models import errors as domain
from service import errors
from service.errors import FieldError, RefusedListError, ServiceError

MEDIA_TYPE = "application/problem+json"
MAX_ERRORS = 20
_MAX_DETAIL = 1000


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of problem: its status, the NAME in its type, and its title."""

    status: HTTPStatus
    name: str
    title: str


KINDS: dict[type[Exception], Kind] = {
    domain.InvalidNBestError: Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-nbest", "Invalid N-best list"),
    domain.ListTooLargeError: Kind(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "list-too-large", "N-best list too large"),
    domain.InvalidWeightsError: Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-weights", "Invalid weights"),
    domain.UnknownModelError: Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "unknown-model", "Unknown model"),
    domain.InvalidTextError: Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-text", "Invalid text"),
    domain.BundleError: Kind(HTTPStatus.INTERNAL_SERVER_ERROR, "bundle", "Bundle not usable"),
    domain.TrainingError: Kind(HTTPStatus.INTERNAL_SERVER_ERROR, "training", "Training failed"),
    domain.TuningError: Kind(HTTPStatus.INTERNAL_SERVER_ERROR, "tuning", "Tuning failed"),
    domain.SessionError: Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-session", "Invalid session"),
    domain.InvalidOptionError: Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-option", "Invalid option"),
    domain.ModelFailedError: Kind(HTTPStatus.SERVICE_UNAVAILABLE, "model-failed", "Model failed"),
    errors.NotJSONError: Kind(HTTPStatus.BAD_REQUEST, "not-json", "Not JSON"),
    errors.InvalidRequestError: Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", "Invalid request"),
    errors.UnsupportedMediaTypeError: Kind(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", "Unsupported media type"
    ),
    errors.BodyTooLargeError: Kind(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body-too-large", "Body too large"),
    errors.RequestTooLargeError: Kind(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "request-too-large", "Request too large"),
    errors.SlowRequestError: Kind(HTTPStatus.REQUEST_TIMEOUT, "slow-request", "Request too slow"),
    errors.UnauthorisedError: Kind(HTTPStatus.UNAUTHORIZED, "unauthorised", "Unauthorised"),
    errors.CannotEvaluateError: Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "cannot-evaluate", "Cannot be evaluated"),
    errors.TooManyEvaluationsError: Kind(HTTPStatus.TOO_MANY_REQUESTS, "too-many-evaluations", "Too many evaluations"),
    errors.QueueFullError: Kind(HTTPStatus.TOO_MANY_REQUESTS, "queue-full", "Queue full"),
    errors.WaitedTooLongError: Kind(HTTPStatus.SERVICE_UNAVAILABLE, "waited-too-long", "Waited too long"),
    errors.ScoringTooSlowError: Kind(HTTPStatus.GATEWAY_TIMEOUT, "scoring-too-slow", "Scoring too slow"),
    errors.NotReadyError: Kind(HTTPStatus.SERVICE_UNAVAILABLE, "not-ready", "Not ready"),
    errors.SessionRefusedError: Kind(HTTPStatus.CONFLICT, "session-refused", "Session refused"),
    errors.NoSuchSessionError: Kind(HTTPStatus.NOT_FOUND, "unknown-session", "Unknown session"),
    errors.SessionDeletedError: Kind(HTTPStatus.GONE, "session-deleted", "Session deleted"),
    errors.SessionExpiredError: Kind(HTTPStatus.GONE, "session-expired", "Session expired"),
    errors.SessionTakenError: Kind(HTTPStatus.CONFLICT, "session-exists", "Session exists already"),
    errors.TooManySessionsError: Kind(HTTPStatus.TOO_MANY_REQUESTS, "too-many-sessions", "Too many sessions"),
    errors.SessionFullError: Kind(HTTPStatus.CONFLICT, "session-full", "Session full"),
    errors.NoSuchUtteranceError: Kind(HTTPStatus.NOT_FOUND, "unknown-utterance", "Unknown utterance"),
    errors.UtteranceConflictError: Kind(HTTPStatus.CONFLICT, "utterance-conflict", "Utterance conflict"),
    errors.InvalidPreconditionError: Kind(HTTPStatus.BAD_REQUEST, "invalid-precondition", "Invalid If-Match"),
    errors.VersionConflictError: Kind(HTTPStatus.CONFLICT, "version-conflict", "Version conflict"),
    errors.ForeignBundleError: Kind(HTTPStatus.CONFLICT, "foreign-bundle", "Session of another bundle"),
    errors.CorruptSnapshotError: Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "corrupt-snapshot", "Corrupt snapshot"),
    errors.SessionStoreDownError: Kind(
        HTTPStatus.SERVICE_UNAVAILABLE, "session-store-unavailable", "Session store unavailable"
    ),
    errors.InternalError: Kind(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "Internal error"),
}

_RETRY_MODEL_FAILED_S = 1


def document(
    kind: Kind, detail: str, field_errors: Sequence[FieldError] = (), members: Mapping[str, Any] | None = None
) -> bytes:
    """A problem as JSON bytes; at most MAX_ERRORS of the errors are listed. members: more of the body."""
    body: dict[str, Any] = {
        "type": f"/problems/{kind.name}",
        "title": kind.title,
        "status": kind.status.value,
        "detail": detail[:_MAX_DETAIL],
        **(members or {}),
    }
    if field_errors:
        body["errors"] = [
            {
                "field": error.field,
                **({} if error.utterance is None else {"utterance": error.utterance}),
                "message": error.message,
            }
            for error in field_errors[:MAX_ERRORS]
        ]
    return orjson.dumps(body)


def response(error: Exception) -> Response:
    """The answer to an error of the table, a RefusedListError or an HTTPException; else an internal one."""
    headers: dict[str, str] = {}
    if isinstance(error, HTTPException):
        headers.update(error.headers or {})
        return _respond(_kind_of_status(error.status_code), str(error.detail), (), headers)
    cause = error.cause if isinstance(error, RefusedListError) else error
    kind = next((KINDS[base] for base in type(cause).__mro__ if base in KINDS), None)
    if kind is None:
        return response(errors.InternalError("the service failed; its log says more"))
    field_errors: Sequence[FieldError] = ()
    if isinstance(error, RefusedListError | ServiceError):
        field_errors = error.errors
    if isinstance(cause, domain.ModelFailedError):
        headers["retry-after"] = str(_RETRY_MODEL_FAILED_S)
    if isinstance(cause, ServiceError) and cause.retry_after_s is not None:
        headers["retry-after"] = str(cause.retry_after_s)
    if isinstance(cause, errors.UnauthorisedError):
        headers["www-authenticate"] = "Bearer"
    members = {}
    if isinstance(cause, errors.VersionConflictError):
        if cause.tag is not None:
            headers["etag"] = cause.tag
        members["version"] = cause.version
    return _respond(kind, str(error), field_errors, headers, members)


def install(app: FastAPI) -> None:
    """Make the app answer every error it can raise with a problem."""

    async def answer(_: Request, error: Exception) -> Response:
        return response(error)

    async def answer_validation(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        found = [
            FieldError(".".join(map(str, entry["loc"])), str(entry["msg"])) for entry in error.errors()[:MAX_ERRORS]
        ]
        return response(errors.InvalidRequestError("the request's parameters are not as documented", errors=found))

    for kind in (domain.RescoringError, ServiceError, RefusedListError, HTTPException):
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(RequestValidationError, answer_validation)


def _respond(
    kind: Kind,
    detail: str,
    found: Sequence[FieldError],
    headers: dict[str, str],
    members: Mapping[str, Any] | None = None,
) -> Response:
    return Response(document(kind, detail, found, members), kind.status.value, headers, MEDIA_TYPE)


def _kind_of_status(code: int) -> Kind:
    status = HTTPStatus(code)
    return Kind(status, re.sub(r"[^a-z]+", "-", status.phrase.lower()), status.phrase)
