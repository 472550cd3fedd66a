"""What a request to evaluate, and the answer to it, look like."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, Field, WithJsonSchema, with_config
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from service.errors import FieldError
from service.request_reader import unknown
from service.schemas import ANSWER, STRICT, Name, Number, Rescoring, Rule, Utterance, unknown_in_utterance
from service.settings import UTTERANCES_CAP

_MOST_SHOWN = 1000
# Above it numpy's generators take no seed from a JSON number that others can repeat.
_LARGEST_SEED = 2**63 - 1


def _reset_only(state: str) -> str:
    if state != "reset":
        raise PydanticCustomError(
            "state",
            "an evaluation scores each utterance anew, so the state can only be reset; results of carried state or of "
            "sessions are evaluated from their file",
        )
    return state


@with_config(STRICT)
class EvaluationOptions(Rescoring):
    """Weights and decision for this evaluation alone; what is left out is the bundle's own."""

    state: NotRequired[
        Annotated[str, AfterValidator(_reset_only), WithJsonSchema({"const": "reset", "type": "string"})]
    ]
    decision: NotRequired[Annotated[Rule, Field(description="What the lists are ranked by.")]]


@with_config(STRICT)
class NormalisationChoice(TypedDict):
    """What is done to the words, after the bundle's normaliser, before they are compared; nothing unless chosen."""

    unicode_form: NotRequired[Literal["NFC", "NFKC"] | None]
    lowercase: NotRequired[bool]
    strip_punctuation: NotRequired[bool]
    dropped_words: NotRequired[Annotated[list[Name], Field(max_length=_MOST_SHOWN)]]


@with_config(STRICT)
class EvaluationSettings(TypedDict):
    """Everything of an evaluation but its utterances; the first line of an NDJSON body."""

    options: NotRequired[EvaluationOptions]
    log_base: NotRequired[Annotated[Literal["e", "10"], Field(description="The base of the scores sent.")]]
    set_name: NotRequired[Annotated[Name, Field(description="What to call the utterances; evaluation if left out.")]]
    system: NotRequired[Annotated[Name, Field(description="What to call the rescored system; rescored if left out.")]]
    resamples: NotRequired[Annotated[int, Field(ge=100, le=100_000, description="Of the bootstrap; 10000.")]]
    seed: NotRequired[Annotated[int, Field(ge=0, le=_LARGEST_SEED, description="Of the bootstrap; 1.")]]
    boundary_words: NotRequired[
        Annotated[int, Field(ge=1, le=_MOST_SHOWN, description="Correct words that part two segments; 2.")]
    ]
    normalisation: NotRequired[NormalisationChoice]
    breakdowns: NotRequired[
        Annotated[
            list[Literal["speaker", "session", "length", "position"]],
            Field(max_length=4, description="Groups to tell the errors of; all, when left out."),
        ]
    ]
    confusions: NotRequired[
        Annotated[int, Field(ge=0, le=_MOST_SHOWN, description="Most frequent errors of each kind to tell; 20.")]
    ]
    worst: NotRequired[
        Annotated[int, Field(ge=0, le=_MOST_SHOWN, description="Utterances with the most errors to tell; 0.")]
    ]
    skip_missing_reference: NotRequired[
        Annotated[bool, Field(description="Leave out utterances without a reference, and count them; else refuse.")]
    ]


@with_config(STRICT)
class EvaluateRequest(EvaluationSettings):
    """A small set as one JSON document. Every utterance needs a reference."""

    utterances: Annotated[list[Utterance], Field(min_length=1, max_length=UTTERANCES_CAP)]


Pair = Annotated[list[Number], Field(min_length=2, max_length=2, description="The middle 95 % of the resamples.")]
Percent = Annotated[Number, Field(description="In per cent.")]
Count = Annotated[int, Field(ge=0)]


@with_config(ANSWER)
class EvaluatedSystem(TypedDict):
    """First pass, rescored system or oracle; rates in per cent."""

    name: str
    wer_percent: Percent
    wer_interval_percent: Pair
    cer_percent: Percent
    cer_interval_percent: Pair
    ser_percent: Percent
    ser_interval_percent: Pair
    mer_percent: Percent
    mer_interval_percent: Pair
    wil_percent: Percent
    wil_interval_percent: Pair
    errors: Count
    substitutions: Count
    deletions: Count
    insertions: Count
    reference_words: Count
    hypothesis_words: Count
    utterances: Count
    wrong_utterances: Count
    character_errors: Count
    reference_characters: Count
    kaldi: Annotated[list[str], Field(description="The lines %WER and %SER as Kaldi writes them.")]
    confusions: dict[str, Any]
    bundle: NotRequired[str]
    weights: NotRequired[dict[str, Any]]
    state: NotRequired[str]
    decision: NotRequired[str]
    before_normalisation: NotRequired[dict[str, Any]]
    against_first_pass: NotRequired[dict[str, Any]]
    effect: NotRequired[dict[str, Any]]
    worst: NotRequired[list[dict[str, Any]]]


@with_config(ANSWER)
class EvaluationResult(TypedDict):
    """The evaluation, as `nbest evaluate --json` writes it: first pass, rescored and oracle on the same utterances."""

    set: str
    utterances: Count
    skipped_without_reference: Count
    hypotheses_per_list: Count
    words: str
    normalisation: dict[str, Any]
    systems: list[EvaluatedSystem]
    comparisons: list[dict[str, Any]]
    oracle_by_depth: list[dict[str, Any]]
    breakdowns: dict[str, list[dict[str, Any]]]
    bootstrap: dict[str, Number]
    matched_pairs: dict[str, int]
    correction: dict[str, Any]
    findings: list[str]
    software: Annotated[dict[str, str], Field(description="Name and version of what computed this.")]
    signatures: Annotated[dict[str, str], Field(description="What another lab needs to repeat the figures.")]


@with_config(ANSWER)
class ProgressEvent(TypedDict):
    """How far an evaluation is; a line of the stream, about every second."""

    event: Literal["progress"]
    stage: Annotated[
        Literal["scoring", "summarising"], Field(description="summarising: all are counted, the bootstrap runs.")
    ]
    done: Annotated[Count, Field(description="Utterances counted.")]
    skipped: Annotated[Count, Field(description="Utterances left out for want of a reference.")]
    words: Annotated[Count, Field(description="Words of the references counted.")]
    errors: Annotated[Count, Field(description="Word errors of the rescored system.")]
    first_pass_errors: Annotated[Count, Field(description="Word errors of the first pass.")]


@with_config(ANSWER)
class ResultEvent(EvaluationResult):
    """The last line of an evaluation that succeeded."""

    event: Literal["result"]


def unknown_in_settings(settings: EvaluationSettings) -> Iterator[FieldError]:
    """The fields of an NDJSON body's first line that are not documented."""
    yield from unknown(settings, EvaluationSettings, "")
    yield from _unknown_within(settings)


def unknown_in_evaluate(request: EvaluateRequest) -> Iterator[FieldError]:
    """The fields of a request, and of what it holds, that are not documented."""
    yield from unknown(request, EvaluateRequest, "")
    yield from _unknown_within(request)
    for number, utterance in enumerate(request["utterances"]):
        yield from unknown_in_utterance(utterance, f"utterances[{number}]")


def unknown_in_line(utterance: Utterance) -> Iterator[FieldError]:
    """The fields that are not documented of an utterance that stands alone in a line."""
    for error in unknown_in_utterance(utterance, ""):
        yield replace(error, field=error.field.removeprefix("."))


def _unknown_within(settings: EvaluationSettings | EvaluateRequest) -> Iterator[FieldError]:
    yield from unknown(settings.get("options", {}), EvaluationOptions, "options.")
    yield from unknown(settings.get("normalisation", {}), NormalisationChoice, "normalisation.")
