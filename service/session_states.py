"""Sessions' states: found in memory, or made from the store's snapshot and the log after it; and learning."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from models.errors import ModelFailedError, RescoringError, SessionError
from models.session import SessionModel, SessionState
from models.session_file import dump_state, load_metadata, load_state
from models.vocabulary import Vocabulary
from service.errors import NotReadyError, ServiceError
from service.session_kinds import SessionKinds
from service.session_log import size_of
from service.session_memory import Held, Reached, StateMemory
from service.session_store import Entry, SessionRecord, SessionStore, Snapshot
from service.settings import Limits
from service.store_access import OutrunError, StoreAccess
from service.telemetry import Telemetry

T = TypeVar("T")

# Entries learnt in one go when a log is learnt anew: sessions that learn meanwhile wait for no more than these.
_ENTRIES_A_STINT = 4
# Snapshots on their way into the store; beyond it, the next utterance tries again.
_MAX_SAVING = 8


class SessionStates:
    """The states of sessions, each a function of its session's log.

    A state is found only at the version that the store says the session is at.
    """

    def __init__(
        self, vocabulary: Vocabulary, kinds: SessionKinds, access: StoreAccess, limits: Limits, telemetry: Telemetry
    ) -> None:
        self._vocabulary = vocabulary
        self._kinds = kinds
        self._access = access
        self._every = limits.session_snapshot_every
        self._telemetry = telemetry
        self._memory = memory = StateMemory(limits.session_memory_bytes)
        telemetry.sessions.watch_memory(lambda: len(memory), lambda: memory.bytes)
        self._learning = ThreadPoolExecutor(1, thread_name_prefix="learning")
        self._saving: set[asyncio.Task[None]] = set()
        self._stopped = False

    async def stop(self) -> None:
        """Let snapshots that are on their way arrive, then take no more work."""
        await asyncio.gather(*self._saving, return_exceptions=True)
        self._stopped = True
        self._learning.shutdown(wait=False, cancel_futures=True)

    async def find(self, record: SessionRecord) -> Held:
        """A session as its record says it stands.

        Raises OutrunError when it moves on meanwhile, ModelFailedError when its log cannot be learnt.
        """
        held = self._memory.find(record)
        if held is None:
            held = await self._from_store(record)
            self._telemetry.sessions.restored.inc()
            await self.keep(held)
        return held

    async def keep(self, held: Held) -> None:
        """Hold a session; others leave memory where they must, each after its snapshot is in the store."""
        self._memory.keep(held)
        if held.worth_saving.entries - held.saved >= self._every and len(self._saving) < _MAX_SAVING:
            task = asyncio.create_task(self._save(held))
            self._saving.add(task)
            task.add_done_callback(self._saving.discard)
        while (out := self._memory.overflow()) is not None:
            self._telemetry.sessions.evicted.inc()
            if out.worth_saving.entries > out.saved:
                await self._save(out)

    def drop(self, session_id: str) -> None:
        """Hold a session no longer; what the store has of it stays."""
        self._memory.drop(session_id)

    def start(self, record: SessionRecord) -> Held:
        """A session without a log."""
        model = self._kinds.model(record.options)
        return Held(record, model, Reached(model.fresh()))

    async def accept(self, held: Held, words: Sequence[str]) -> SessionState:
        """The state after one more winner. Any error may come out of the models."""
        ids = self._vocabulary.ids(words)
        return await self._aside(lambda: _accepted(held.model, held.now.state, ids, confirmed=False))

    async def relearnt(self, held: Held, number: int, words: Sequence[str]) -> Held:
        """The session as it would stand had an utterance been confirmed to be these words when it was accepted.

        Its record is left as it is: nothing is stored. number: of the utterance's entry
        """
        at_hand = held.before if held.before and held.before.entries == number else None
        begin, entries = await self._parts(held.record, number, at_hand)
        saved = held.saved if at_hand else begin.entries
        place = number - begin.entries
        entries[place] = replace(entries[place], confirmed=tuple(words))
        before, now = await self._learnt(held.model, begin, entries)
        # The store drops a snapshot that has taken the utterance in as it was.
        return Held(held.record, held.model, now, before, saved if saved <= number else 0)

    async def _from_store(self, record: SessionRecord) -> Held:
        begin, entries = await self._parts(record, record.entries)
        model = self._kinds.model(record.options)
        before, now = await self._learnt(model, begin, entries)
        return Held(record, model, now, before, begin.entries)

    async def _parts(
        self, record: SessionRecord, most: int, at_hand: Reached | None = None
    ) -> tuple[Reached, list[Entry]]:
        """What a session can begin with, the newest snapshot or nothing, and the entries after that.

        most:    entries that the snapshot may have taken in
        at_hand: a state to begin with instead

        Raises OutrunError where they are not those of the record.
        """

        def read(store: SessionStore) -> tuple[Reached | None, list[Entry], SessionRecord]:
            begin = at_hand
            if begin is None and (snapshot := store.snapshot(record.session_id)) and snapshot.entries <= most:
                begin = self._restored(record, snapshot)
            entries = store.entries(record.session_id, begin.entries if begin else 0)
            return begin, entries, store.record(record.session_id)

        begin, entries, after = await self._access(read)
        if (after.version, after.created) != (record.version, record.created):
            raise OutrunError(after.version)
        return begin or Reached(self._kinds.model(record.options).fresh()), entries

    def _restored(self, record: SessionRecord, snapshot: Snapshot) -> Reached | None:
        """The state of a snapshot; None where it cannot be read, for the log says all that it said."""
        try:
            state = load_state(snapshot.state, self._kinds.model(record.options))
            return Reached(state, snapshot.entries, int(load_metadata(snapshot.state)["log_bytes"]))
        except (SessionError, KeyError, ValueError):
            self._telemetry.log.exception("a session's snapshot cannot be read; its log is learnt anew")
            return None

    async def _learnt(
        self, model: SessionModel, begin: Reached, entries: Sequence[Entry]
    ) -> tuple[Reached | None, Reached]:
        """What some entries lead to, and what the last of them found."""
        before, now = None, begin
        for first in range(0, len(entries), _ENTRIES_A_STINT):
            stint = entries[first : first + _ENTRIES_A_STINT]
            before, now = await self._aside(partial(self._stint, model, now, stint))
        return before, now

    def _stint(self, model: SessionModel, now: Reached, entries: Sequence[Entry]) -> tuple[Reached, Reached]:
        before = now
        try:
            for entry in entries:
                before, now = now, self._taken_in(model, now, entry)
        except Exception as error:
            self._telemetry.log.exception("a session's log cannot be learnt")
            raise ModelFailedError(f"the session's log cannot be learnt: {type(error).__name__}") from error
        return before, now

    def _taken_in(self, model: SessionModel, found: Reached, entry: Entry) -> Reached:
        words = entry.words if entry.confirmed is None else entry.confirmed
        state = _accepted(model, found.state, self._vocabulary.ids(words), confirmed=entry.confirmed is not None)
        return Reached(state, found.entries + 1, found.log_bytes + size_of(entry))

    async def _save(self, held: Held) -> None:
        """Put a snapshot into the store. Nothing depends on it but the time that a session takes to come back."""
        session_id = held.record.session_id
        try:
            if await self._access(lambda store: store.save_snapshot(session_id, snapshot_of(held))):
                self._memory.note_saved(held, held.worth_saving.entries)
        except ServiceError as error:
            self._telemetry.log.warning("a session's snapshot was not stored", reason=type(error).__name__)

    async def _aside(self, work: Callable[[], T]) -> T:
        """Do some work on the learning thread."""
        if self._stopped:
            raise NotReadyError("the service is stopping")
        return await asyncio.get_running_loop().run_in_executor(self._learning, _guarded, work)


def _guarded(work: Callable[[], T]) -> T:
    """Do some work; what would end the thread, or the event loop that waits for it, is a failure like any other."""
    try:
        return work()
    except Exception:
        raise
    except BaseException as error:
        raise ModelFailedError(f"learning failed: {type(error).__name__}") from error


def snapshot_of(held: Held) -> Snapshot:
    """What the store shall keep of a session, so that it need not be learnt anew."""
    reached = held.worth_saving
    state = dump_state(reached.state, {"log_bytes": str(reached.log_bytes)})
    return Snapshot(held.record.version, reached.entries, state)


def _accepted(model: SessionModel, state: SessionState, words: Sequence[int], *, confirmed: bool) -> SessionState:
    """The state after a text. One that the models refuse is passed over, as a lesson that was undone."""
    try:
        return model.accept(state, words, confirmed=confirmed)
    except RescoringError:
        return replace(state, undone=state.undone + 1)
