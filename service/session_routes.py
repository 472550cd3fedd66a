"""The endpoints of sessions: translate in, await, translate out."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import orjson
from fastapi import APIRouter
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from service import openapi_sessions as parts
from service.errors import FieldError, InvalidRequestError, NoSuchSessionError
from service.middleware import RECORD, run_while_connected
from service.request_reader import RequestReader
from service.routes import JSON, check_media_type
from service.session_description import describe
from service.session_memory import Held
from service.session_schemas import (
    ID_RULE,
    CreateRequest,
    ForkRequest,
    SessionRescoreRequest,
    TranscriptRequest,
    is_session_id,
    unknown_in_create,
    unknown_in_fork,
    unknown_in_rescore,
    unknown_in_transcript,
)
from service.session_tags import Tag, Tags, read_tags, tag_of
from service.sessions import Sessions
from service.settings import Limits
from service.telemetry import RequestRecord, Telemetry
from service.timing import HEADER, Timing

T = TypeVar("T")

_NOTHING = b"{}"
_FILE = "application/octet-stream"


class _AnyText(Convertor[str]):
    """A part of a path that may hold anything: an utterance is called what its caller likes."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anytext", _AnyText())


class SessionRoutes:
    """The handlers of one app's sessions."""

    def __init__(self, sessions: Sessions, limits: Limits, telemetry: Telemetry) -> None:
        self._sessions = sessions
        self._limits = limits
        self._telemetry = telemetry
        self._create_reader = RequestReader(CreateRequest, unknown_in_create)
        self._rescore_reader = RequestReader(SessionRescoreRequest, unknown_in_rescore)
        self._transcript_reader = RequestReader(TranscriptRequest, unknown_in_transcript)
        self._fork_reader = RequestReader(ForkRequest, unknown_in_fork)

    def router(self) -> APIRouter:
        """The endpoints with their documentation."""
        router = APIRouter(redirect_slashes=False, prefix="/v1/sessions")
        one = "/{session_id}"
        transcript = one + "/utterances/{utterance_id:anytext}/transcript"
        router.add_api_route("", self.create, methods=["POST"], **parts.CREATE)
        router.add_api_route("/import", self.import_file, methods=["POST"], **parts.IMPORT)
        router.add_api_route(one, self.describe, methods=["GET"], **parts.DESCRIBE)
        router.add_api_route(one, self.delete, methods=["DELETE"], **parts.DELETE)
        router.add_api_route(one + "/rescore", self.rescore, methods=["POST"], **parts.RESCORE)
        router.add_api_route(transcript, self.confirm, methods=["PUT"], **parts.CONFIRM)
        router.add_api_route(one + "/reset", self.reset, methods=["POST"], **parts.RESET)
        router.add_api_route(one + "/fork", self.fork, methods=["POST"], **parts.FORK)
        router.add_api_route(one + "/export", self.export, methods=["GET"], **parts.EXPORT)
        return router

    async def create(self, request: Request) -> Response:
        """Make a session."""
        document = self._create_reader.read(await _body(request) or _NOTHING)
        return _made(await self._run(request, lambda _: self._sessions.create(document)))

    async def describe(self, request: Request) -> Response:
        """Describe a session: options, version, what it has learnt and whether that helps."""
        session_id = _id(request)
        return _described(await self._run(request, lambda deadline: self._sessions.describe(session_id, deadline)))

    async def rescore(self, request: Request) -> Response:
        """Rescore one utterance from the session's state, and accept the winner."""
        with self._telemetry.stage("receive"):
            body = await _body(request)
        session_id, tags = _id(request), _tags(request)
        timing = Timing()
        with self._telemetry.stage("parse", timing):
            document = self._rescore_reader.read(body)
        asked = await self._sessions.rescoring.prepare(document, len(body), timing)
        record: RequestRecord = request.scope[RECORD]
        record.fields |= {
            "hypotheses": len(asked.prepared.ids),
            "tokens": asked.prepared.tokens,
            "bytes": len(body),
        }
        tag, answer = await self._run(
            request, lambda deadline: self._sessions.rescore(session_id, asked, tags, deadline)
        )
        return Response(answer, headers={**_etag(tag), HEADER: timing.header()}, media_type=JSON)

    async def confirm(self, request: Request) -> Response:
        """Say what was really said in an utterance; it is learnt in place of the winner."""
        session_id, tags, name = _id(request), _tags(request), request.path_params["utterance_id"]
        text = self._transcript_reader.read(await _body(request))["text"]
        return _described(
            await self._run(request, lambda deadline: self._sessions.confirm(session_id, name, text, tags, deadline))
        )

    async def reset(self, request: Request) -> Response:
        """Make a session forget all that it was told."""
        session_id, tags = _id(request), _tags(request)
        await _body(request)
        return _described(await self._run(request, lambda deadline: self._sessions.reset(session_id, tags, deadline)))

    async def fork(self, request: Request) -> Response:
        """Make a session from another one; the two then go their own ways."""
        session_id, tags = _id(request), _tags(request)
        new_id = self._fork_reader.read(await _body(request) or _NOTHING).get("id")
        return _made(await self._run(request, lambda deadline: self._sessions.fork(session_id, new_id, tags, deadline)))

    async def export(self, request: Request) -> Response:
        """A session as one safetensors file: state, options and log."""
        session_id = _id(request)
        tag, file = await self._run(request, lambda deadline: self._sessions.export(session_id, deadline))
        return Response(file, headers=_etag(tag), media_type=_FILE)

    async def import_file(self, request: Request) -> Response:
        """Make a session from an exported file."""
        check_media_type(request, _FILE)
        session_id = request.query_params.get("id")
        if session_id is not None and not is_session_id(session_id):
            raise InvalidRequestError(f"id: {ID_RULE}", errors=[FieldError("id", ID_RULE)])
        content = await request.body()
        return _made(await self._run(request, lambda _: self._sessions.import_file(session_id, content)))

    async def delete(self, request: Request) -> Response:
        """Delete a session."""
        session_id, tags = _id(request), _tags(request)
        await self._run(request, lambda deadline: self._sessions.delete(session_id, tags, deadline))
        return Response(status_code=204)

    async def _run(self, request: Request, work: Callable[[float], Coroutine[Any, Any, T]]) -> T:
        """Await work, unless the caller leaves. work: given the deadline, in seconds of the event loop's clock."""
        # What comes on the channel after the body can only be that the caller left.
        await request.body()
        deadline = asyncio.get_running_loop().time() + self._limits.deadline_s
        return await run_while_connected(request.receive, work(deadline))


async def _body(request: Request) -> bytes:
    check_media_type(request, JSON)
    return await request.body()


def _id(request: Request) -> str:
    session_id: str = request.path_params["session_id"]
    if not is_session_id(session_id):
        raise NoSuchSessionError("there is no such session")
    return session_id


def _tags(request: Request) -> Tags:
    """The tags that If-Match names; None where any will do."""
    return read_tags(",".join(request.headers.getlist("if-match")))


def _etag(tag: Tag) -> dict[str, str]:
    return {"etag": str(tag)}


def _described(held: Held, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        orjson.dumps(describe(held)), status, {**_etag(tag_of(held.record)), **(headers or {})}, media_type=JSON
    )


def _made(held: Held) -> Response:
    return _described(held, 201, {"location": f"/v1/sessions/{held.record.session_id}"})
