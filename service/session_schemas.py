"""What requests about sessions and their answers look like; read as strictly as all others."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal, NotRequired

from pydantic import AfterValidator, Field, with_config
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from service.errors import FieldError
from service.request_reader import unknown
from service.schemas import (
    ANSWER,
    STRICT,
    BestOnly,
    Number,
    Rescoring,
    Result,
    Utterance,
    Weights,
    unknown_in_utterance,
)

# An error that goes back further than this teaches next to nothing, and each step back costs memory and time.
MAX_TAU = 32
# A step that is larger drives any network out of the range of its numbers.
MAX_RATE = 10.0

ID_RULE = "must be 1 to 128 of A-Z a-z 0-9 . _ : -, and neither . nor .."
_SESSION_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def is_session_id(text: str) -> bool:
    """Whether a session may be called so."""
    return _SESSION_ID.fullmatch(text) is not None and text not in {".", ".."}


def _check_session_id(text: str) -> str:
    if not is_session_id(text):
        raise PydanticCustomError("session_id", ID_RULE)
    return text


SessionId = Annotated[
    str, Field(json_schema_extra={"pattern": f"^{_SESSION_ID.pattern}$"}), AfterValidator(_check_session_id)
]


@with_config(STRICT)
class SessionSwitches(TypedDict):
    """How a session learns, fixed when it is made; what is left out is as in Mikolov et al. 2010."""

    state: NotRequired[
        Annotated[
            Literal["carried", "reset"],
            Field(description="carried: each utterance starts from where the last one ended. reset: each starts anew."),
        ]
    ]
    weights: NotRequired[
        Annotated[
            Literal["dynamic", "static"],
            Field(description="dynamic: the network learns along every hypothesis and from what is accepted."),
        ]
    ]
    learn_from: NotRequired[
        Annotated[
            Literal["winner", "confirmed", "nothing"],
            Field(
                description="winner: the first-ranked hypothesis, replaced by a confirmed transcript where one is "
                "sent. confirmed: confirmed transcripts alone."
            ),
        ]
    ]
    rate: NotRequired[
        Annotated[
            Number, Field(ge=0, le=MAX_RATE, description="Learning rate; by default as tuned for the bundle, else 0.1.")
        ]
    ]
    tau: NotRequired[
        Annotated[int, Field(ge=1, le=MAX_TAU, description="Steps that an error goes back through time; default 1.")]
    ]
    decay: NotRequired[
        Annotated[
            Number, Field(ge=0, description="How strongly weights are drawn back to the shared ones; at most 1 / rate.")
        ]
    ]
    max_loss_rise: NotRequired[
        Annotated[
            Number,
            Field(
                ge=0,
                description="A lesson after which the network gives the very text learnt this many nats a word less "
                "than before is undone; default 0.5.",
            ),
        ]
    ]


@with_config(STRICT)
class CreateRequest(TypedDict):
    """A session to be made; an empty body is {}."""

    id: NotRequired[Annotated[SessionId, Field(description="What to call it; made up when left out.")]]
    options: NotRequired[SessionSwitches]
    rescoring: NotRequired[Annotated[Rescoring, Field(description="Weights of all the session's rankings.")]]


@with_config(STRICT)
class SessionRescoreRequest(TypedDict):
    """One utterance to rescore in a session. Its id tells a repeated request from a new one."""

    utterance: Utterance
    log_base: NotRequired[
        Annotated[Literal["e", "10"], Field(description="The base of the scores sent. Answers are natural logs.")]
    ]
    word_scores: NotRequired[Annotated[bool, Field(description="Answer with per-word values of each model.")]]
    compact: NotRequired[Annotated[bool, Field(description="Answer with order, totals and posteriors only.")]]
    best_only: NotRequired[BestOnly]


@with_config(STRICT)
class TranscriptRequest(TypedDict):
    """What was really said."""

    text: Annotated[str, Field(description="The transcript, which the bundle's normaliser turns into words.")]


@with_config(STRICT)
class ForkRequest(TypedDict):
    """A session to be made from another; an empty body is {}."""

    id: NotRequired[Annotated[SessionId, Field(description="What to call the new one; made up when left out.")]]


@with_config(ANSWER)
class Switches(TypedDict):
    """The options of a session."""

    state: Literal["carried", "reset"]
    weights: Literal["dynamic", "static"]
    learn_from: Literal["winner", "confirmed", "nothing"]
    rate: Number
    tau: int
    decay: Number
    max_loss_rise: Number


@with_config(ANSWER)
class Perplexity(TypedDict):
    """Of the accepted texts, each scored when it came and before anything was learnt from it; null before the first."""

    session: Annotated[Number | None, Field(description="Under the session's networks, learning along the text.")]
    static: Annotated[Number | None, Field(description="Under the shared weights, with the session's state switch.")]
    events: Annotated[int, Field(description="Words and sentence ends.")]


@with_config(ANSWER)
class SessionDescription(TypedDict):
    """A session as it stands."""

    id: str
    version: Annotated[int, Field(description="One more with each accepted utterance, confirmation and reset.")]
    bundle: Annotated[str, Field(description="SHA-256 of the bundle whose networks it differs from.")]
    options: Switches
    rescoring: Weights
    utterances: Annotated[int, Field(description="In the log, since the last reset.")]
    words_learnt: Annotated[int, Field(description="Words and sentence ends that stand in the weights.")]
    lessons_undone: Annotated[int, Field(description="Lessons undone because they did harm.")]
    rank: Annotated[int, Field(description="Largest rank of a network's difference from the shared weights.")]
    bytes: Annotated[int, Field(description="Memory that the difference takes.")]
    perplexity: Annotated[dict[str, Perplexity], Field(description='By model, and of their "mixture".')]
    created: Annotated[Number, Field(description="Seconds since 1970.")]
    used: Annotated[Number, Field(description="Seconds since 1970: last changed, or about last read.")]


@with_config(ANSWER)
class Lesson(TypedDict):
    """What was learnt from the winner."""

    learnt: bool
    words: Annotated[int, Field(description="Words and sentence ends learnt.")]
    undone: Annotated[bool, Field(description="Whether the lesson did harm and was undone.")]


@with_config(ANSWER)
class SessionAnswer(TypedDict):
    """One utterance rescored in a session; every score is a natural logarithm."""

    session: str
    version: Annotated[int, Field(description="The session's version with this utterance accepted.")]
    repeated: Annotated[bool, Field(description="Whether this answer was given before, and nothing learnt now.")]
    lesson: Lesson
    bundle: str
    result: Result


def unknown_in_create(request: CreateRequest) -> Iterator[FieldError]:
    """The fields that are not documented."""
    yield from unknown(request, CreateRequest, "")
    yield from unknown(request.get("options", {}), SessionSwitches, "options.")
    yield from unknown(request.get("rescoring", {}), Rescoring, "rescoring.")


def unknown_in_rescore(request: SessionRescoreRequest) -> Iterator[FieldError]:
    """The fields that are not documented."""
    yield from unknown(request, SessionRescoreRequest, "")
    yield from unknown_in_utterance(request["utterance"], "utterance")


def unknown_in_transcript(request: TranscriptRequest) -> Iterator[FieldError]:
    """The fields that are not documented."""
    return unknown(request, TranscriptRequest, "")


def unknown_in_fork(request: ForkRequest) -> Iterator[FieldError]:
    """The fields that are not documented."""
    return unknown(request, ForkRequest, "")
