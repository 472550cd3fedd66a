"""One session over HTTP without its input and output: what to send, and what an answer means.

Every call may be sent again when its answer was lost. A rescoring is known by its utterance id and answered from the
server's log; a confirmed text that stands already changes nothing; and a session that an earlier try of this client
made is recognised, since its id was drawn here or nothing has happened in it.
"""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import quote

import httpx

from .errors import (
    SESSION_ERRORS,
    BadAnswerError,
    ProblemError,
    SessionError,
    SessionExistsError,
    SessionGoneError,
    UsageError,
)
from .exchange import Call, Exchange, Flow, Reply, encode, json_answer, refusal
from .types import Form, SessionAnswer, SessionDescription, SessionOptions, Utterance, Weights

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_ETAG = re.compile(r'"[0-9]+(-[0-9a-f]+)"')
_BYTES = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Opening:
    """How a session comes about.

    call:   what makes it; None where it exists
    drawn:  whether this client drew its id, so that nobody else can have made one of that id
    asked:  the options and weights it was asked to be made with
    source: the session that it is forked from
    """

    call: Call | None = None
    drawn: bool = False
    asked: dict[str, dict[str, Any]] | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class SessionMade:
    """A session's id, and how it is to be opened."""

    session_id: str
    opening: Opening


def creation(session_id: str | None, options: SessionOptions, rescoring: Weights | None) -> SessionMade:
    """A session to be created. session_id: drawn at random where it is None. Raises UsageError for what is no id."""
    identifier = _checked_id(session_id)
    asked: dict[str, dict[str, Any]] = {"options": {**options}, "rescoring": {**(rescoring or {})}}
    body = {"id": identifier, **{name: value for name, value in asked.items() if value}}
    return SessionMade(
        identifier, Opening(Call("POST", "v1/sessions", encode(body)), drawn=session_id is None, asked=asked)
    )


def importing(session_id: str | None, exported: bytes) -> SessionMade:
    """A session to be made from the bytes of an export."""
    identifier = _checked_id(session_id)
    call = Call("POST", f"v1/sessions/import?id={identifier}", exported, {"Content-Type": _BYTES})
    return SessionMade(identifier, Opening(call, drawn=session_id is None))


def attaching(session_id: str) -> SessionMade:
    """A session that exists."""
    return SessionMade(_checked_id(session_id), Opening())


class SessionFlows:
    """The flows of one session.

    version: the newest version that this client has heard of; None before the session is opened
    """

    # What the server adds to versions, in its ETags, to tell a session from an older one of its id.
    _incarnation = ""

    def __init__(self, exchange: Exchange, made: SessionMade) -> None:
        self._exchange = exchange
        self._opening = made.opening
        self._path = f"v1/sessions/{made.session_id}"
        self.session_id = made.session_id
        self.version: int | None = None

    def open(self) -> Flow[SessionDescription]:
        """Make the session, or see that it exists."""
        self._incarnation = ""
        if self._opening.call is None:
            return (yield from self.describe())
        reply = yield from self._exchange.reply(self._opening.call)
        try:
            return self._description(reply)
        except SessionExistsError:
            if not reply.retried:
                raise
            there = yield from self.describe()
            if not self._opening.drawn and not _just_made(there, self._opening.asked):
                raise
            return there
        except SessionError as error:
            if self._opening.source is None:
                raise
            raise type(error)(error.problem, self._opening.source) from None

    def describe(self) -> Flow[SessionDescription]:
        """GET /v1/sessions/{id}."""
        return self._description((yield from self._exchange.reply(Call("GET", self._path))))

    def rescore(self, utterance: Utterance, form: Form, if_version: int | None) -> Flow[SessionAnswer]:
        """POST /v1/sessions/{id}/rescore."""
        reply = yield from self._change("POST", "/rescore", {"utterance": utterance, **form}, if_version)
        answer = json_answer(self._success(reply))
        result = answer.get("result")
        whole = _is_count(answer.get("version")) and isinstance(answer.get("bundle"), str)
        if not whole or not isinstance(result, dict) or not result.get("ranking"):
            raise BadAnswerError(
                "the server's answer holds no result of a session; is this the address of the service?"
            )
        if result.get("id") != utterance["id"]:
            raise BadAnswerError("the server answered another utterance than it was asked for")
        self.version = answer["version"]
        return cast("SessionAnswer", answer)

    def confirm(self, utterance_id: str, text: str, if_version: int | None) -> Flow[SessionDescription]:
        """PUT /v1/sessions/{id}/utterances/{utterance_id}/transcript."""
        if not utterance_id:
            raise UsageError("the id of the confirmed utterance must not be empty")
        path = f"/utterances/{_segment(utterance_id)}/transcript"
        return self._description((yield from self._change("PUT", path, {"text": text}, if_version)))

    def reset(self, if_version: int | None) -> Flow[SessionDescription]:
        """POST /v1/sessions/{id}/reset."""
        return self._description((yield from self._change("POST", "/reset", None, if_version)))

    def fork(self, session_id: str | None) -> Flow["SessionFlows"]:
        """POST /v1/sessions/{id}/fork: the flows of the new session, which is open."""
        identifier = _checked_id(session_id)
        call = Call("POST", f"{self._path}/fork", encode({"id": identifier}))
        opening = Opening(call, drawn=session_id is None, source=self.session_id)
        other = SessionFlows(self._exchange, SessionMade(identifier, opening))
        yield from other.open()
        return other

    def export(self) -> Flow[bytes]:
        """GET /v1/sessions/{id}/export."""
        call = Call("GET", f"{self._path}/export", headers={"Accept": f"{_BYTES}, application/problem+json"})
        response = self._success((yield from self._exchange.reply(call)))
        if not response.headers.get("content-type", "").startswith(_BYTES):
            raise BadAnswerError("the server's answer is no exported session; is this the address of the service?")
        return response.content

    def delete(self, if_version: int | None) -> Flow[None]:
        """DELETE /v1/sessions/{id}. A session that is gone already is as good as deleted."""
        try:
            self._success((yield from self._change("DELETE", "", None, if_version)))
        except SessionGoneError:
            return

    def give_up(self) -> Flow[None]:
        """Delete the session if that can be done at once."""
        once = replace(self._exchange, retry=replace(self._exchange.retry, total_seconds=0.0))
        self._success((yield from once.reply(Call("DELETE", self._path))))

    def _change(self, method: str, below: str, body: Any, if_version: int | None) -> Flow[Reply]:
        headers = {} if if_version is None else {"If-Match": f'"{if_version}{self._incarnation}"'}
        content = None if body is None else encode(body)
        return (yield from self._exchange.reply(Call(method, self._path + below, content, headers)))

    def _success(self, reply: Reply) -> httpx.Response:
        if reply.response.is_success:
            # Of the session first met, and no other: to be told when it was made anew is what tags are for.
            found = _ETAG.fullmatch(reply.response.headers.get("etag", ""))
            self._incarnation = self._incarnation or (found[1] if found else "")
            return reply.response
        failure = refusal(reply.response)
        if isinstance(failure, ProblemError):
            kind = SESSION_ERRORS.get(failure.problem["type"].rpartition("/")[2])
            if kind is not None:
                raise kind(failure.problem, self.session_id)
        raise failure

    def _description(self, reply: Reply) -> SessionDescription:
        document = json_answer(self._success(reply))
        counts = all(_is_count(document.get(name)) for name in ("version", "utterances"))
        parts = all(isinstance(document.get(name), dict) for name in ("options", "rescoring"))
        if document.get("id") != self.session_id or not counts or not parts:
            raise BadAnswerError("the server's answer describes no such session; is this the address of the service?")
        self.version = document["version"]
        return cast("SessionDescription", document)


def _checked_id(session_id: str | None) -> str:
    if session_id is None:
        return uuid.uuid4().hex
    if not _ID.fullmatch(session_id) or session_id in {".", ".."}:
        raise UsageError(
            f"{session_id!r} is no id of a session: it takes 1 to 128 of A-Z a-z 0-9 . _ : - and is not . or .."
        )
    return session_id


def _segment(text: str) -> str:
    """A text as one segment of a path; dots alone would be taken for a step up or none."""
    try:
        quoted = quote(text, safe="")
    except UnicodeEncodeError as error:
        raise UsageError(f"the utterance id {text!r} holds a lone surrogate, which is no character") from error
    return quoted.replace(".", "%2E") if quoted in {".", ".."} else quoted


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _just_made(there: SessionDescription, asked: dict[str, dict[str, Any]] | None) -> bool:
    """Whether a session is as one that has just been made as asked: then it is ours, or as good as ours."""
    if asked is None or there["version"] or there["utterances"]:
        return False
    found: dict[str, Mapping[str, Any]] = {"options": there["options"], "rescoring": there["rescoring"]}
    return all(wanted.items() <= found[part].items() for part, wanted in asked.items())
