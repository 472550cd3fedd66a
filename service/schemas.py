"""What a request and an answer look like, and how a request's bytes are read.

Reading is strict: true and "1.0" are no scores, NaN and infinity are refused however they are written, and so
are fields that are not documented. JSON leaves two things open, and both are decided here: of a key that an
object names twice the last one counts, and a NUL character is refused wherever a text may stand. A lone
surrogate is no JSON text.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Annotated, Any, Generic, Literal, NotRequired, TypeVar, cast

import pydantic_core
from pydantic import AfterValidator, ConfigDict, FailFast, Field, TypeAdapter, ValidationError, with_config
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from service.errors import FieldError, InvalidRequestError, NotJSONError
from service.json_pieces import cut
from service.problems import MAX_ERRORS
from service.settings import UTTERANCES_CAP

T = TypeVar("T")

# An object with a million unknown fields would make a million pydantic errors, which take seconds. So the
# schema lets unknown fields pass, and `unknown_fields` refuses them afterwards at the price of a set
# comparison.
STRICT = ConfigDict(strict=True, extra="allow", json_schema_extra={"additionalProperties": False})
ANSWER = ConfigDict(strict=True, extra="forbid")
_MAX_NAME = 256
# Parsing this much takes a few milliseconds.
_LARGE_BYTES = 2**18
_MAX_SHOWN_KEY = 64
# What pydantic puts behind a path when it is the key itself that is wrong.
_OF_THE_KEY = "[key]"


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError("nul", "must not hold a NUL character")
    return text


Number = Annotated[float, Field(allow_inf_nan=False)]
BestOnly = Annotated[
    bool,
    Field(
        description="Answer with the best hypothesis of each list alone: a ranking of one. With compact, that is its "
        "text, index, total and posterior."
    ),
]
Name = Annotated[str, Field(max_length=_MAX_NAME), AfterValidator(_no_nul)]


@with_config(STRICT)
class Hypothesis(TypedDict):
    """One candidate transcript."""

    text: Annotated[str, Field(description="The transcript as the recogniser wrote it; may be empty.")]
    acoustic_score: Annotated[Number, Field(description="ln p(audio | words), unscaled.")]
    lm_score: NotRequired[
        Annotated[Number | None, Field(description="The recogniser's own ln p(words), in all hypotheses or none.")]
    ]


@with_config(STRICT)
class Utterance(TypedDict):
    """The N-best list of one utterance, best first by the recogniser's own ranking."""

    id: Annotated[Name, Field(description="The caller's name for it, unique in the request; returned as it came.")]
    hypotheses: Annotated[list[Hypothesis], FailFast(), Field(min_length=1)]
    reference: NotRequired[Annotated[str | None, Field(description="The true transcript; never used for scoring.")]]
    session_id: NotRequired[Annotated[Name | None, Field(description="What hidden state is carried within.")]]
    speaker: NotRequired[Name | None]


@with_config(STRICT)
class Rescoring(TypedDict):
    """Weights of a ranking; what is left out is the bundle's own. An explicit 0 is a value."""

    interpolation: NotRequired[
        Annotated[
            dict[Name, Number],
            FailFast(),
            Field(
                max_length=64,
                description="Model name to weight, summing to 1; models not named have weight 0.",
            ),
        ]
    ]
    acoustic_scale: NotRequired[Number]
    first_pass_scale: NotRequired[Number]
    lm_scale: NotRequired[Number]
    word_bonus: NotRequired[Annotated[Number, Field(description="Added per word; positive favours longer ones.")]]
    oov_bonus: NotRequired[Annotated[Number, Field(description="Added per word outside the vocabulary.")]]
    posterior_scale: NotRequired[Annotated[Number, Field(description="On the totals inside the softmax.")]]


@with_config(STRICT)
class Options(Rescoring):
    """Weights for this request alone; what is left out is the bundle's own. An explicit 0 is a value."""

    state: NotRequired[
        Annotated[
            Literal["reset", "carried"],
            Field(
                description="reset: each utterance starts anew. carried: each starts from the hidden state "
                "left by the winner of the session's previous utterance in this request; weights stay frozen."
            ),
        ]
    ]


@with_config(STRICT)
class RescoreRequest(TypedDict):
    """One or many N-best lists to rescore. A request is answered as a whole or refused as a whole."""

    utterances: Annotated[list[Utterance], Field(min_length=1, max_length=UTTERANCES_CAP)]
    options: NotRequired[Options]
    log_base: NotRequired[
        Annotated[Literal["e", "10"], Field(description="The base of the scores sent. Answers are natural logs.")]
    ]
    word_scores: NotRequired[Annotated[bool, Field(description="Answer with per-word values of each model.")]]
    compact: NotRequired[Annotated[bool, Field(description="Answer with order, totals and posteriors only.")]]
    best_only: NotRequired[BestOnly]


@with_config(ANSWER)
class Contributions(TypedDict):
    """The scaled parts of a total; they sum to it."""

    acoustic: Number
    first_pass: Number
    lm: Number
    word_bonus: Number
    oov_bonus: Number


@with_config(ANSWER)
class WordScores(TypedDict):
    """Per word, </s> last: ln P(word | history) of the mixture and of each model."""

    words: list[str]
    mixture: list[Number]
    models: dict[str, list[Number]]


@with_config(ANSWER)
class Ranked(TypedDict):
    """One hypothesis after rescoring. A compact answer has index, total and posterior only."""

    index: Annotated[int, Field(description="Its place in the list that was sent, from 0.")]
    total: Number
    posterior: Annotated[float, Field(ge=0, le=1, description="Its share of the list; the shares sum to 1.")]
    text: NotRequired[str]
    scored_text: NotRequired[Annotated[str, Field(description="The normalised words that were scored.")]]
    acoustic_score: NotRequired[Number]
    lm_score: NotRequired[Number | None]
    lm: NotRequired[Annotated[Number, Field(description="ln p(words) of the mixture, unscaled, </s> included.")]]
    words: NotRequired[int]
    oov_words: NotRequired[int]
    contributions: NotRequired[Contributions]
    lm_by_model: NotRequired[dict[str, Number]]
    word_scores: NotRequired[WordScores]


@with_config(ANSWER)
class Result(TypedDict):
    """One utterance's hypotheses, best first: N in, N out, unless best_only asked for the first alone."""

    id: str
    best_text: str
    ranking: list[Ranked]
    session_id: NotRequired[str]
    speaker: NotRequired[str]
    reference: NotRequired[str]
    scored_reference: NotRequired[str]


@with_config(ANSWER)
class Weights(TypedDict):
    """The weights that were used."""

    interpolation: dict[str, Number]
    acoustic_scale: Number
    first_pass_scale: Number
    lm_scale: Number
    word_bonus: Number
    oov_bonus: Number
    posterior_scale: Number


@with_config(ANSWER)
class RescoreAnswer(TypedDict):
    """Results in the order of the request's utterances; every score is a natural logarithm."""

    bundle: Annotated[str, Field(description="SHA-256 of the bundle that answered.")]
    weights: Weights
    state: Literal["reset", "carried"]
    results: list[Result]


@with_config(ANSWER)
class ProblemField(TypedDict):
    """What is wrong with one field."""

    field: str
    utterance: NotRequired[str]
    message: str


@with_config(ANSWER)
class Problem(TypedDict):
    """Any error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    version: NotRequired[Annotated[int, Field(description="The version that a session is at, where it conflicts.")]]
    errors: NotRequired[Annotated[list[ProblemField], Field(max_length=MAX_ERRORS)]]


class RequestReader(Generic[T]):
    """Turns the bytes of a body into a request of one kind.

    kind:    the TypedDict that the body is
    unknown: names the fields of a request that are not documented
    parts:   a field that holds an array of objects, and the TypedDict of these; a large body is read one by one
    """

    def __init__(
        self, kind: type[T], unknown: Callable[[T], Iterator[FieldError]], parts: tuple[str, type] | None = None
    ) -> None:
        self._adapter: TypeAdapter[T] = TypeAdapter(kind)
        self._unknown = unknown
        self._field = parts[0] if parts else ""
        self._part: TypeAdapter[Any] | None = TypeAdapter(parts[1]) if parts else None

    def read(self, body: bytes) -> T:
        """The request in a body. Raises NotJSONError, or InvalidRequestError naming fields and utterances."""
        request = self._read_by_parts(body, self._part) if self._part and len(body) > _LARGE_BYTES else None
        if request is None:
            try:
                request = self._adapter.validate_json(body)
            except ValidationError as error:
                raise _refusal(error, body) from None
        found = list(islice(self._unknown(request), MAX_ERRORS))
        if found:
            raise InvalidRequestError(f"{found[0].field}: {found[0].message}", errors=found)
        return request

    def _read_by_parts(self, body: bytes, part: TypeAdapter[Any]) -> T | None:
        """The request in a large body; None where it must be read as a whole.

        Of several parts that are wrong the first alone is reported.
        """
        pieces = cut(body, self._field)
        if pieces is None or len(pieces.items) > UTTERANCES_CAP:
            return None
        read, number, piece = [], 0, pieces.frame
        try:
            request: Any = self._adapter.validate_json(piece)
            for number, piece in enumerate(pieces.items):  # noqa: B007 - the refusal names it
                read.append(part.validate_json(piece))
        except ValidationError as error:
            if error.errors(include_url=False, include_input=False, include_context=False)[0]["type"] == "json_invalid":
                # Where it is no JSON is told by its place in the whole body.
                return None
            raise _refusal(error, piece, () if piece is pieces.frame else (self._field, number)) from None
        request[self._field] = read
        return cast("T", request)


def unknown_fields(request: RescoreRequest) -> Iterator[FieldError]:
    """The fields of a request, and of what it holds, that are not documented."""
    yield from unknown(request, RescoreRequest, "")
    yield from unknown(request.get("options", {}), Options, "options.")
    for number, utterance in enumerate(request["utterances"]):
        yield from unknown_in_utterance(utterance, f"utterances[{number}]")


def unknown_in_utterance(utterance: Utterance, where: str) -> Iterator[FieldError]:
    """The fields of an utterance that are not documented. where: its path in the request."""
    yield from unknown(utterance, Utterance, f"{where}.", utterance["id"])
    known = field_names(Hypothesis)
    for index, hypothesis in enumerate(utterance["hypotheses"]):
        if not hypothesis.keys() <= known:
            yield from unknown(hypothesis, Hypothesis, f"{where}.hypotheses[{index}].", utterance["id"])


def unknown(fields: Mapping[str, Any], kind: type, prefix: str, utterance: str | None = None) -> Iterator[FieldError]:
    """The fields of an object that its kind does not have. prefix: of their paths in the request."""
    known = field_names(kind)
    for name in fields:
        if name not in known:
            yield FieldError(prefix + field_path((name,)), "no such field", utterance)


@cache
def field_names(kind: type) -> frozenset[str]:
    """The names of a TypedDict's fields."""
    return frozenset(kind.__annotations__)


def field_path(location: tuple[int | str, ...]) -> str:
    """utterances[0].hypotheses[3] for ("utterances", 0, "hypotheses", 3); long keys are cut short."""
    out = ""
    for part in location:
        if isinstance(part, int):
            out += f"[{part}]"
        elif part != _OF_THE_KEY:
            name = part if len(part) <= _MAX_SHOWN_KEY else f"{part[:_MAX_SHOWN_KEY]}..."
            # Nobody's terminal shall act on a field's name.
            name = name if name.isprintable() else ascii(name)[1:-1]
            out += f".{name}" if out else name
    return out


def _refusal(
    error: ValidationError, body: bytes, where: tuple[int | str, ...] = ()
) -> NotJSONError | InvalidRequestError:
    """What is wrong with a body, or with a part of one. where: the part's place in the whole."""
    entries = error.errors(include_url=False, include_input=False, include_context=False)
    if entries[0]["type"] == "json_invalid":
        return NotJSONError(f"the body is no JSON: {entries[0]['msg'].removeprefix('Invalid JSON: ')}")
    found = []
    sent = pydantic_core.from_json(body)
    for entry in entries[:MAX_ERRORS]:
        location = where + entry["loc"]
        utterance = _id_of(sent) if where else _utterance_id(sent, location)
        found.append(FieldError(field_path(location) or "the body", entry["msg"], utterance))
    more = f" (and {len(entries) - 1} more)" if len(entries) > 1 else ""
    return InvalidRequestError(f"{found[0].field}: {found[0].message}{more}", errors=found)


def _utterance_id(sent: Any, location: tuple[int | str, ...]) -> str | None:
    match location:
        case ("utterances", int(index), *_):
            utterance = sent["utterances"][index]
        case ("utterance", _, *_):
            utterance = sent["utterance"]
        case _:
            return None
    return _id_of(utterance)


def _id_of(utterance: Any) -> str | None:
    name = utterance.get("id") if isinstance(utterance, dict) else None
    return name if isinstance(name, str) and len(name) <= _MAX_NAME else None
