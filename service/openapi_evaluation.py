"""What OpenAPI says of evaluations beside the code; its examples are sent and compared by a test."""

import json
from typing import Any

from service import problems
from service.middleware import NDJSON
from service.openapi_parts import PROBLEM_EXAMPLE, REQUEST_EXAMPLE

SETTINGS_EXAMPLE: dict[str, Any] = {"options": {"lm_scale": 8.0}, "resamples": 1000, "seed": 1, "worst": 5}
REQUEST: dict[str, Any] = {**SETTINGS_EXAMPLE, "utterances": REQUEST_EXAMPLE["utterances"]}
LINES_EXAMPLE = "".join(json.dumps(document) + "\n" for document in (SETTINGS_EXAMPLE, *REQUEST_EXAMPLE["utterances"]))
PROGRESS_EXAMPLE: dict[str, Any] = {
    "event": "progress",
    "stage": "scoring",
    "done": 1200,
    "skipped": 0,
    "words": 21504,
    "errors": 1630,
    "first_pass_errors": 1871,
}
_EVENTS = "\n".join(json.dumps(event) for event in (PROGRESS_EXAMPLE, {"event": "error", **PROBLEM_EXAMPLE}))


def _schema(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _problem(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {problems.MEDIA_TYPE: {"schema": _schema("Problem"), "example": PROBLEM_EXAMPLE}},
    }


_ERROR_EVENT = {
    "title": "ErrorEvent",
    "description": "The last line of an evaluation that failed: a problem document with an event.",
    "allOf": [
        {"type": "object", "properties": {"event": {"const": "error"}}, "required": ["event"]},
        _schema("Problem"),
    ],
}

EVALUATE: dict[str, Any] = {
    "operation_id": "evaluate",
    "tags": ["evaluation"],
    "response_model": None,
    "responses": {
        200: {
            "description": "The evaluation of first pass, rescored and oracle. As "
            f"{NDJSON}, which a body of that type is always answered with, and a JSON body where Accept asks for it: a "
            "progress event about every second, then one result or error event. The schema is that of a line.",
            "content": {
                "application/json": {"schema": _schema("EvaluationResult")},
                NDJSON: {
                    "schema": {"oneOf": [_schema("ProgressEvent"), _schema("ResultEvent"), _ERROR_EVENT]},
                    "example": _EVENTS,
                },
            },
        },
        400: _problem("The body, or its first line, is no JSON."),
        401: _problem("The API key is missing or wrong."),
        408: _problem("The body, or a line of it, did not arrive in time."),
        413: _problem("A line, a list, the number of lines, or a JSON body is too large."),
        415: _problem(f"The body is neither JSON nor {NDJSON}."),
        422: _problem("A setting or an utterance is wrong, a reference is missing, or there is no error rate."),
        429: _problem("As many evaluations run as may, or the queue is full; Retry-After says when to come back."),
        503: _problem("A model failed, the deadline passed in the queue, or the service is stopping."),
        504: _problem("Scoring a list took longer than the deadline."),
    },
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": _schema("EvaluateRequest"), "example": REQUEST},
                NDJSON: {
                    "schema": {
                        "description": "The schema of a line: the first holds the settings, each that follows an "
                        "utterance. Blank lines are skipped.",
                        "anyOf": [_schema("EvaluationSettings"), _schema("Utterance")],
                    },
                    "example": LINES_EXAMPLE,
                },
            },
        }
    },
}
