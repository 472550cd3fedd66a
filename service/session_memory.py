"""Sessions' states in memory, as many as fit."""

from collections import OrderedDict
from dataclasses import dataclass, replace

from models.session import SessionModel, SessionState
from service.session_store import SessionRecord

# A record, tallies, and what Python needs around them.
_HELD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Reached:
    """A state, and what of the log has led to it.

    entries:   how many entries, from the first on
    log_bytes: what they take
    """

    state: SessionState
    entries: int = 0
    log_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """A session as it stood at one version.

    now:    what its whole log has led to
    before: what the last utterance found, where known, so that its correction does not learn the whole log anew
    saved:  how many entries the snapshot in the store has taken in
    """

    record: SessionRecord
    model: SessionModel
    now: Reached
    before: Reached | None = None
    saved: int = 0

    @property
    def bytes(self) -> int:
        """Memory held."""
        return self.now.state.bytes + (self.before.state.bytes if self.before else 0) + _HELD_BYTES

    @property
    def worth_saving(self) -> Reached:
        """What a snapshot shall keep: not the last utterance, where it may still be corrected."""
        return self.before or self.now


class StateMemory:
    """What is held of sessions; those least recently used give way. Lives on the event loop. limit: bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: OrderedDict[str, Held] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def find(self, record: SessionRecord) -> Held | None:
        """What is held of a session as its record says it stands now; its time of use is taken from there."""
        held = self.drop(record.session_id)
        # A session of this id may have been deleted and made anew, or changed by another replica.
        if held is None or (held.record.version, held.record.created) != (record.version, record.created):
            return None
        held = replace(held, record=record)
        self.keep(held)
        return held

    def keep(self, held: Held) -> None:
        """Hold a session in place of what is held of it, as the most recently used."""
        self.drop(held.record.session_id)
        self._held[held.record.session_id] = held
        self.bytes += held.bytes

    def drop(self, session_id: str) -> Held | None:
        """Let go of a session."""
        held = self._held.pop(session_id, None)
        if held is not None:
            self.bytes -= held.bytes
        return held

    def note_saved(self, held: Held, entries: int) -> None:
        """The store has a snapshot of a session that takes in so many entries."""
        there = self._held.get(held.record.session_id)
        if there is not None and there.record.created == held.record.created:
            # Its place among the others stays.
            self._held[held.record.session_id] = replace(there, saved=entries)

    def overflow(self) -> Held | None:
        """Let go of the session least recently used when more is held than fits; None when it does."""
        if self.bytes <= self._limit:
            return None
        _, held = self._held.popitem(last=False)
        self.bytes -= held.bytes
        return held
