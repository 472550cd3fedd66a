"""From a request to its answer: checked and prepared, scored through the queue, encoded."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from models.bundle import Bundle, weights_from_json, weights_to_json
from models.decision import Decision, Rule
from models.errors import (
    InvalidNBestError,
    InvalidTextError,
    InvalidWeightsError,
    ListTooLargeError,
    RescoringError,
    UnknownModelError,
)
from models.nbest import Hypothesis, NBest
from models.score import Weights
from models.scored_lists import PreparedList
from models.wire import LOG_UNITS, nbest_from_json, result_to_json
from service.batching import Batcher
from service.errors import (
    FieldError,
    InvalidRequestError,
    NotReadyError,
    RefusedListError,
    RequestTooLargeError,
    ServiceError,
)
from service.jobs import Job, Results
from service.schemas import RescoreRequest, Utterance
from service.settings import Limits
from service.telemetry import Telemetry
from service.timing import Timing

T = TypeVar("T")

# Preparing or encoding more than this is done on a thread: a hop costs less than it would hold up everybody
# else.
_SMALL_TOKENS = 4_000
SMALL_BYTES = 32_000
_PROBE_WORDS = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """A request that can be scored."""

    request: RescoreRequest
    weights: Weights
    carried: bool
    lists: tuple[PreparedList, ...]

    @property
    def word_scores(self) -> bool:
        """Whether per-word values are wanted; a compact answer has no room for them."""
        return self.request.get("word_scores", False) and not self.compact

    @property
    def compact(self) -> bool:
        """Whether the answer leaves out texts and parts."""
        return self.request.get("compact", False)

    @property
    def best_only(self) -> bool:
        """Whether the answer leaves out all hypotheses but the best."""
        return self.request.get("best_only", False)

    @property
    def tokens(self) -> int:
        """Words and sentence ends to score."""
        return sum(prepared.tokens for prepared in self.lists)

    def jobs(self) -> list[Job]:
        """The plan as units of work: one a list, or a single one where state goes from list to list."""
        if self.carried:
            return [Job(self.lists, self.weights, self.word_scores, carried=True)]
        return [Job((prepared,), self.weights, self.word_scores) for prepared in self.lists]


class Engine:
    """A bundle behind the queue. replicas: the same bundle on further devices, which score as well."""

    def __init__(self, bundle: Bundle, limits: Limits, telemetry: Telemetry, replicas: Sequence[Bundle] = ()) -> None:
        self._bundle = bundle
        self._limits = limits
        self._telemetry = telemetry
        self.batcher = Batcher(bundle.rescorer, limits, telemetry, [replica.rescorer for replica in replicas])
        self._side = ThreadPoolExecutor(1, thread_name_prefix="preparing")
        self._turn = asyncio.Lock()

    def start(self) -> None:
        """Start taking requests, on the running event loop."""
        self.batcher.start()

    def stop(self) -> None:
        """Stop taking requests."""
        self.batcher.stop()
        self._side.shutdown(wait=False, cancel_futures=True)

    async def plan(self, request: RescoreRequest, size: int, timing: Timing) -> Plan:
        """Check and prepare a request. size: of its body, in bytes; timing: takes up what it took.

        Raises RefusedListError or a ServiceError, each naming the field; the whole request is then refused.
        """
        with self._telemetry.stage("prepare", timing):
            return await self.aside(size > SMALL_BYTES, lambda: self._plan(request))

    async def answer(self, plan: Plan, deadline: float, timing: Timing) -> bytes:
        """Score a plan and encode the answer. deadline: time of the event loop's clock, in seconds."""
        outcomes = await self.batcher.score(plan.jobs(), deadline, timing)
        results = [result for outcome in outcomes for result in outcome]
        with self._telemetry.stage("encode", timing):
            return await self.aside(plan.tokens > _SMALL_TOKENS, lambda: self._encode(plan, results))

    async def probe(self, timeout_s: float) -> None:
        """Score a real sentence under every model on every device, through the queue that requests go through.

        Raises NotReadyError when that does not succeed in time.
        """
        rescorer = self._bundle.rescorer
        text = " ".join(rescorer.vocabulary.words[:_PROBE_WORDS])
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            prepared = rescorer.prepare(NBest("readiness", (Hypothesis(text, 0.0),)))
            job = Job((prepared,), self._bundle.weights, word_scores=True)
            results = await self.batcher.score_everywhere(job, deadline)
        except (RescoringError, ServiceError) as error:
            raise NotReadyError(f"a sentence could not be scored: {error}", retry_after_s=1) from error
        for (result,) in results:
            if isinstance(result, RescoringError):
                raise NotReadyError(f"a sentence could not be scored: {result}", retry_after_s=1)

    async def aside(self, large: bool, work: Callable[[], T]) -> T:
        """Do some work: on a thread where it is large, else here, as soon as nobody else's is being done.

        Of many requests that come at once, one is worked on in a round of the event loop, so that whatever else the
        loop has to answer waits for one of them and not for all.
        """
        if large:
            return await asyncio.get_running_loop().run_in_executor(self._side, work)
        async with self._turn:
            done = work()
            await asyncio.sleep(0)
        return done

    def _plan(self, request: RescoreRequest) -> Plan:
        utterances = request["utterances"]
        if len(utterances) > self._limits.max_utterances:
            raise RequestTooLargeError(
                f"the request holds {len(utterances)} utterances; at most {self._limits.max_utterances} are taken"
            )
        _check_ids(utterances)
        options = request.get("options", {})
        carried = options.get("state", "reset") == "carried"
        unit = LOG_UNITS[request.get("log_base", "e")]
        weights, decision = self.choices(options, word_confidences=request.get("word_confidences", False))
        lists = tuple(self.prepare(entry, f"utterances[{i}]", unit, decision) for i, entry in enumerate(utterances))
        return Plan(request, weights, carried, lists)

    def choices(self, options: Mapping[str, Any], *, word_confidences: bool = False) -> tuple[Weights, Decision]:
        """The weights, and what is decided on each list, under the options of a request."""
        replaced = dict(options)
        replaced.pop("state", None)
        rule: Rule = replaced.pop("decision", "total")
        weights = self.weights(replaced, "options")
        return weights, Decision(rule, word_confidences, self._bundle.confidence(weights))

    def weights(self, options: Mapping[str, Any], field: str) -> Weights:
        """The bundle's weights with some replaced. field: where they stand in the request, for errors."""
        try:
            weights = weights_from_json(options, self._bundle.weights)
            weights.check_models(list(self._bundle.rescorer.models))
        except UnknownModelError as error:
            raise RefusedListError(error, [FieldError(f"{field}.interpolation", str(error))]) from error
        except InvalidWeightsError as error:
            culprit = f"{field}.interpolation" if "interpolation" in options else field
            raise RefusedListError(error, [FieldError(culprit, str(error))]) from error
        return weights

    def prepare(self, utterance: Utterance, field: str, unit: float, decision: Decision | None = None) -> PreparedList:
        """Check a list and turn its texts into words. field: where it stands in the request; unit: of its scores."""
        name = utterance["id"]
        try:
            prepared = self._bundle.rescorer.prepare(nbest_from_json(utterance, log_unit=unit), decision)
            if prepared.tokens > self._limits.max_list_tokens:
                raise ListTooLargeError(
                    f"utterance {name!r}: {prepared.tokens} words and sentence ends; "
                    f"at most {self._limits.max_list_tokens} are taken"
                )
        except RescoringError as error:
            where = self._culprit(utterance, unit)
            raise RefusedListError(error, [FieldError(f"{field}{where}", str(error), name)]) from error
        return prepared

    def _culprit(self, utterance: Utterance, unit: float) -> str:
        """The path, inside the utterance, of the first field that no list may hold."""
        hypotheses = utterance["hypotheses"]
        if len(hypotheses) > self._bundle.rescorer.limits.max_hypotheses:
            return ".hypotheses"
        with_lm = [entry.get("lm_score") is not None for entry in hypotheses]
        for index, entry in enumerate(hypotheses):
            where = f".hypotheses[{index}]"
            if not math.isfinite(entry["acoustic_score"] * unit):
                return f"{where}.acoustic_score"
            if not math.isfinite((entry.get("lm_score") or 0.0) * unit) or (any(with_lm) and not with_lm[index]):
                return f"{where}.lm_score"
        for index, entry in enumerate(hypotheses):
            words = self._words(entry["text"])
            if words is None or words > self._bundle.rescorer.limits.max_words:
                return f".hypotheses[{index}].text"
        return ".reference" if self._words(utterance.get("reference") or "") is None else ".hypotheses"

    def _words(self, text: str) -> int | None:
        """The number of words in a text; None where no text may be like this."""
        try:
            return len(self._bundle.rescorer.normaliser.words(text))
        except InvalidTextError:
            return None

    def _encode(self, plan: Plan, results: Results) -> bytes:
        answers = []
        for number, result in enumerate(results):
            if isinstance(result, RescoringError):
                name = plan.lists[number].nbest.utterance_id
                field = f"utterances[{number}]"
                if isinstance(result, InvalidNBestError):
                    field += ".hypotheses"
                raise RefusedListError(result, [FieldError(field, str(result), name)])
            shown = result_to_json(result, compact=plan.compact, best_only=plan.best_only)
            # One by one: the encoder holds Python's lock until it is done.
            answers.append(orjson.dumps(shown))
        head = orjson.dumps(
            {
                "bundle": self._bundle.sha256,
                "weights": weights_to_json(plan.weights),
                "state": "carried" if plan.carried else "reset",
                "decision": plan.lists[0].decision.rule,
            }
        )
        return head[:-1] + b',"results":[' + b",".join(answers) + b"]}"


def _check_ids(utterances: list[Utterance]) -> None:
    seen: set[str] = set()
    for number, utterance in enumerate(utterances):
        name = utterance["id"]
        if name in seen:
            message = "the id of an earlier utterance of this request; ids are unique within a request"
            raise InvalidRequestError(
                f"utterances[{number}].id: {message}",
                errors=[FieldError(f"utterances[{number}].id", message, name)],
            )
        seen.add(name)
