"""Which sessions there are: looked up, added while there is room, and let go when nobody uses them."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from service.errors import (
    ForeignBundleError,
    NoSuchSessionError,
    ServiceError,
    SessionDeletedError,
    SessionExpiredError,
    SessionStoreDownError,
    SessionTakenError,
    TooManySessionsError,
)
from service.session_memory import Held
from service.session_states import SessionStates, snapshot_of
from service.session_store import Entry, SessionRecord, SessionStore
from service.settings import Limits
from service.store_access import StoreAccess
from service.telemetry import Telemetry

# A session's last use is noted at most this often, as a share of the time after which it expires.
_TOUCH_SHARE = 0.01
_SWEEP_SHARE = 0.1
_MAX_SWEEP_S = 60.0
_RETRY_FULL_S = 60


@dataclass(frozen=True, slots=True)
class Found:
    """What the store says of a session.

    number, entry: of the utterance that was asked for; None where the log has none of its id, or none was asked for
    """

    record: SessionRecord
    number: int | None = None
    entry: Entry | None = None


class SessionRegister:
    """The sessions in the store, as far as their states do not matter.

    bundle: SHA-256 of the bundle served
    clock:  seconds since 1970
    """

    def __init__(
        self,
        bundle: str,
        states: SessionStates,
        access: StoreAccess,
        limits: Limits,
        telemetry: Telemetry,
        clock: Callable[[], float],
    ) -> None:
        self._bundle = bundle
        self._states = states
        self._access = access
        self._limits = limits
        self._telemetry = telemetry
        self._clock = clock
        self._adding = asyncio.Lock()
        self._sweeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Let sessions expire from now on, on the running event loop."""
        self._sweeper = asyncio.create_task(self._sweep(), name="expiry")

    async def stop(self) -> None:
        """Let no more sessions expire."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)

    async def look(self, session_id: str, utterance_id: str | None = None, *, any_bundle: bool = False) -> Found:
        """What the store says of a session, and of an utterance where one is named; the session counts as used.

        Raises what StoreAccess raises, SessionExpiredError, or ForeignBundleError unless `any_bundle`.
        """

        def read(store: SessionStore) -> Found:
            record = store.record(session_id)
            numbered = None if utterance_id is None else store.entry(session_id, utterance_id)
            return Found(record, *numbered) if numbered else Found(record)

        found = await self._access(read)
        now, idle_s = self._clock(), self._limits.session_idle_s
        if found.record.used < now - idle_s:
            await self.expire()
            raise SessionExpiredError("the session has expired")
        if found.record.bundle != self._bundle and not any_bundle:
            raise ForeignBundleError("the session belongs to another bundle than the one served here")
        if found.record.used < now - idle_s * _TOUCH_SHARE:
            # A store that takes no changes now may still tell what it has.
            with contextlib.suppress(SessionStoreDownError):
                await self._access(lambda store: store.touch(session_id, now))
                return replace(found, record=replace(found.record, used=now))
        return found

    async def add(self, held: Held, entries: Sequence[Entry] = ()) -> None:
        """Put a new session into the store, with its log.

        Raises SessionTakenError, TooManySessionsError, and what StoreAccess raises.
        """

        def create(store: SessionStore) -> None:
            store.create(held.record, entries, snapshot_of(held) if entries else None)

        # One at a time, so that they do not all find the last free place.
        async with self._adding:
            if await self._full():
                await self.expire()
                if await self._full():
                    await self._refuse(held.record.session_id)
            await self._access(create)
            self._telemetry.sessions.live.inc()
        await self._states.keep(held)

    async def expire(self) -> None:
        """Let go of the sessions that nobody used for too long."""
        before = self._clock() - self._limits.session_idle_s
        expired = await self._access(lambda store: store.expire(before))
        self._telemetry.sessions.expired.inc(len(expired))
        for session_id in expired:
            self._states.drop(session_id)

    async def _count(self) -> int:
        count = await self._access(lambda store: store.count())
        self._telemetry.sessions.live.set(count)
        return count

    async def _full(self) -> bool:
        return await self._count() >= self._limits.max_sessions

    async def _refuse(self, session_id: str) -> None:
        """Say why there will be no new session of this id."""
        try:
            await self._access(lambda store: store.record(session_id))
        except (NoSuchSessionError, SessionDeletedError, SessionExpiredError):
            message = f"{self._limits.max_sessions} sessions are kept, and no more; delete one that is not needed"
            raise TooManySessionsError(message, retry_after_s=_RETRY_FULL_S) from None
        raise SessionTakenError("a session of this id exists already")

    async def _sweep(self) -> None:
        while True:
            try:
                await self.expire()
                await self._count()
            except ServiceError as error:
                self._telemetry.log.warning("sessions cannot expire now", reason=type(error).__name__)
            await asyncio.sleep(min(_MAX_SWEEP_S, self._limits.session_idle_s * _SWEEP_SHARE))
