"""The session store as the event loop sees it: awaited, and failing with the service's own errors."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from service import session_store as kept
from service.errors import (
    NoSuchSessionError,
    NotReadyError,
    ServiceError,
    SessionDeletedError,
    SessionExpiredError,
    SessionStoreDownError,
    SessionTakenError,
    VersionConflictError,
)
from service.session_store import SessionStore

T = TypeVar("T")

_THREADS = 4


class OutrunError(VersionConflictError):
    """Another replica has changed the session meanwhile; what was begun may be begun anew."""


class StoreAccess:
    """Calls a store on threads of its own."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sessions")
        self._stopped = False

    async def __call__(self, call: Callable[[SessionStore], T]) -> T:
        """What a call of the store returns; its errors become the service's.

        Raises SessionStoreDownError, and what else the call's methods raise in terms of service.errors.
        """
        if self._stopped:
            raise NotReadyError("the service is stopping")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call, self._store)
        except kept.SessionStoreError as error:
            raise _translated(error) from error

    def stop(self) -> None:
        """Take no more calls."""
        self._stopped = True
        self._threads.shutdown(wait=False, cancel_futures=True)


def _translated(error: kept.SessionStoreError) -> ServiceError:
    match error:
        case kept.UnknownSessionError():
            return NoSuchSessionError("there is no such session")
        case kept.GoneSessionError(reason="expired"):
            return SessionExpiredError(str(error))
        case kept.GoneSessionError():
            return SessionDeletedError(str(error))
        case kept.SessionExistsError():
            return SessionTakenError("a session of this id exists already")
        case kept.StaleVersionError(current=version):
            return OutrunError(version)
        case _:
            return SessionStoreDownError(f"{error}; repeat the request later", retry_after_s=1)
