"""Sessions: what may be done with them, one thing after another, each durable before it is answered.

A session's state is a function of its log, and the log is in the store: what is held in memory only saves time. It is
held for a version of the session, which every change makes one more. So a change is made from what the store says
now, and the store refuses it when another replica was quicker; it is then begun anew from what that one left.

Every method takes a deadline, a time of the event loop's clock in seconds, by which the session's turn must come.
What changes a session is done wholly once it has begun, also when whoever asked has left.
"""

import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from models.bundle import Bundle
from models.errors import InvalidTextError, ListTooLargeError
from service import session_transfer
from service.engine import Engine
from service.errors import (
    FieldError,
    NoSuchUtteranceError,
    RefusedListError,
    SessionFullError,
)
from service.session_kinds import SessionKinds
from service.session_log import size_of
from service.session_memory import Held, Reached
from service.session_register import SessionRegister
from service.session_rescoring import Asked, SessionRescoring
from service.session_schemas import CreateRequest
from service.session_states import SessionStates
from service.session_store import Entry, SessionRecord, SessionStore, StaleVersionError
from service.session_tags import Tag, Tags, check, check_incarnation, tag_of
from service.settings import Limits
from service.store_access import OutrunError, StoreAccess
from service.telemetry import Telemetry
from service.turns import Turns, wholly

T = TypeVar("T")

# How often something is begun anew because another replica was quicker.
_ATTEMPTS = 5


class Sessions:
    """The sessions of one bundle in one store.

    clock: seconds since 1970
    """

    def __init__(
        self,
        bundle: Bundle,
        engine: Engine,
        limits: Limits,
        store: SessionStore,
        telemetry: Telemetry,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._bundle = bundle
        self._limits = limits
        self._telemetry = telemetry
        self._clock = clock
        self._turns = Turns()
        self._kinds = SessionKinds(bundle, engine)
        self._access = access = StoreAccess(store)
        self._states = states = SessionStates(bundle.rescorer.vocabulary, self._kinds, access, limits, telemetry)
        self.register = SessionRegister(bundle.sha256, states, access, limits, telemetry, clock)
        self.rescoring = SessionRescoring(bundle, engine, states, access, telemetry, clock)

    def start(self) -> None:
        """Start, on the running event loop."""
        self.register.start()

    async def stop(self) -> None:
        """Take no more calls; the store is left open."""
        await self.register.stop()
        await self._states.stop()
        self._access.stop()

    async def create(self, request: CreateRequest) -> Held:
        """A new session. Raises RefusedListError, SessionTakenError or TooManySessionsError."""
        now = self._clock()
        settled = self._kinds.settle(request)
        record = SessionRecord(_named(request.get("id")), 0, self._bundle.sha256, settled, now, now, 0, 0)
        return await wholly(self._add(self._states.start(record)))

    async def describe(self, session_id: str, deadline: float) -> Held:
        """A session as it stands."""

        async def step() -> Held:
            found = await self.register.look(session_id)
            return await wholly(self._states.find(found.record))

        return await self._in_turn(session_id, deadline, step)

    async def rescore(self, session_id: str, asked: Asked, tags: Tags, deadline: float) -> tuple[Tag, bytes]:
        """Rescore an utterance and accept its winner; the session's tag then, and the answer.

        What was answered before is answered again, whatever the version. The deadline holds for scoring, too.
        """

        async def step() -> tuple[Tag, bytes]:
            found = await self.register.look(session_id, asked.utterance_id)
            check_incarnation(found.record, tags)
            if found.entry is not None:
                return await self.rescoring.repeat(found.record, found.entry, asked)
            check(found.record, tags)
            held = await wholly(self._states.find(found.record))
            if held.now.log_bytes >= self._limits.session_log_bytes:
                raise SessionFullError("the session's log is full; reset it, or go on in a new session")
            result = await self.rescoring.score(held, asked, deadline)
            return await wholly(self.rescoring.accept(held, asked, result))

        return await self._in_turn(session_id, deadline, step)

    async def confirm(self, session_id: str, utterance_id: str, text: str, tags: Tags, deadline: float) -> Held:
        """Make a session what it would be had this text been learnt in place of an utterance's winner.

        Raises RefusedListError when no text may be like this, or NoSuchUtteranceError.
        """
        words = self._words(text, utterance_id)

        async def step() -> Held:
            found = await self.register.look(session_id, utterance_id)
            check_incarnation(found.record, tags)
            if found.entry is None or found.number is None:
                raise NoSuchUtteranceError("the session has accepted no utterance of this id since its last reset")
            if found.entry.confirmed == words:
                return await wholly(self._states.find(found.record))
            check(found.record, tags)
            return await wholly(self._confirm(found.record, found.number, words))

        return await self._in_turn(session_id, deadline, step)

    async def reset(self, session_id: str, tags: Tags, deadline: float) -> Held:
        """Make a session forget all that it was told; it then scores as a new one does, bit for bit."""

        async def step() -> Held:
            found = await self.register.look(session_id)
            check(found.record, tags)
            return await wholly(self._reset(found.record))

        return await self._in_turn(session_id, deadline, step)

    async def fork(self, session_id: str, new_id: str | None, tags: Tags, deadline: float) -> Held:
        """A new session that is what another one is; each then goes its own way."""

        async def step() -> Held:
            found = await self.register.look(session_id)
            check(found.record, tags)
            return await wholly(self._fork(found.record, _named(new_id)))

        return await self._in_turn(session_id, deadline, step)

    async def export(self, session_id: str, deadline: float) -> tuple[Tag, bytes]:
        """A session's tag, and the session as a file."""

        async def step() -> tuple[Tag, bytes]:
            record = (await self.register.look(session_id)).record
            state = (await wholly(self._states.find(record))).now.state
            file = await self._access(lambda store: session_transfer.export(record, _log(store, record), state))
            return tag_of(record), file

        return await self._in_turn(session_id, deadline, step)

    async def import_file(self, session_id: str | None, content: bytes) -> Held:
        """A new session from a file. Raises CorruptSnapshotError, ForeignBundleError, and what `create` raises."""
        file = await self._access(lambda _: session_transfer.read(content, self._bundle, self._kinds))
        log_bytes = sum(map(size_of, file.entries))
        if log_bytes > self._limits.session_log_bytes:
            raise SessionFullError("the session's log is longer than the logs kept here may be")
        now, count = self._clock(), len(file.entries)
        record = SessionRecord(
            _named(session_id), file.version, self._bundle.sha256, file.settled, now, now, count, file.base
        )
        held = Held(record, self._kinds.model(file.settled), Reached(file.state, count, log_bytes), saved=count)
        return await wholly(self._add(held, file.entries))

    async def delete(self, session_id: str, tags: Tags, deadline: float) -> None:
        """Delete a session, whichever bundle it belongs to."""

        async def step() -> None:
            found = await self.register.look(session_id, any_bundle=True)
            check(found.record, tags)
            await wholly(self._access(lambda store: store.delete(session_id)))
            self._states.drop(session_id)
            self._telemetry.sessions.live.dec()

        await self._in_turn(session_id, deadline, step)

    async def _in_turn(self, session_id: str, deadline: float, step: Callable[[], Awaitable[T]]) -> T:
        """Take a step in a session's turn; begin anew where another replica was quicker."""
        async with self._turns.take(session_id, deadline):
            for _ in range(_ATTEMPTS - 1):
                with contextlib.suppress(OutrunError):
                    return await step()
            return await step()

    async def _add(self, held: Held, entries: Sequence[Entry] = ()) -> Held:
        await self.register.add(held, entries)
        return held

    async def _confirm(self, record: SessionRecord, number: int, words: tuple[str, ...]) -> Held:
        # Learnt before it is stored: when that fails, the session is as it was.
        relearnt = await self._states.relearnt(await self._states.find(record), number, words)
        after = await self._access(
            lambda store: store.confirm(record.session_id, record.version, number, words, self._clock())
        )
        held = replace(relearnt, record=after)
        await self._states.keep(held)
        return held

    async def _reset(self, record: SessionRecord) -> Held:
        after = await self._access(lambda store: store.reset(record.session_id, record.version, self._clock()))
        held = self._states.start(after)
        await self._states.keep(held)
        return held

    async def _fork(self, record: SessionRecord, session_id: str) -> Held:
        held = await self._states.find(record)
        entries = await self._access(lambda store: _log(store, record))
        now = self._clock()
        new = replace(record, session_id=session_id, created=now, used=now)
        return await self._add(replace(held, record=new, saved=held.worth_saving.entries), entries)

    def _words(self, text: str, utterance_id: str) -> tuple[str, ...]:
        """The words of a confirmed text. Raises RefusedListError."""
        rescorer = self._bundle.rescorer
        try:
            words = rescorer.normaliser.words(text)
        except InvalidTextError as error:
            raise RefusedListError(error, [FieldError("text", str(error), utterance_id)]) from error
        if len(words) > rescorer.limits.max_words:
            long = ListTooLargeError(f"the text has {len(words)} words; at most {rescorer.limits.max_words} are taken")
            raise RefusedListError(long, [FieldError("text", str(long), utterance_id)])
        return words


def _named(session_id: str | None) -> str:
    return uuid.uuid4().hex if session_id is None else session_id


def _log(store: SessionStore, record: SessionRecord) -> list[Entry]:
    """A session's whole log. Raises StaleVersionError when it is no longer the one that the record is of."""
    entries = store.entries(record.session_id)
    after = store.record(record.session_id)
    if (after.version, after.created) != (record.version, record.created):
        raise StaleVersionError(after.version)
    return entries
