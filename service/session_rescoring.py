"""One utterance in a session: scored from its state, its winner accepted, and the answer kept with it."""

from collections.abc import Callable
from dataclasses import dataclass

from models.bundle import Bundle
from models.errors import InvalidNBestError, RescoringError
from models.ranking import RescoredList
from models.scored_lists import PreparedList
from models.session import SessionState
from models.wire import LOG_UNITS, result_to_json
from service.engine import SMALL_BYTES, Engine
from service.errors import FieldError, RefusedListError, ServiceError, UtteranceConflictError
from service.jobs import Job, Place
from service.session_log import answer_of, fingerprint, pack, size_of, unpack
from service.session_memory import Held, Reached
from service.session_schemas import SessionRescoreRequest
from service.session_states import SessionStates
from service.session_store import Entry, SessionRecord, SessionStore
from service.session_tags import Tag, tag_of
from service.store_access import StoreAccess
from service.telemetry import Telemetry
from service.timing import Timing


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that can be scored.

    fingerprint: by which the same request is known when it comes again
    timing:      where its time goes
    """

    prepared: PreparedList
    fingerprint: str
    word_scores: bool
    compact: bool
    best_only: bool
    timing: Timing

    @property
    def utterance_id(self) -> str:
        """The utterance's id."""
        return self.prepared.nbest.utterance_id


class SessionRescoring:
    """How an utterance gets into a session. clock: seconds since 1970."""

    def __init__(
        self,
        bundle: Bundle,
        engine: Engine,
        states: SessionStates,
        access: StoreAccess,
        telemetry: Telemetry,
        clock: Callable[[], float],
    ) -> None:
        self._bundle = bundle
        self._engine = engine
        self._states = states
        self._access = access
        self._telemetry = telemetry
        self._clock = clock

    async def prepare(self, request: SessionRescoreRequest, size: int, timing: Timing) -> Asked:
        """Check and prepare a request. size: of its body, in bytes.

        Raises RefusedListError or a ServiceError, each naming the field.
        """

        def work() -> Asked:
            unit = LOG_UNITS[request.get("log_base", "e")]
            compact = request.get("compact", False)
            return Asked(
                self._engine.prepare(request["utterance"], "utterance", unit),
                fingerprint(request),
                # A compact answer has no room for per-word values.
                request.get("word_scores", False) and not compact,
                compact,
                request.get("best_only", False),
                timing,
            )

        with self._telemetry.stage("prepare", timing):
            return await self._engine.aside(size > SMALL_BYTES, work)

    async def repeat(self, record: SessionRecord, entry: Entry, asked: Asked) -> tuple[Tag, bytes]:
        """The tag and the answer that an utterance got before. Raises UtteranceConflictError."""
        if entry.request != asked.fingerprint:
            raise UtteranceConflictError(
                "the session has accepted an utterance of this id from another request",
                errors=[FieldError("utterance.id", "the id of another utterance of the session", asked.utterance_id)],
            )

        def work() -> tuple[Tag, bytes]:
            kept = unpack(entry.answer)
            return tag_of(record, kept["version"]), answer_of(record.session_id, kept, repeated=True)

        return await self._engine.aside(len(entry.answer) > SMALL_BYTES, work)

    async def score(self, held: Held, asked: Asked, deadline: float) -> RescoredList:
        """Rank an utterance from the session's state; nothing is changed.

        Raises RefusedListError, ModelFailedError, and what the queue raises.
        """
        place = Place(held.model, held.now.state)
        job = Job((asked.prepared,), held.model.weights, asked.word_scores, place=place)
        ((result,),) = await self._engine.batcher.score([job], deadline, asked.timing)
        if isinstance(result, RescoringError):
            field = "utterance.hypotheses" if isinstance(result, InvalidNBestError) else "utterance"
            raise RefusedListError(result, [FieldError(field, str(result), asked.utterance_id)])
        return result

    async def accept(self, held: Held, asked: Asked, result: RescoredList) -> tuple[Tag, bytes]:
        """Take in the winner and keep it; the session's tag then, and the answer.

        Raises OutrunError, or what else the store raises, and then nothing was changed.
        """
        with self._telemetry.sessions.commit(asked.timing):
            return await self._accept(held, asked, result)

    async def _accept(self, held: Held, asked: Asked, result: RescoredList) -> tuple[Tag, bytes]:
        found, words = held.now.state, result.best.words
        state = await self._learnt(held, words)
        lesson = _lesson(found, state)
        kept = {
            "version": held.record.version + 1,
            "lesson": lesson,
            "bundle": self._bundle.sha256,
            "result": result_to_json(result, compact=asked.compact, best_only=asked.best_only),
        }

        def append(store: SessionStore) -> tuple[Entry, SessionRecord, bytes]:
            entry = Entry(asked.utterance_id, asked.fingerprint, words, None, pack(kept))
            record = store.append(held.record.session_id, held.record.version, entry, self._clock())
            return entry, record, answer_of(record.session_id, kept, repeated=False)

        entry, record, answer = await self._access(append)
        self._telemetry.sessions.count_lesson(learnt=bool(lesson["learnt"]), undone=bool(lesson["undone"]))
        # Without a state, what the log leads to is found out when the session is asked for next.
        if state is not None:
            now = Reached(state, record.entries, held.now.log_bytes + size_of(entry))
            await self._states.keep(Held(record, held.model, now, held.now, held.saved))
        return tag_of(record), answer

    async def _learnt(self, held: Held, words: tuple[str, ...]) -> SessionState | None:
        """The state after a winner; None where the lesson failed, which is no reason to lose the answer."""
        try:
            return await self._states.accept(held, words)
        except ServiceError:
            raise
        except Exception:
            self._telemetry.log.exception("a lesson failed")
            return None


def _lesson(before: SessionState, after: SessionState | None) -> dict[str, bool | int]:
    words = after.words_learnt - before.words_learnt if after else 0
    return {"learnt": words > 0, "words": words, "undone": after is None or after.undone > before.undone}
