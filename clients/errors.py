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
        └── BusyError      429, 502, 503 or 504, and the time for trying again is over
"""

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
