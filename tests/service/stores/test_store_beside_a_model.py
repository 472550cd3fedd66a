"""Each store driven at random beside a plain dictionary that does the same."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from service.session_store import (
    Entry,
    GoneSessionError,
    SessionExistsError,
    SessionRecord,
    SessionStore,
    Snapshot,
    StaleVersionError,
    UnknownSessionError,
)

NAMES = st.sampled_from(["a", "b", "a:b"])
UTTERANCES = st.sampled_from(["u1", "u2", "ü", "u:4"])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
WORDS = st.lists(TEXT, max_size=4).map(tuple)
TIMES = st.floats(0, 1000, allow_nan=False)
# How far the version that a caller knows is from the session's.
BEHIND = st.sampled_from([0, 0, 0, 0, 1, -1])
ENTRIES = st.builds(Entry, UTTERANCES, TEXT, WORDS, st.none() | WORDS, st.binary(max_size=20))


@dataclass
class Known:
    """What the model knows of a session.

    stamps:  one for each entry, another one whenever its text changes
    history: the stamps as they were at each version
    """

    record: SessionRecord
    log: list[Entry] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    history: dict[int, list[int]] = field(default_factory=dict)
    snapshot: Snapshot | None = None

    def move(self, used: float, **fields: Any) -> SessionRecord:
        self.record = replace(
            self.record,
            version=self.record.version + 1,
            used=max(used, self.record.used),
            entries=len(self.log),
            **fields,
        )
        self.history[self.record.version] = list(self.stamps)
        return self.record

    def is_current(self, snapshot: Snapshot) -> bool:
        """Whether the entries that a snapshot has taken in are still those of the log."""
        then = self.history[snapshot.version][: snapshot.entries]
        return snapshot.version >= self.record.base and then == self.stamps[: snapshot.entries]


class StoreBesideModel(RuleBasedStateMachine):
    """new_place: makes the place that an example's store is at."""

    new_place: ClassVar[Callable[[], Any]]

    @initialize()
    def open(self) -> None:
        self.place = self.new_place()
        self.store: SessionStore = self.place.open()
        self.sessions: dict[str, Known] = {}
        self.gone: dict[str, str] = {}
        self.stamp = itertools.count()

    def agree(self, name: str, expected: Callable[[Known], Any], call: Callable[[], Any]) -> None:
        """The store answers as the model does, errors and all."""
        known = self.sessions.get(name)
        if known is not None:
            try:
                answer = expected(known)
            except StaleVersionError as stale:
                with pytest.raises(StaleVersionError, match=str(stale)):
                    call()
            except ValueError:
                with pytest.raises(ValueError, match="the log"):
                    call()
            else:
                assert call() == answer
        elif name in self.gone:
            with pytest.raises(GoneSessionError) as gone:
                call()
            assert gone.value.reason == self.gone[name]
        else:
            with pytest.raises(UnknownSessionError):
                call()

    def version(self, name: str, behind: int) -> int:
        return (self.sessions[name].record.version if name in self.sessions else 0) - behind

    @rule(name=NAMES, entries=st.lists(ENTRIES, max_size=3, unique_by=lambda e: e.utterance_id), used=TIMES)
    def create(self, name: str, entries: list[Entry], used: float) -> None:
        record = SessionRecord(name, len(entries) + 2, "bundle", {"rate": used}, used, used, len(entries), 2)
        if name in self.sessions:
            with pytest.raises(SessionExistsError):
                self.store.create(record, entries)
            return
        self.store.create(record, entries)
        known = Known(record, list(entries), [next(self.stamp) for _ in entries])
        known.history[record.version] = list(known.stamps)
        self.sessions[name] = known
        self.gone.pop(name, None)

    @rule(name=NAMES, behind=BEHIND, entry=ENTRIES, used=TIMES)
    def append(self, name: str, behind: int, entry: Entry, used: float) -> None:
        version = self.version(name, behind)

        def expected(known: Known) -> SessionRecord:
            if version != known.record.version:
                raise StaleVersionError(known.record.version)
            if entry.utterance_id in {other.utterance_id for other in known.log}:
                raise ValueError
            known.log.append(entry)
            known.stamps.append(next(self.stamp))
            return known.move(used)

        self.agree(name, expected, lambda: self.store.append(name, version, entry, used))

    @rule(name=NAMES, behind=BEHIND, number=st.integers(-1, 4), words=WORDS, used=TIMES)
    def confirm(self, name: str, behind: int, number: int, words: tuple[str, ...], used: float) -> None:
        version = self.version(name, behind)

        def expected(known: Known) -> SessionRecord:
            if version != known.record.version:
                raise StaleVersionError(known.record.version)
            if number not in range(len(known.log)):
                raise ValueError
            known.log[number] = replace(known.log[number], confirmed=words)
            known.stamps[number] = next(self.stamp)
            if known.snapshot is not None and not known.is_current(known.snapshot):
                known.snapshot = None
            return known.move(used)

        # A number below 0 is refused before the session is looked for.
        if number >= 0:
            self.agree(name, expected, lambda: self.store.confirm(name, version, number, words, used))

    @rule(name=NAMES, behind=BEHIND, used=TIMES)
    def reset(self, name: str, behind: int, used: float) -> None:
        version = self.version(name, behind)

        def expected(known: Known) -> SessionRecord:
            if version != known.record.version:
                raise StaleVersionError(known.record.version)
            known.log, known.stamps, known.snapshot = [], [], None
            return known.move(used, base=version + 1)

        self.agree(name, expected, lambda: self.store.reset(name, version, used))

    @rule(name=NAMES, data=st.data(), state=st.binary(max_size=20))
    def save_snapshot(self, name: str, data: st.DataObject, state: bytes) -> None:
        snapshot = Snapshot(0, 0, state)
        if name in self.sessions:
            # One that a worker made at some time since the session was made, and that arrives only now.
            history = self.sessions[name].history
            version = data.draw(st.sampled_from(sorted(history)))
            snapshot = Snapshot(version, data.draw(st.integers(0, len(history[version]))), state)

        def expected(known: Known) -> bool:
            older = known.snapshot is not None and snapshot.version < known.snapshot.version
            if older or not known.is_current(snapshot):
                return False
            known.snapshot = snapshot
            return True

        self.agree(name, expected, lambda: self.store.save_snapshot(name, snapshot))

    @rule(name=NAMES, used=TIMES)
    def touch(self, name: str, used: float) -> None:
        def expected(known: Known) -> None:
            known.record = replace(known.record, used=max(used, known.record.used))

        self.agree(name, expected, lambda: self.store.touch(name, used))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.agree(name, lambda _: None, lambda: self.store.delete(name))
        if self.sessions.pop(name, None):
            self.gone[name] = "deleted"

    @rule(before=TIMES.map(lambda time: time / 4))
    def expire(self, before: float) -> None:
        expired = {name for name, known in self.sessions.items() if known.record.used < before}
        assert sorted(self.store.expire(before)) == sorted(expired)
        for name in expired:
            del self.sessions[name]
            self.gone[name] = "expired"

    @rule(name=NAMES, utterance=UTTERANCES, first=st.integers(0, 5))
    def look(self, name: str, utterance: str, first: int) -> None:
        def found(known: Known) -> tuple[int, Entry] | None:
            return next(((i, entry) for i, entry in enumerate(known.log) if entry.utterance_id == utterance), None)

        self.agree(name, found, lambda: self.store.entry(name, utterance))
        self.agree(name, lambda known: known.log[first:], lambda: self.store.entries(name, first))

    @rule(anew=st.booleans())
    def reopen(self, *, anew: bool) -> None:
        if anew:
            self.store.close()
        self.store = self.place.open()

    @invariant()
    def all_is_as_in_the_model(self) -> None:
        for name in ["a", "b", "a:b"]:
            self.agree(name, lambda known: known.record, lambda name=name: self.store.record(name))
            self.agree(name, lambda known: known.log, lambda name=name: self.store.entries(name))
            self.agree(name, lambda known: known.snapshot, lambda name=name: self.store.snapshot(name))
        assert self.store.count() == len(self.sessions)

    def teardown(self) -> None:
        if hasattr(self, "place"):
            self.place.close()


@pytest.mark.slow
def test_a_store_does_what_a_dictionary_would(new_place: Callable[[], Any]) -> None:
    machine = type("Machine", (StoreBesideModel,), {"new_place": staticmethod(new_place)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
