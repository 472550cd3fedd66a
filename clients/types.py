"""The wire format, repeated here so that clients need nothing of the service or the models.

Every score is a natural logarithm, except those of a request whose log_base is "10".
"""

from typing import Any, Literal, NotRequired, TypedDict

LogBase = Literal["e", "10"]
State = Literal["reset", "carried"]


class Hypothesis(TypedDict):
    """One candidate transcript with its unscaled scores."""

    text: str
    acoustic_score: float
    lm_score: NotRequired[float | None]


class Utterance(TypedDict):
    """One N-best list, best first by the recogniser's own ranking; a line of an N-best file."""

    id: str
    hypotheses: list[Hypothesis]
    reference: NotRequired[str | None]
    session_id: NotRequired[str | None]
    speaker: NotRequired[str | None]


class Options(TypedDict, total=False):
    """What overrides the bundle's weights, field by field; `interpolation` is replaced as a whole."""

    interpolation: dict[str, float]
    acoustic_scale: float
    first_pass_scale: float
    lm_scale: float
    word_bonus: float
    oov_bonus: float
    posterior_scale: float
    state: State


class Settings(TypedDict, total=False):
    """Everything of a request but its utterances."""

    options: Options
    log_base: LogBase
    word_scores: bool
    compact: bool


class Request(Settings):
    """The body of POST /v1/rescore."""

    utterances: list[Utterance]


class Ranked(TypedDict):
    """A hypothesis in a result, with its place in the input; the parts are absent when compact."""

    index: int
    total: float
    posterior: float
    text: NotRequired[str]
    scored_text: NotRequired[str]
    acoustic_score: NotRequired[float]
    lm_score: NotRequired[float | None]
    lm: NotRequired[float]
    words: NotRequired[int]
    oov_words: NotRequired[int]
    contributions: NotRequired[dict[str, float]]
    lm_by_model: NotRequired[dict[str, float]]
    word_scores: NotRequired[dict[str, Any]]


class Result(TypedDict):
    """One utterance's result, best first."""

    id: str
    best_text: str
    ranking: list[Ranked]
    session_id: NotRequired[str]
    speaker: NotRequired[str]
    reference: NotRequired[str]
    scored_reference: NotRequired[str]


class Answer(TypedDict):
    """The answer of POST /v1/rescore; results are in the order of the request."""

    bundle: str
    weights: dict[str, Any]
    state: State
    results: list[Result]


class FieldProblem(TypedDict):
    """One field of a request that the server found fault with."""

    field: str
    message: str
    utterance: NotRequired[str]


class Problem(TypedDict):
    """A problem document (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: NotRequired[list[FieldProblem]]
