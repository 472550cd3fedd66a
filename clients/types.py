"""The wire format, repeated here so that clients need nothing of the service or the models.

Every score is a natural logarithm, except those of a request whose log_base is "10".
"""

from typing import Any, Literal, NotRequired, TypedDict

LogBase = Literal["e", "10"]
State = Literal["reset", "carried"]
Decision = Literal["total", "mbr", "consensus"]
LearnFrom = Literal["winner", "confirmed", "nothing"]


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


class Weights(TypedDict, total=False):
    """What overrides the bundle's weights, field by field; `interpolation` is replaced as a whole."""

    interpolation: dict[str, float]
    acoustic_scale: float
    first_pass_scale: float
    lm_scale: float
    word_bonus: float
    oov_bonus: float
    posterior_scale: float


class Options(Weights, total=False):
    """The options of a request: weights, whether hidden state is carried, and how lists are decided on.

    decision: "total": rank by total; "mbr": by expected word errors; "consensus": by total, with the consensus beside
    """

    state: State
    decision: Decision


class Form(TypedDict, total=False):
    """What the scores sent mean, and what is to be answered."""

    log_base: LogBase
    word_scores: bool
    compact: bool
    best_only: bool


class Settings(Form, total=False):
    """Everything of a request but its utterances.

    word_confidences: whether the words of each list's best hypothesis get confidences
    """

    options: Options
    word_confidences: bool


class Request(Settings):
    """The body of POST /v1/rescore."""

    utterances: list[Utterance]


class WordConfidences(TypedDict):
    """How far each word can be trusted.

    confidences: the posteriors, calibrated where `calibrated` says so
    posteriors:  of each word in its slot of the list's confusion network
    """

    words: list[str]
    confidences: list[float]
    posteriors: list[float]
    calibrated: bool


class Slot(TypedDict):
    """One place of a confusion network; all posteriors sum to 1."""

    words: dict[str, float]
    deletion: float


class Consensus(WordConfidences):
    """The best words of a confusion network. expected_errors: under the posteriors; slots: absent when compact."""

    text: str
    expected_errors: float
    slots: NotRequired[list[Slot]]


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
    expected_errors: NotRequired[float]
    word_confidences: NotRequired[WordConfidences]


class Result(TypedDict):
    """One utterance's result, best first; of a request with best_only the best alone."""

    id: str
    best_text: str
    consensus: NotRequired[Consensus]
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
    decision: Decision
    results: list[Result]


class NormalisationChoice(TypedDict, total=False):
    """What is done to words, after the bundle's normaliser, before they are compared."""

    unicode_form: Literal["NFC", "NFKC"] | None
    lowercase: bool
    strip_punctuation: bool
    dropped_words: list[str]


class EvaluationSettings(TypedDict, total=False):
    """Everything of an evaluation but its utterances; what is left out is as in `nbest evaluate`.

    set_name:       what to call the utterances
    system:         what to call the rescored system
    boundary_words: correct words that part two segments of the matched-pairs test
    breakdowns:     the groups to tell of
    confusions:     so many of the most frequent errors of each kind are told
    worst:          so many of the utterances with the most errors are told
    skip_missing_reference: leave out utterances without a reference, instead of refusing the set
    """

    options: Options
    log_base: LogBase
    set_name: str
    system: str
    resamples: int
    seed: int
    boundary_words: int
    normalisation: NormalisationChoice
    breakdowns: list[Literal["speaker", "session", "length", "position"]]
    confusions: int
    worst: int
    skip_missing_reference: bool


class Progress(TypedDict):
    """How far an evaluation is, as the server says about every second.

    stage: "scoring", then "summarising"
    done:  utterances that are counted; words and errors are theirs
    """

    event: Literal["progress"]
    stage: str
    done: int
    skipped: int
    words: int
    errors: int
    first_pass_errors: int


class SessionOptions(TypedDict, total=False):
    """What a session is, fixed when it is made; what is left out is the server's default.

    state:         whether hidden state is carried over utterances
    weights:       "dynamic": networks learn along each hypothesis and from what is accepted; "static": frozen
    learn_from:    the first-ranked hypothesis, confirmed texts alone, or nothing
    rate:          learning rate
    tau:           steps that an error is propagated back
    decay:         how strongly weights are drawn back towards the shared ones
    max_loss_rise: nats a word by which a lesson may harm its own text before it is undone
    """

    state: State
    weights: Literal["dynamic", "static"]
    learn_from: LearnFrom
    rate: float
    tau: int
    decay: float
    max_loss_rise: float


class Perplexity(TypedDict):
    """Perplexity of the accepted texts, before each was learnt; None before the first.

    session: under the session's networks
    static:  under the shared weights
    events:  words and sentence ends
    """

    session: float | None
    static: float | None
    events: int


class SessionDescription(TypedDict):
    """A session as the server describes it.

    version:    grows with each accepted utterance, confirmation or reset
    rescoring:  the weights of its rankings
    perplexity: "mixture" or model name -> perplexities
    bytes:      memory that its state takes
    """

    id: str
    version: int
    bundle: str
    options: SessionOptions
    rescoring: Weights
    utterances: int
    words_learnt: int
    lessons_undone: int
    rank: int
    bytes: int
    perplexity: dict[str, Perplexity]
    created: Any
    used: Any


class Lesson(TypedDict):
    """What a session learnt from an accepted winner. words: sentence end included."""

    learnt: bool
    words: int
    undone: bool


class SessionAnswer(TypedDict):
    """The answer to an utterance rescored in a session.

    version:  of the session after it
    repeated: whether this is the stored answer to a request that came before
    """

    session: str
    version: int
    repeated: bool
    lesson: Lesson
    bundle: str
    result: Result


class FieldProblem(TypedDict):
    """One field of a request that the server found fault with."""

    field: str
    message: str
    utterance: NotRequired[str]


class Problem(TypedDict):
    """A problem document (RFC 9457). version: of a session, where a call named another."""

    type: str
    title: str
    status: int
    detail: str
    errors: NotRequired[list[FieldProblem]]
    version: NotRequired[int]
