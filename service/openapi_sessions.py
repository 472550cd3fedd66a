"""What OpenAPI says of sessions beside the code; its examples are sent and compared by a test."""

from typing import Any

from service import problems
from service.openapi_parts import ANSWER_EXAMPLE, REQUEST_EXAMPLE, SERVER_TIMING, json_content

CREATE_EXAMPLE: dict[str, Any] = {"id": "lecture-1", "options": {"learn_from": "winner", "rate": 0.1}}

DESCRIPTION_EXAMPLE: dict[str, Any] = {
    "id": "lecture-1",
    "version": 1,
    "bundle": ANSWER_EXAMPLE["bundle"],
    "options": {
        "state": "carried",
        "weights": "dynamic",
        "learn_from": "winner",
        "rate": 0.1,
        "tau": 1,
        "decay": 0.0,
        "max_loss_rise": 0.5,
    },
    "rescoring": ANSWER_EXAMPLE["weights"],
    "utterances": 1,
    "words_learnt": 4,
    "lessons_undone": 0,
    "rank": 4,
    "bytes": 167200,
    "perplexity": {"mixture": {"session": 96.25, "static": 97.5, "events": 4}},
    "created": 1767225600.0,
    "used": 1767225660.0,
}

RESCORE_EXAMPLE: dict[str, Any] = {"utterance": REQUEST_EXAMPLE["utterances"][0]}

RESCORED_EXAMPLE: dict[str, Any] = {
    "session": "lecture-1",
    "version": 1,
    "repeated": False,
    "lesson": {"learnt": True, "words": 4, "undone": False},
    "bundle": ANSWER_EXAMPLE["bundle"],
    "result": ANSWER_EXAMPLE["results"][0],
}

_ID = {
    "name": "session_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"},
}
_UTTERANCE_ID = {"name": "utterance_id", "in": "path", "required": True, "schema": {"type": "string"}}
_IF_MATCH = {
    "name": "If-Match",
    "in": "header",
    "description": "Only change the session when it still is as an answer with this ETag left it. A version alone, "
    'such as "3", is taken too; it says nothing of whether the session is the same one.',
    "schema": {"type": "string"},
}
_ETAG = {
    "ETag": {
        "description": "The session's version, and which of the sessions that ever had the id it is.",
        "schema": {"type": "string"},
        "example": '"1-1f0c9a5be2d4"',
    }
}
_LOCATION = {"Location": {"description": "The session's path.", "schema": {"type": "string"}}}
_FILE = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}

_DESCRIBED = {
    **json_content("The session.", {"$ref": "#/components/schemas/SessionDescription"}, DESCRIPTION_EXAMPLE),
    "headers": _ETAG,
}
_MADE = {**_DESCRIBED, "headers": {**_ETAG, **_LOCATION}}


def _problem(description: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": description, "content": {problems.MEDIA_TYPE: {"schema": schema}}}


_UNAUTHORISED = _problem("The API key is missing or wrong.")
_UNKNOWN = _problem("There is no such session.")
_GONE = _problem("The session was deleted or has expired.")
_STORE = _problem("The session store cannot be reached or has no room, or the turn did not come in time.")
_FOREIGN = _problem("The session belongs to another bundle.")
_CONFLICT = _problem("The session is at another version, which `version` names, or belongs to another bundle.")
_BODY = {
    400: _problem("The body is no JSON, or If-Match names no version."),
    408: _problem("The body did not arrive in time."),
    413: _problem("The body or a list is too large."),
    415: _problem("The body is not of the media type that is taken."),
    422: _problem("A field is wrong."),
}
_OF_ONE = {401: _UNAUTHORISED, 404: _UNKNOWN, 410: _GONE, 503: _STORE}
_CHANGE = {**_OF_ONE, **_BODY, 409: _CONFLICT}
_NO_ROOM = _problem("As many sessions are kept as may be, or too many bodies are on their way.")


def _operation(name: str, responses: dict[int, Any], *parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    extra: dict[str, Any] = {"parameters": list(parameters)} if parameters else {}
    if "body" in more:
        extra["requestBody"] = more["body"]
    return {
        "operation_id": name,
        "tags": ["sessions"],
        "response_model": None,
        "status_code": more.get("status", 200),
        "responses": responses,
        "openapi_extra": extra,
    }


def _body(schema: str, example: dict[str, Any], *, required: bool = True) -> dict[str, Any]:
    content = {"schema": {"$ref": f"#/components/schemas/{schema}"}, "example": example}
    return {"required": required, "content": {"application/json": content}}


CREATE = _operation(
    "createSession",
    {
        201: _MADE,
        401: _UNAUTHORISED,
        **_BODY,
        409: _problem("A session of this id exists already."),
        429: _NO_ROOM,
        503: _STORE,
    },
    status=201,
    body=_body("CreateRequest", CREATE_EXAMPLE, required=False),
)

DESCRIBE = _operation("describeSession", {200: _DESCRIBED, **_OF_ONE, 409: _FOREIGN}, _ID)

RESCORE = _operation(
    "rescoreInSession",
    {
        200: {
            **json_content(
                "The result, and what was learnt from it.",
                {"$ref": "#/components/schemas/SessionAnswer"},
                RESCORED_EXAMPLE,
            ),
            "headers": {**_ETAG, **SERVER_TIMING},
        },
        **_CHANGE,
        409: _problem(
            "The session is at another version, which `version` names; it has accepted another utterance of this id; "
            "its log is full; or it belongs to another bundle."
        ),
        429: _problem("The queue is full; Retry-After says when to come back."),
        503: _problem("A model failed, the deadline passed before scoring, or the session store cannot be reached."),
        504: _problem("Scoring took longer than the deadline."),
    },
    _ID,
    _IF_MATCH,
    body=_body("SessionRescoreRequest", RESCORE_EXAMPLE),
)

CONFIRM = _operation(
    "confirmTranscript",
    {200: _DESCRIBED, **_CHANGE, 404: _problem("There is no such session, or it has accepted no such utterance.")},
    _ID,
    _UTTERANCE_ID,
    _IF_MATCH,
    body=_body("TranscriptRequest", {"text": "the cat sat"}),
)

RESET = _operation("resetSession", {200: _DESCRIBED, **_CHANGE}, _ID, _IF_MATCH)

FORK = _operation(
    "forkSession",
    {
        201: _MADE,
        **_CHANGE,
        409: _problem("The new id is taken, the session is at another version, or it belongs to another bundle."),
        429: _NO_ROOM,
    },
    _ID,
    _IF_MATCH,
    status=201,
    body=_body("ForkRequest", {"id": "lecture-1-what-if"}, required=False),
)

EXPORT = _operation(
    "exportSession",
    {
        200: {"description": "Safetensors: state, options and log.", "content": _FILE, "headers": _ETAG},
        **_OF_ONE,
        409: _FOREIGN,
    },
    _ID,
)

IMPORT = _operation(
    "importSession",
    {
        201: _MADE,
        401: _UNAUTHORISED,
        **{status: _BODY[status] for status in (408, 413, 415)},
        409: _problem("A session of this id exists already, or the file belongs to another bundle."),
        422: _problem("The file is broken, or the id is none."),
        429: _NO_ROOM,
        503: _STORE,
    },
    {
        "name": "id",
        "in": "query",
        "description": "What to call it; made up when left out.",
        "schema": _ID["schema"],
    },
    status=201,
    body={"required": True, "content": _FILE},
)

DELETE = _operation(
    "deleteSession",
    # OpenAPI asks for the content of every answer; there is none of this one.
    {
        204: {"description": "The session is deleted.", "content": {}},
        **_OF_ONE,
        400: _problem("If-Match names no version."),
        409: _problem("The session is at another version, which `version` names."),
    },
    _ID,
    _IF_MATCH,
    status=204,
)
