"""A session of the service as an object: lists rescored by networks that learn from what they hear.

    with Client("http://localhost:8000") as client, client.session(learn_from="winner", rate=0.1) as session:
        for utterance in utterances:
            answer = session.rescore(utterance)
            print(answer["result"]["best_text"])
        session.confirm("utt-1", "recognise speech")
        print(session.describe()["perplexity"])

and in asyncio:

    async with client.session() as session:
        await session.rescore(utterance)

Entering makes the session, leaving deletes it, unless it is to be kept. What the server refuses becomes a SessionError.
A call that names a version (if_version) is refused with VersionConflictError where the session has moved on. That can
befall a reset or a deletion which had to be sent again: its first try may have been what moved the session.
"""

from collections.abc import Awaitable
from contextlib import suppress
from typing import Protocol, Self, TypeVar, Unpack

from .errors import ServerError
from .exchange import Flow
from .session_exchange import SessionFlows
from .types import Form, SessionAnswer, SessionDescription, Utterance

T = TypeVar("T")


class Drive(Protocol):
    """Carries a flow out."""

    def __call__(self, flow: Flow[T], /) -> T:
        """Give the flow's result, or raise its error."""


class AsyncDrive(Protocol):
    """Carries a flow out in asyncio."""

    def __call__(self, flow: Flow[T], /) -> Awaitable[T]:
        """Give the flow's result, or raise its error."""


class _Handle:
    """What both colours know of a session."""

    def __init__(self, flows: SessionFlows, keep: bool) -> None:
        self._flows = flows
        self.keep = keep

    @property
    def id(self) -> str:
        """The session's id."""
        return self._flows.session_id

    @property
    def version(self) -> int | None:
        """The newest version that this object has heard of; None before the session is open."""
        return self._flows.version


class Session(_Handle):
    """A session; `Client.session`, `Client.attach` and `Client.import_session` make one.

    keep: whether the session stays on the server when its `with` block ends
    """

    def __init__(self, drive: Drive, flows: SessionFlows, *, keep: bool) -> None:
        super().__init__(flows, keep)
        self._drive = drive

    def __enter__(self) -> Self:
        if self.version is None:
            self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.keep:
            return
        if kind is None:
            self.delete()
            return
        with suppress(ServerError):
            # The error that ends the block is what the caller must hear of, and at once.
            self._drive(self._flows.give_up())

    def open(self) -> SessionDescription:
        """Make the session, or see that it exists; `with` does it."""
        return self._drive(self._flows.open())

    def describe(self) -> SessionDescription:
        """What the session is, what it has learnt, and what that is worth: see SessionDescription."""
        return self._drive(self._flows.describe())

    def rescore(self, utterance: Utterance, *, if_version: int | None = None, **form: Unpack[Form]) -> SessionAnswer:
        """Rescore a list and have its winner accepted, once however often it is sent.

        if_version: refuse with VersionConflictError where the session is at another version
        form:       log_base, word_scores, compact and best_only, as of `Client.rescore`
        """
        return self._drive(self._flows.rescore(utterance, form, if_version))

    def confirm(self, utterance_id: str, text: str, *, if_version: int | None = None) -> SessionDescription:
        """Tell what was really said: the session becomes what it would be had it learnt this in the first place."""
        return self._drive(self._flows.confirm(utterance_id, text, if_version))

    def reset(self, *, if_version: int | None = None) -> SessionDescription:
        """Forget everything that was accepted; the options stay."""
        return self._drive(self._flows.reset(if_version))

    def fork(self, session_id: str | None = None, *, keep: bool = False) -> "Session":
        """A new session that begins as this one is now; the two go their own ways. It is open already."""
        return Session(self._drive, self._drive(self._flows.fork(session_id)), keep=keep)

    def export(self) -> bytes:
        """State, options and log as one safetensors file, for `Client.import_session`."""
        return self._drive(self._flows.export())

    def delete(self, *, if_version: int | None = None) -> None:
        """Delete the session; one that is gone already is no error."""
        self._drive(self._flows.delete(if_version))


class AsyncSession(_Handle):
    """The same for asyncio; `Session` documents the methods."""

    def __init__(self, drive: AsyncDrive, flows: SessionFlows, *, keep: bool) -> None:
        super().__init__(flows, keep)
        self._drive = drive

    async def __aenter__(self) -> Self:
        if self.version is None:
            await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.keep:
            return
        if kind is None:
            await self.delete()
            return
        with suppress(ServerError):
            # The error that ends the block is what the caller must hear of, and at once.
            await self._drive(self._flows.give_up())

    async def open(self) -> SessionDescription:
        """Make the session, or see that it exists; `async with` does it."""
        return await self._drive(self._flows.open())

    async def describe(self) -> SessionDescription:
        """What the session is, what it has learnt, and what that is worth."""
        return await self._drive(self._flows.describe())

    async def rescore(
        self, utterance: Utterance, *, if_version: int | None = None, **form: Unpack[Form]
    ) -> SessionAnswer:
        """Rescore a list and have its winner accepted, once however often it is sent."""
        return await self._drive(self._flows.rescore(utterance, form, if_version))

    async def confirm(self, utterance_id: str, text: str, *, if_version: int | None = None) -> SessionDescription:
        """Tell what was really said, in place of the winner."""
        return await self._drive(self._flows.confirm(utterance_id, text, if_version))

    async def reset(self, *, if_version: int | None = None) -> SessionDescription:
        """Forget everything that was accepted; the options stay."""
        return await self._drive(self._flows.reset(if_version))

    async def fork(self, session_id: str | None = None, *, keep: bool = False) -> "AsyncSession":
        """A new session that begins as this one is now; it is open already."""
        return AsyncSession(self._drive, await self._drive(self._flows.fork(session_id)), keep=keep)

    async def export(self) -> bytes:
        """State, options and log as one safetensors file, for `AsyncClient.import_session`."""
        return await self._drive(self._flows.export())

    async def delete(self, *, if_version: int | None = None) -> None:
        """Delete the session; one that is gone already is no error."""
        await self._drive(self._flows.delete(if_version))
