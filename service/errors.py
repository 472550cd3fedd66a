"""What the service itself has to refuse or to report, as one tree; none of it carries a status code.

ServiceError
├── NotJSONError               a body that is no JSON
├── InvalidRequestError        JSON that is no request: each wrong field is named
├── UnsupportedMediaTypeError  a body that is declared to be something other than plain JSON
├── BodyTooLargeError          a body of more bytes than the limit
├── RequestTooLargeError       more utterances, or more words, than one request may hold
├── SlowRequestError           a body that did not arrive in time
├── UnauthorisedError          the API key is missing or wrong
├── CannotEvaluateError        a set that no error rate can be told of
├── TooManyEvaluationsError    as many evaluations run as may
├── QueueFullError             no room in the queue, or too many bodies in flight
├── WaitedTooLongError         the deadline passed while the request waited in the queue
├── ScoringTooSlowError        the deadline passed while the request was being scored
├── NotReadyError              the service cannot score now
├── SessionRefusedError        a session cannot be had, or not like this
│   ├── NoSuchSessionError         there is none of this id
│   ├── SessionDeletedError        it was deleted
│   ├── SessionExpiredError        nobody used it for too long
│   ├── SessionTakenError          the id belongs to a session already
│   ├── TooManySessionsError       no room for another
│   ├── SessionFullError           no room for another utterance in its log
│   ├── NoSuchUtteranceError       its log has no utterance of this id
│   ├── UtteranceConflictError     its log has this utterance, from another request
│   ├── InvalidPreconditionError   an If-Match that names no version
│   ├── VersionConflictError       it is at another version than the caller believes
│   ├── ForeignBundleError         it belongs to another bundle than the one served
│   ├── CorruptSnapshotError       bytes that are no exported session
│   └── SessionStoreDownError      where sessions are kept cannot be reached or has no room
└── InternalError              a fault of the service's own

RefusedListError carries a domain error of `models` together with the field it is about. ClientLeftError is
answered
by nothing: nobody listens. StartError and SettingsError end the command before there is a service.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from models.errors import RescoringError


@dataclass(frozen=True, slots=True)
class FieldError:
    """What is wrong with one field.

    field:     its path in the request, such as utterances[0].hypotheses[3].acoustic_score
    message:   what is wrong; never the value that came
    utterance: the id of the utterance it belongs to, where known
    """

    field: str
    message: str
    utterance: str | None = None


class ServiceError(Exception):
    """The root of what the service answers with on its own account.

    detail:        one sentence for the caller
    errors:        the fields at fault
    retry_after_s: seconds after which the same request may succeed; None when it will not
    """

    def __init__(self, detail: str, *, errors: Sequence[FieldError] = (), retry_after_s: int | None = None) -> None:
        super().__init__(detail)
        self.errors = tuple(errors)
        self.retry_after_s = retry_after_s


class NotJSONError(ServiceError):
    """The body is no JSON, or no UTF-8, or holds a lone surrogate."""


class InvalidRequestError(ServiceError):
    """The body is JSON, but not a request."""


class UnsupportedMediaTypeError(ServiceError):
    """The body is declared to be something other than plain JSON."""


class BodyTooLargeError(ServiceError):
    """The body has more bytes than the limit, whether it said so beforehand or not."""


class RequestTooLargeError(ServiceError):
    """One request holds more utterances or words than the limits allow."""


class SlowRequestError(ServiceError):
    """The body did not arrive in time."""


class UnauthorisedError(ServiceError):
    """The API key is missing or wrong."""


class CannotEvaluateError(ServiceError):
    """There is no error rate of the set: its references hold no word, or no utterance has one."""


class TooManyEvaluationsError(ServiceError):
    """As many evaluations are running as may at a time."""


class QueueFullError(ServiceError):
    """There is no room for the request now."""


class WaitedTooLongError(ServiceError):
    """The deadline passed while the request waited; nothing of it was scored."""


class ScoringTooSlowError(ServiceError):
    """The deadline passed while the request was being scored."""


class NotReadyError(ServiceError):
    """The service cannot score now: it is starting, stopping, or its last step failed."""


class SessionRefusedError(ServiceError):
    """A session cannot be had, or not like this; it is as it was."""


class NoSuchSessionError(SessionRefusedError):
    """There is no session of this id."""


class SessionDeletedError(SessionRefusedError):
    """The session was deleted."""


class SessionExpiredError(SessionRefusedError):
    """The session was not used for longer than sessions are kept."""


class SessionTakenError(SessionRefusedError):
    """A session of this id exists already."""


class TooManySessionsError(SessionRefusedError):
    """There are as many sessions as the limits allow."""


class SessionFullError(SessionRefusedError):
    """The session's log is as long as the limits allow."""


class NoSuchUtteranceError(SessionRefusedError):
    """The session's log has no utterance of this id."""


class UtteranceConflictError(SessionRefusedError):
    """The session's log has an utterance of this id, which came with another request."""


class InvalidPreconditionError(SessionRefusedError):
    """If-Match names no version."""


class VersionConflictError(SessionRefusedError):
    """The session is at another version than the caller believes, or another session than the caller means.

    version: the one it is at
    tag:     its entity tag, where it is known
    """

    def __init__(self, version: int, tag: str | None = None, detail: str | None = None) -> None:
        super().__init__(detail or f"the session is at version {version}")
        self.version = version
        self.tag = tag


class ForeignBundleError(SessionRefusedError):
    """The session has learnt from another bundle than the one served."""


class CorruptSnapshotError(SessionRefusedError):
    """Bytes that are no exported session."""


class SessionStoreDownError(SessionRefusedError):
    """Where sessions are kept cannot be reached or has no room; nothing was changed."""


class InternalError(ServiceError):
    """The service failed in a way nobody foresaw."""


class RefusedListError(Exception):
    """A domain error and the fields of the request it is about.

    cause: what `models` raised; it decides the status
    """

    def __init__(self, cause: RescoringError, errors: Sequence[FieldError]) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.errors = tuple(errors)


class ClientLeftError(Exception):
    """The caller closed the connection before there was an answer."""


class StartError(Exception):
    """The service cannot start; the message is one line for the person who started it."""

    exit_code = 1


class SettingsError(StartError):
    """A setting is missing or not of its kind; the message names the option or the variable."""

    exit_code = 2
