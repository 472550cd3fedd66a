"""What a request and an answer look like. How a request's bytes are read is said in request_reader.py."""

from collections.abc import Iterator
from typing import Annotated, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, FailFast, Field, with_config
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from service.errors import FieldError
from service.problems import MAX_ERRORS
from service.request_reader import MAX_NAME, field_names, unknown
from service.settings import UTTERANCES_CAP

# An object with a million unknown fields would make a million pydantic errors, which take seconds. So the
# schema lets unknown fields pass, and `unknown_fields` refuses them afterwards at the price of a set
# comparison.
STRICT = ConfigDict(strict=True, extra="allow", json_schema_extra={"additionalProperties": False})
ANSWER = ConfigDict(strict=True, extra="forbid")


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError("nul", "must not hold a NUL character")
    return text


Number = Annotated[float, Field(allow_inf_nan=False)]
Rule = Literal["total", "mbr", "consensus"]
Share = Annotated[float, Field(ge=0, le=1)]
BestOnly = Annotated[
    bool,
    Field(
        description="Answer with the best hypothesis of each list alone: a ranking of one. With compact, that is its "
        "text, index, total and posterior."
    ),
]
Name = Annotated[str, Field(max_length=MAX_NAME), AfterValidator(_no_nul)]


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
    decision: NotRequired[
        Annotated[
            Rule,
            Field(
                description="total: rank by total. mbr: rank by expected word errors under the posteriors of the list. "
                "consensus: rank by total, and add the best words of a confusion network."
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
    word_confidences: NotRequired[
        Annotated[bool, Field(description="Answer with a confidence for each word of the best hypothesis.")]
    ]
    compact: NotRequired[
        Annotated[bool, Field(description="Answer with order, totals, posteriors and what was decided only.")]
    ]
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
class WordConfidences(TypedDict):
    """How far each word of a text can be trusted."""

    words: list[str]
    confidences: Annotated[list[Share], Field(description="The posteriors, calibrated where `calibrated` says so.")]
    posteriors: Annotated[list[Share], Field(description="Of each word in its slot of the confusion network.")]
    calibrated: Annotated[bool, Field(description="True where the bundle has a calibration for the weights used.")]


@with_config(ANSWER)
class Slot(TypedDict):
    """One place of a confusion network; the posteriors sum to 1."""

    words: Annotated[dict[str, Share], Field(description="Posterior of each word, the most probable first.")]
    deletion: Annotated[Share, Field(description="Posterior of there being no word.")]


@with_config(ANSWER)
class Consensus(WordConfidences):
    """The best words of a confusion network; they need not be a hypothesis of the list."""

    text: str
    expected_errors: Annotated[Number, Field(ge=0, description="Expected word errors under the posteriors.")]
    slots: NotRequired[Annotated[list[Slot], Field(description="The network; left out of compact answers.")]]


@with_config(ANSWER)
class Ranked(TypedDict):
    """One hypothesis after rescoring. A compact answer has index, total, posterior and what was decided only."""

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
    expected_errors: NotRequired[
        Annotated[Number, Field(ge=0, description="With mbr: expected word errors under the posteriors of the list.")]
    ]
    word_confidences: NotRequired[Annotated[WordConfidences, Field(description="Of the best hypothesis alone.")]]


@with_config(ANSWER)
class Result(TypedDict):
    """One utterance's hypotheses, best first: N in, N out, unless best_only asked for the first alone."""

    id: str
    best_text: Annotated[str, Field(description="The text of the first of the ranking.")]
    consensus: NotRequired[Consensus]
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
    decision: Rule
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
