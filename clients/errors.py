"""What can go wrong on the client's side, as one tree.

ClientError
├── UsageError             options that make no sense together
│   └── MissingExtraError  a part of the distribution that is not installed
├── InputFileError         a file that cannot be read; the message names file, line and field
├── OutputFileError        a file that cannot be written or continued
├── RescoreFailedError     a request of a run failed; the message names the lines of the file
├── EvaluationError        results that cannot be compared: partners, references or words are missing
└── ServerError            the other side
    ├── NoAnswerError      no connection, or it broke, and the time for trying again is over
    ├── BadAnswerError     an answer that is not what the service answers
    └── ProblemError       a refusal with its problem document
        ├── BusyError      429, 502, 503 or 504, and the time for trying again is over
        └── SessionError   a refusal that has to do with a session; the message names the session
            ├── SessionExistsError      one of this id is there already
            ├── VersionConflictError    it is at another version than the one asked for
            ├── UtteranceConflictError  it knows the utterance id from another request
            ├── UnknownSessionError     there is none of this id
            ├── UnknownUtteranceError   it has accepted no utterance of this id
            ├── SessionGoneError        it was deleted, or has expired
            ├── SessionFullError        its log is as long as logs may be
            ├── ForeignBundleError      it belongs to another bundle than the one served
            └── CorruptSnapshotError    the bytes to import are broken
"""

from collections.abc import Mapping
from typing import ClassVar

from .types import Problem


class ClientError(Exception):
    """The root of every error that this package raises on purpose. exit_code: what a command ends with."""

    exit_code = 1


class UsageError(ClientError):
    """Options that make no sense, alone or together."""

    exit_code = 2


class MissingExtraError(UsageError):
    """A command needs a part of the distribution that is not installed; the message says which."""


class InputFileError(ClientError):
    """A file cannot be read; the message names file, line and field."""


class OutputFileError(ClientError):
    """A file cannot be written, or an earlier part of it cannot be continued."""


class RescoreFailedError(ClientError):
    """A request of a run failed; the message names the lines of the file that it held."""


class EvaluationError(ClientError):
    """Results cannot be counted or compared as they stand."""


class ServerError(ClientError):
    """The root of what a server, or the way to it, can do to a request."""


class NoAnswerError(ServerError):
    """There was no connection, or it broke, for as long as the retry policy allows."""


class BadAnswerError(ServerError):
    """The answer is not what the rescoring service answers."""


class ProblemError(ServerError):
    """The server refused the request.

    problem: its problem document; where it sent none, one made from status and text
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        text = f"{problem['status']} {problem['title']}: {problem['detail']}"
        fields = [f"{e['field']}: {e['message']}" for e in problem.get("errors", [])]
        super().__init__(f"{text} ({'; '.join(fields)})" if fields else text)


class BusyError(ProblemError):
    """The server stayed too busy, or out of service, for as long as the retry policy allows."""


class SessionError(ProblemError):
    """The server refused something that has to do with a session.

    session_id: the session
    """

    says: ClassVar[str] = "was refused"

    def __init__(self, problem: Problem, session_id: str) -> None:
        super().__init__(problem)
        self.session_id = session_id
        self.args = (f"session {session_id!r} {self.says}: {problem['detail']}",)


class SessionExistsError(SessionError):
    """A session of this id is there already; `Client.attach` goes on with it."""

    says = "exists already"


class VersionConflictError(SessionError):
    """The session has moved on, or back, from the version that the call named; nothing was changed.

    version: the version it is at; None where the server does not say
    """

    says = "is at another version than the one asked for"

    def __init__(self, problem: Problem, session_id: str) -> None:
        super().__init__(problem, session_id)
        self.version = problem.get("version")
        if self.version is not None:
            self.args = (f"session {session_id!r} is at version {self.version}, not at the one asked for",)


class UtteranceConflictError(SessionError):
    """The session has accepted another request under this utterance id; nothing was changed."""

    says = "knows this utterance id from another request"


class UnknownSessionError(SessionError):
    """The server knows no session of this id."""

    says = "is unknown to the server"


class UnknownUtteranceError(SessionError):
    """The session has accepted no utterance of this id since it was made or reset."""

    says = "has accepted no utterance of this id"


class SessionGoneError(SessionError):
    """The session was deleted, or has expired for want of use."""

    says = "is gone"


class SessionFullError(SessionError):
    """The session's log is as long as logs may be; it can be reset, or another be made."""

    says = "is full"


class ForeignBundleError(SessionError):
    """The session belongs to another bundle than the one that is served."""

    says = "belongs to another bundle than the one served"


class CorruptSnapshotError(SessionError):
    """The bytes to import are no exported session, or are broken."""

    says = "cannot be made from these bytes"


# The last part of a problem's type -> the error it becomes.
SESSION_ERRORS: Mapping[str, type[SessionError]] = {
    "session-exists": SessionExistsError,
    "version-conflict": VersionConflictError,
    "utterance-conflict": UtteranceConflictError,
    "unknown-session": UnknownSessionError,
    "unknown-utterance": UnknownUtteranceError,
    "session-expired": SessionGoneError,
    "session-deleted": SessionGoneError,
    "session-full": SessionFullError,
    "foreign-bundle": ForeignBundleError,
    "corrupt-snapshot": CorruptSnapshotError,
}
