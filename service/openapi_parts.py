"""What OpenAPI says beside the code: schemas from `schemas`, and examples that a test sends and compares."""

from typing import Any

from pydantic import TypeAdapter

from service import evaluation_schemas, problems, schemas, session_schemas

DESCRIPTION = """\
Re-ranks the N-best lists of a speech recogniser under a mixture of language models.

Scores sent are natural logarithms unless `log_base` says `10`; scores answered always are. A request is
answered as a whole or refused as a whole. Bodies are read strictly: numbers are finite JSON numbers, unknown
fields are refused, of a key named twice in an object the last counts, and no text may hold NUL, a lone
surrogate, `<s>` or `</s>`.

Every error is an `application/problem+json` document (RFC 9457). 429 and most 503 come with `Retry-After`;
rescoring changes nothing outside sessions, and inside one an utterance of an id is accepted once, so a request may
be repeated safely. Where the service has an API key, every
request but those to `/health/*` needs `Authorization: Bearer KEY`.
"""

REQUEST_EXAMPLE: dict[str, Any] = {
    "utterances": [
        {
            "id": "lecture-1-0007",
            "hypotheses": [
                {"text": "the cat sad", "acoustic_score": -101.5, "lm_score": -13.2},
                {"text": "the cat sat", "acoustic_score": -101.9, "lm_score": -13.9},
            ],
            "reference": "The cat sat.",
        }
    ],
    "options": {"lm_scale": 8.0, "word_bonus": 0.5},
}

ANSWER_EXAMPLE: dict[str, Any] = {
    "bundle": "5f0c1d6a0c0f7f7c3a1a0f8c56d4cf7a8b6f4a1d2b3c4d5e6f708192a3b4c5d6",
    "weights": {
        "acoustic_scale": 1.0,
        "first_pass_scale": 0.0,
        "lm_scale": 8.0,
        "word_bonus": 0.5,
        "oov_bonus": 0.0,
        "posterior_scale": 0.1,
        "interpolation": {"kn5": 1.0},
    },
    "state": "reset",
    "decision": "total",
    "results": [
        {
            "id": "lecture-1-0007",
            "reference": "The cat sat.",
            "scored_reference": "the cat sat",
            "best_text": "the cat sat",
            "ranking": [
                {
                    "index": 1,
                    "text": "the cat sat",
                    "scored_text": "the cat sat",
                    "total": -180.4,
                    "posterior": 0.6479408,
                    "acoustic_score": -101.9,
                    "lm_score": -13.9,
                    "lm": -10.0,
                    "words": 3,
                    "oov_words": 0,
                    "contributions": {
                        "acoustic": -101.9,
                        "first_pass": 0.0,
                        "lm": -80.0,
                        "word_bonus": 1.5,
                        "oov_bonus": 0.0,
                    },
                    "lm_by_model": {"kn5": -10.0},
                },
                {
                    "index": 0,
                    "text": "the cat sad",
                    "scored_text": "the cat sad",
                    "total": -186.5,
                    "posterior": 0.3520592,
                    "acoustic_score": -101.5,
                    "lm_score": -13.2,
                    "lm": -10.8125,
                    "words": 3,
                    "oov_words": 0,
                    "contributions": {
                        "acoustic": -101.5,
                        "first_pass": 0.0,
                        "lm": -86.5,
                        "word_bonus": 1.5,
                        "oov_bonus": 0.0,
                    },
                    "lm_by_model": {"kn5": -10.8125},
                },
            ],
        }
    ],
}

BEST_ONLY = {"compact": True, "best_only": True}
CONSENSUS = {"options": {**REQUEST_EXAMPLE["options"], "decision": "consensus"}, **BEST_ONLY}

BEST_ANSWER_EXAMPLE: dict[str, Any] = {
    **ANSWER_EXAMPLE,
    "results": [
        {
            "id": "lecture-1-0007",
            "best_text": "the cat sat",
            "ranking": [{"index": 1, "total": -180.4, "posterior": 0.6479408}],
        }
    ],
}

CONSENSUS_ANSWER_EXAMPLE: dict[str, Any] = {
    **ANSWER_EXAMPLE,
    "decision": "consensus",
    "results": [
        {
            "id": "lecture-1-0007",
            "best_text": "the cat sat",
            "consensus": {
                "text": "the cat sat",
                "words": ["the", "cat", "sat"],
                "confidences": [1.0, 1.0, 0.6479408],
                "posteriors": [1.0, 1.0, 0.6479408],
                "calibrated": False,
                "expected_errors": 0.3520592,
            },
            "ranking": [{"index": 1, "total": -180.4, "posterior": 0.6479408}],
        }
    ],
}

SERVER_TIMING: dict[str, Any] = {
    "Server-Timing": {
        "description": "Milliseconds that each stage took, in order, and their total from the complete request on.",
        "schema": {"type": "string"},
        "example": "parse;dur=0.210, prepare;dur=0.905, queue;dur=0.120, score;dur=61.300, encode;dur=0.240, "
        "total;dur=63.000",
    }
}

PROBLEM_EXAMPLE: dict[str, Any] = {
    "type": "/problems/invalid-request",
    "title": "Invalid request",
    "status": 422,
    "detail": "utterances[0].hypotheses[1].acoustic_score: Input should be a finite number",
    "errors": [
        {
            "field": "utterances[0].hypotheses[1].acoustic_score",
            "utterance": "lecture-1-0007",
            "message": "Input should be a finite number",
        }
    ],
}


def json_content(description: str, schema: dict[str, Any], example: Any) -> dict[str, Any]:
    """An answer in JSON."""
    return {
        "description": description,
        "content": {"application/json": {"schema": schema, "example": example}},
    }


def _problem(description: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        "description": description,
        "content": {problems.MEDIA_TYPE: {"schema": schema, "example": PROBLEM_EXAMPLE}},
    }


def _status(word: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"status": {"const": word}}, "required": ["status"]}


RESCORE: dict[str, Any] = {
    "operation_id": "rescore",
    "tags": ["rescoring"],
    "response_model": None,
    "responses": {
        200: {
            "description": "Results in request order.",
            "headers": SERVER_TIMING,
            "content": {
                "application/json": {
                    "schema": {"$ref": "#/components/schemas/RescoreAnswer"},
                    "examples": {
                        "ranking": {"summary": "Every hypothesis", "value": ANSWER_EXAMPLE},
                        "best": {"summary": "The best alone", "value": BEST_ANSWER_EXAMPLE},
                        "consensus": {"summary": "A consensus", "value": CONSENSUS_ANSWER_EXAMPLE},
                    },
                }
            },
        },
        400: _problem("The body is no JSON."),
        401: _problem("The API key is missing or wrong."),
        408: _problem("The body did not arrive in time."),
        413: _problem("The body, a list, or the request as a whole is too large."),
        415: _problem("The body is not plain JSON."),
        422: _problem("A field is wrong, a list cannot be scored, or a model is unknown."),
        429: _problem("The queue is full; Retry-After says when to come back."),
        503: _problem("A model failed, the deadline passed in the queue, or the service is stopping."),
        504: _problem("Scoring took longer than the deadline."),
    },
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"$ref": "#/components/schemas/RescoreRequest"},
                    "examples": {
                        "ranking": {"summary": "Every hypothesis", "value": REQUEST_EXAMPLE},
                        "best": {"summary": "The best alone", "value": {**REQUEST_EXAMPLE, **BEST_ONLY}},
                        "consensus": {"summary": "A consensus", "value": {**REQUEST_EXAMPLE, **CONSENSUS}},
                    },
                }
            },
        }
    },
}

MODELS: dict[str, Any] = {
    "operation_id": "models",
    "tags": ["rescoring"],
    "response_model": None,
    "responses": {
        200: {
            "description": "Bundle hash, vocabulary, normaliser, models and default weights.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        401: _problem("The API key is missing or wrong."),
    },
}

LIVE: dict[str, Any] = {
    "operation_id": "live",
    "tags": ["health"],
    "response_model": None,
    "responses": {200: json_content("The process serves requests.", _status("alive"), {"status": "alive"})},
    "openapi_extra": {"security": []},
}

READY: dict[str, Any] = {
    "operation_id": "ready",
    "tags": ["health"],
    "response_model": None,
    "responses": {
        200: json_content("The models score sentences.", _status("ready"), {"status": "ready"}),
        503: _problem("Starting, stopping, or the last step failed."),
    },
    "openapi_extra": {"security": []},
}

METRICS: dict[str, Any] = {
    "operation_id": "metrics",
    "tags": ["health"],
    "response_model": None,
    "responses": {
        200: {
            "description": "Metrics in Prometheus's text format.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        401: _problem("The API key is missing or wrong."),
    },
}


def components() -> dict[str, Any]:
    """The schemas that the parts above point to, and how the API key is sent."""
    kinds: tuple[Any, ...] = (
        schemas.RescoreRequest,
        schemas.RescoreAnswer,
        schemas.Problem,
        evaluation_schemas.EvaluateRequest,
        evaluation_schemas.EvaluationSettings,
        evaluation_schemas.EvaluationResult,
        evaluation_schemas.ProgressEvent,
        evaluation_schemas.ResultEvent,
        session_schemas.CreateRequest,
        session_schemas.SessionDescription,
        session_schemas.SessionRescoreRequest,
        session_schemas.SessionAnswer,
        session_schemas.TranscriptRequest,
        session_schemas.ForkRequest,
    )
    _, document = TypeAdapter.json_schemas(
        [(kind, "validation", TypeAdapter(kind)) for kind in kinds],
        ref_template="#/components/schemas/{model}",
    )
    return {
        "schemas": document["$defs"],
        "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
    }
