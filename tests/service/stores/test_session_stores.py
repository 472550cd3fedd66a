"""What every session store keeps to, whatever it is made of."""

import dataclasses
import functools
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from service.session_store import (
    Entry,
    GoneSessionError,
    SessionExistsError,
    SessionRecord,
    SessionStore,
    Snapshot,
    StaleVersionError,
    StoreUnavailableError,
    UnknownSessionError,
)

Make = Callable[..., Any]
PATIENCE_S = 60

# Every method that names a session, with the session's id left open.
CALLS: dict[str, Callable[[SessionStore, str], object]] = {
    "record": lambda store, name: store.record(name),
    "entries": lambda store, name: store.entries(name),
    "entry": lambda store, name: store.entry(name, "u1"),
    "append": lambda store, name: store.append(name, 0, Entry("u9", "r", ("a",), None, b""), 101.0),
    "confirm": lambda store, name: store.confirm(name, 0, 0, ["a"], 101.0),
    "reset": lambda store, name: store.reset(name, 0, 101.0),
    "snapshot": lambda store, name: store.snapshot(name),
    "save_snapshot": lambda store, name: store.save_snapshot(name, Snapshot(0, 0, b"")),
    "touch": lambda store, name: store.touch(name, 101.0),
    "delete": lambda store, name: store.delete(name),
}
CHANGES: dict[str, Callable[[SessionStore, int], SessionRecord]] = {
    "append": lambda store, version: store.append("s", version, Entry("u9", "r", ("a",), None, b""), 101.0),
    "confirm": lambda store, version: store.confirm("s", version, 0, ["a"], 101.0),
    "reset": lambda store, version: store.reset("s", version, 101.0),
}


@pytest.fixture
def filled(store: SessionStore, new_record: Make, new_entry: Make) -> SessionStore:
    """Session s at version 3: utterances u1, u2 and u3."""
    store.create(new_record())
    for version, name in enumerate(["u1", "u2", "u3"]):
        store.append("s", version, new_entry(name, f"word of {name}"), 100.0)
    return store


# --- what was put in comes out ----------------------------------------------------------------------------------------


def test_a_new_session_is_as_it_was_made(store: SessionStore, new_record: Make) -> None:
    options = {"weights": {"kn5": 0.1 + 0.2, "rnn": 1e-300}, "learn_from": None, "names": ["é", "\u2028"], "nested": {}}
    made = new_record("a.B_c:d-1", options=options, created=1_700_000_000.123456, used=1_700_000_000.234567)
    store.create(made)
    assert store.record("a.B_c:d-1") == made
    assert store.entries("a.B_c:d-1") == []
    assert store.snapshot("a.B_c:d-1") is None
    assert store.count() == 1


def test_a_session_is_made_with_the_log_and_snapshot_of_another(
    store: SessionStore, new_record: Make, new_entry: Make
) -> None:
    log = [new_entry("u1"), dataclasses.replace(new_entry("u2"), confirmed=("c",)), new_entry("u3")]
    made = new_record(version=9, base=5, entries=3)
    store.create(made, log, Snapshot(8, 2, b"state"))
    assert store.record("s") == made
    assert store.entries("s") == log
    assert store.snapshot("s") == Snapshot(8, 2, b"state")
    assert store.append("s", 9, new_entry("u4"), 100.0).entries == 4


@pytest.mark.parametrize(
    "entry",
    [
        Entry("u", "r", (), None, b""),
        Entry("u", "r", (), (), b"\n\n"),
        Entry("ü \n\t\x00", "", ("", " ", "\n", "a\nb", '"', "\\", "\U0001f600"), ("\n",), bytes(range(256))),
        Entry("u", "r", ("w",) * 3000, None, b"x" * 300_000),
    ],
    ids=["empty", "nothing-confirmed", "odd-characters", "large"],
)
def test_an_entry_comes_back_as_it_was(store: SessionStore, new_record: Make, entry: Entry) -> None:
    store.create(new_record())
    store.append("s", 0, entry, 100.0)
    assert store.entries("s") == [entry]
    assert store.entry("s", entry.utterance_id) == (0, entry)


@pytest.mark.parametrize("state", [b"", bytes(range(256)) * 5, b"\x00" * 3_000_000], ids=["empty", "bytes", "large"])
def test_a_snapshot_comes_back_as_it_was(filled: SessionStore, state: bytes) -> None:
    assert filled.save_snapshot("s", Snapshot(3, 3, state))
    assert filled.snapshot("s") == Snapshot(3, 3, state)


def test_sessions_with_names_alike_are_apart(store: SessionStore, new_record: Make, new_entry: Make) -> None:
    names = ["s", "S", "s:", ":s", "session:s", "log:s", "s.", "s-1", "used", "gone"]
    for name in names:
        store.create(new_record(name))
        store.append(name, 0, new_entry("u", f"from {name}"), 100.0)
    assert [store.entries(name)[0].words for name in names] == [(f"from {name}",) for name in names]
    store.delete("s")
    assert store.count() == len(names) - 1
    assert [store.record(name).version for name in names[1:]] == [1] * (len(names) - 1)


def test_everything_is_there_after_reopening(place: Any, new_record: Make, new_entry: Make) -> None:
    store = place.open()
    for name in ["s", "deleted", "expired"]:
        store.create(new_record(name, used=50.0 if name == "expired" else 100.0))
    store.append("s", 0, new_entry("u1"), 101.0)
    store.save_snapshot("s", Snapshot(1, 1, b"state"))
    store.delete("deleted")
    store.expire(60.0)
    before = store.record("s"), store.entries("s"), store.snapshot("s")
    store.close()

    again = place.open()
    assert (again.record("s"), again.entries("s"), again.snapshot("s")) == before
    assert again.count() == 1
    for reason in ["deleted", "expired"]:
        with pytest.raises(GoneSessionError, match=reason):
            again.record(reason)


def test_a_closed_store_says_that_it_is_closed(store: SessionStore, new_record: Make) -> None:
    store.close()
    store.close()
    for call in CALLS.values():
        with pytest.raises(StoreUnavailableError, match="closed"):
            call(store, "s")
    with pytest.raises(StoreUnavailableError, match="closed"):
        store.create(new_record())
    with pytest.raises(StoreUnavailableError, match="closed"):
        store.count()
    with pytest.raises(StoreUnavailableError, match="closed"):
        store.expire(1.0)


# --- the log ----------------------------------------------------------------------------------------------------------


def test_each_append_is_one_version_and_one_entry_more(store: SessionStore, new_record: Make, new_entry: Make) -> None:
    store.create(new_record())
    for count in range(1, 13):
        answered = store.append("s", count - 1, new_entry(f"u{count}"), 100.0 + count)
        assert answered == new_record(version=count, entries=count, used=100.0 + count)
        assert store.record("s") == answered


def test_the_log_is_in_the_order_of_its_appends(store: SessionStore, new_record: Make, new_entry: Make) -> None:
    # Twelve, so that an order of texts (10 before 2) would show; ids fall while numbers rise.
    store.create(new_record())
    names = [f"u{12 - number}" for number in range(12)]
    for version, name in enumerate(names):
        store.append("s", version, new_entry(name), 100.0)
    assert [entry.utterance_id for entry in store.entries("s")] == names
    for first in range(-2, 14):
        assert [entry.utterance_id for entry in store.entries("s", first)] == names[max(first, 0) :]
    assert [store.entry("s", name) for name in names] == list(enumerate(store.entries("s")))
    assert store.entry("s", "u0") is None


def test_an_utterance_is_in_the_log_once(filled: SessionStore, new_entry: Make) -> None:
    before = filled.record("s")
    with pytest.raises(ValueError, match="utterance already"):
        filled.append("s", 3, new_entry("u2", "other"), 200.0)
    assert filled.record("s") == before
    assert filled.entries("s")[1].words == ("word of u2",)


def test_confirming_changes_one_entry_and_the_version(filled: SessionStore) -> None:
    before = filled.entries("s")
    answered = filled.confirm("s", 3, 1, ["what", "was", "said"], 150.0)
    assert (answered.version, answered.entries, answered.base, answered.used) == (4, 3, 0, 150.0)
    assert filled.record("s") == answered
    assert filled.entries("s") == [
        before[0],
        dataclasses.replace(before[1], confirmed=("what", "was", "said")),
        before[2],
    ]
    filled.confirm("s", 4, 1, [], 151.0)
    assert filled.entry("s", "u2") == (1, dataclasses.replace(before[1], confirmed=()))


@pytest.mark.parametrize("number", [-1, 3, 1000])
def test_an_entry_that_is_not_there_cannot_be_confirmed(filled: SessionStore, number: int) -> None:
    before = filled.record("s"), filled.entries("s")
    with pytest.raises(ValueError, match="no entry"):
        filled.confirm("s", 3, number, ["x"], 200.0)
    assert (filled.record("s"), filled.entries("s")) == before


def test_a_reset_empties_the_log_and_frees_the_utterances(filled: SessionStore, new_entry: Make) -> None:
    filled.save_snapshot("s", Snapshot(3, 3, b"state"))
    answered = filled.reset("s", 3, 150.0)
    assert (answered.version, answered.entries, answered.base, answered.used) == (4, 0, 4, 150.0)
    assert filled.record("s") == answered
    assert filled.entries("s") == []
    assert filled.entry("s", "u1") is None
    assert filled.snapshot("s") is None
    assert filled.append("s", 4, new_entry("u1", "anew"), 151.0).entries == 1
    assert filled.entry("s", "u1") == (0, new_entry("u1", "anew"))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("version", [0, 2, 4, 30, -1])
def test_a_change_from_another_version_changes_nothing(filled: SessionStore, change: str, version: int) -> None:
    filled.save_snapshot("s", Snapshot(3, 3, b"state"))
    before = filled.record("s"), filled.entries("s"), filled.snapshot("s")
    with pytest.raises(StaleVersionError) as caught:
        CHANGES[change](filled, version)
    assert caught.value.current == 3
    assert (filled.record("s"), filled.entries("s"), filled.snapshot("s")) == before


def test_parts_that_do_not_fit_make_no_session(store: SessionStore, new_record: Make, new_entry: Make) -> None:
    twice = [new_entry("u1"), new_entry("u1")]
    misfits: list[tuple[Any, ...]] = [
        (new_record(entries=1),),
        (new_record(entries=1, version=1), twice),
        (new_record(entries=2, version=2), twice),
        (new_record(version=3, base=4),),
        (new_record(), [], Snapshot(1, 0, b"")),
        (new_record(version=3, base=2), [], Snapshot(1, 0, b"")),
        (new_record(), [], Snapshot(0, 1, b"")),
        (new_record(options={"rate": float("nan")}),),
    ]
    for parts in misfits:
        with pytest.raises(ValueError, match=r"."):
            store.create(*parts)
    assert store.count() == 0


# --- snapshots --------------------------------------------------------------------------------------------------------


def test_a_newer_snapshot_takes_the_place_of_an_older_one_and_never_the_reverse(filled: SessionStore) -> None:
    assert filled.save_snapshot("s", Snapshot(2, 2, b"two"))
    assert filled.save_snapshot("s", Snapshot(3, 3, b"three"))
    assert not filled.save_snapshot("s", Snapshot(2, 2, b"two"))
    assert filled.snapshot("s") == Snapshot(3, 3, b"three")


def test_a_snapshot_outlives_appends(filled: SessionStore, new_entry: Make) -> None:
    filled.save_snapshot("s", Snapshot(3, 3, b"three"))
    filled.append("s", 3, new_entry("u4"), 100.0)
    assert filled.snapshot("s") == Snapshot(3, 3, b"three")
    assert filled.record("s").version == 4


@pytest.mark.parametrize(("number", "kept"), [(0, False), (1, False), (2, True)])
def test_confirming_drops_a_snapshot_that_has_taken_the_entry_in(
    filled: SessionStore, number: int, *, kept: bool
) -> None:
    # The snapshot has taken in entries 0 and 1.
    filled.save_snapshot("s", Snapshot(2, 2, b"two"))
    filled.confirm("s", 3, number, ["x"], 100.0)
    assert (filled.snapshot("s") is not None) == kept


@pytest.mark.parametrize(("number", "kept"), [(0, False), (1, False), (2, True)])
def test_a_snapshot_that_comes_after_a_confirmation_it_has_missed_is_refused(
    filled: SessionStore, number: int, *, kept: bool
) -> None:
    filled.confirm("s", 3, number, ["x"], 100.0)
    assert filled.save_snapshot("s", Snapshot(3, 2, b"missed it")) == kept
    assert (filled.snapshot("s") is not None) == kept
    assert filled.save_snapshot("s", Snapshot(4, 3, b"knows it"))
    assert filled.snapshot("s") == Snapshot(4, 3, b"knows it")


def test_a_snapshot_of_a_log_that_was_reset_is_refused(filled: SessionStore, new_entry: Make) -> None:
    filled.reset("s", 3, 100.0)
    assert not filled.save_snapshot("s", Snapshot(3, 3, b"old"))
    for version in range(4, 8):
        filled.append("s", version, new_entry(f"n{version}"), 100.0)
    assert not filled.save_snapshot("s", Snapshot(3, 3, b"old"))
    assert filled.snapshot("s") is None
    assert filled.save_snapshot("s", Snapshot(4, 0, b"new"))


def test_a_snapshot_from_the_future_is_refused(filled: SessionStore) -> None:
    assert not filled.save_snapshot("s", Snapshot(4, 3, b""))
    assert not filled.save_snapshot("s", Snapshot(3, 4, b""))
    assert filled.snapshot("s") is None


# --- those that are gone ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", CALLS)
def test_a_session_never_made_is_unknown(store: SessionStore, call: str) -> None:
    with pytest.raises(UnknownSessionError):
        CALLS[call](store, "s")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("reason", ["deleted", "expired"])
def test_a_session_that_has_gone_says_how(filled: SessionStore, call: str, reason: str) -> None:
    if reason == "deleted":
        filled.delete("s")
    else:
        filled.expire(1000.0)
    assert filled.count() == 0
    with pytest.raises(GoneSessionError) as caught:
        CALLS[call](filled, "s")
    assert caught.value.reason == reason


def test_a_name_may_be_used_anew_and_nothing_of_the_old_session_is_left(
    filled: SessionStore, new_record: Make, new_entry: Make
) -> None:
    filled.save_snapshot("s", Snapshot(3, 3, b"state"))
    filled.confirm("s", 3, 2, ["x"], 100.0)
    filled.delete("s")
    filled.create(new_record())
    assert filled.record("s") == new_record()
    assert filled.entries("s") == []
    assert filled.snapshot("s") is None
    for version, name in enumerate(["u1", "u2", "u3"]):
        filled.append("s", version, new_entry(name), 100.0)
    assert filled.save_snapshot("s", Snapshot(3, 3, b"state"))


def test_a_session_that_is_there_is_not_made_again(filled: SessionStore, new_record: Make, new_entry: Make) -> None:
    before = filled.record("s"), filled.entries("s")
    with pytest.raises(SessionExistsError):
        filled.create(new_record(version=1, entries=1), [new_entry("other")])
    assert (filled.record("s"), filled.entries("s")) == before


def test_those_not_used_since_expire_and_no_others(store: SessionStore, new_record: Make, new_entry: Make) -> None:
    for name, used in [("old", 100.0), ("older", 90.0), ("at", 200.0), ("new", 300.0), ("touched", 1.0)]:
        store.create(new_record(name, used=used))
    store.create(new_record("spoken", used=1.0))
    store.touch("touched", 250.0)
    store.append("spoken", 0, new_entry("u1"), 250.0)
    assert sorted(store.expire(200.0)) == ["old", "older"]
    assert store.expire(200.0) == []
    assert store.count() == 4
    assert store.record("touched").used == 250.0


def test_use_is_never_set_back(store: SessionStore, new_record: Make, new_entry: Make) -> None:
    store.create(new_record(used=100.5))
    store.touch("s", 100.25)
    assert store.record("s").used == 100.5
    assert store.append("s", 0, new_entry("u1"), 7.0).used == 100.5
    assert store.expire(100.5) == []


def test_only_so_many_are_remembered_and_the_oldest_are_forgotten_first(place: Any, new_record: Make) -> None:
    store = place.open(remembered=3)
    for name in "abcdef":
        store.create(new_record(name, used=1.0))
    for name in "abcd":
        store.delete(name)
    assert set(store.expire(2.0)) == {"e", "f"}
    for name in "abc":
        with pytest.raises(UnknownSessionError):
            store.record(name)
    for name in "def":
        with pytest.raises(GoneSessionError):
            store.record(name)


# --- many at once -----------------------------------------------------------------------------------------------------


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """What each call returns or raises, all let go at the same moment."""
    barrier = threading.Barrier(len(calls))

    def one(call: Callable[[], Any]) -> Any:
        barrier.wait(PATIENCE_S)
        try:
            return call()
        except (StaleVersionError, SessionExistsError, GoneSessionError) as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def test_of_many_appends_from_one_version_one_is_made(place: Any, new_record: Make, new_entry: Make) -> None:
    # Two stores, as two processes have them, with eight threads each.
    stores = [place.open(), place.open()]
    stores[0].create(new_record())
    winners = []
    for version in range(8):
        entries = [new_entry(f"u{version}.{thread}") for thread in range(16)]
        outcomes = at_once(
            [
                functools.partial(stores[thread % 2].append, "s", version, entry, 100.0)
                for thread, entry in enumerate(entries)
            ]
        )
        made = [entry for entry, outcome in zip(entries, outcomes, strict=True) if isinstance(outcome, SessionRecord)]
        stale = [outcome.current for outcome in outcomes if isinstance(outcome, StaleVersionError)]
        assert len(made) == 1
        assert stale == [version + 1] * 15
        winners += made
    assert stores[1].entries("s") == winners


def test_of_different_changes_from_one_version_one_is_made(place: Any, new_record: Make, new_entry: Make) -> None:
    stores = [place.open(), place.open()]
    stores[0].create(new_record(version=1, entries=1), [new_entry("u1")])
    calls = [lambda store=store, change=change: change(store, 1) for store in stores for change in CHANGES.values()]
    outcomes = at_once(calls)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["SessionRecord"] + ["StaleVersionError"] * 5
    assert stores[0].record("s") == next(outcome for outcome in outcomes if isinstance(outcome, SessionRecord))


def test_of_many_that_make_one_session_one_makes_it(place: Any, new_record: Make) -> None:
    stores = [place.open(), place.open()]
    outcomes = at_once(
        [
            lambda store=stores[thread % 2], thread=thread: store.create(new_record(bundle=str(thread)))
            for thread in range(16)
        ]
    )
    assert sum(isinstance(outcome, SessionExistsError) for outcome in outcomes) == 15
    assert stores[0].record("s").bundle == str(outcomes.index(None))


def test_of_many_that_delete_one_session_one_deletes_it(place: Any, new_record: Make) -> None:
    stores = [place.open(), place.open()]
    stores[0].create(new_record())
    outcomes = at_once([lambda store=stores[thread % 2]: store.delete("s") for thread in range(8)])
    assert outcomes.count(None) == 1
    assert sum(isinstance(outcome, GoneSessionError) for outcome in outcomes) == 7


@pytest.mark.slow
def test_nothing_is_lost_where_all_try_again_until_they_succeed(place: Any, new_record: Make, new_entry: Make) -> None:
    stores = [place.open(), place.open()]
    stores[0].create(new_record())

    def speak(thread: int) -> None:
        store = stores[thread % 2]
        for number in range(12):
            while True:
                version = store.record("s").version
                try:
                    store.append("s", version, new_entry(f"{thread}.{number}"), 100.0)
                except StaleVersionError:
                    continue
                break

    at_once([lambda thread=thread: speak(thread) for thread in range(8)])
    log = [entry.utterance_id for entry in stores[0].entries("s")]
    assert stores[1].record("s").version == len(log) == 8 * 12
    for thread in range(8):
        assert [name for name in log if name.startswith(f"{thread}.")] == [f"{thread}.{n}" for n in range(12)]


# --- death ------------------------------------------------------------------------------------------------------------

# Appends for ever, and tells each append that has returned.
SPEAKER = """
import sys
from pathlib import Path
from service.session_store import Entry, Snapshot
kind, where, *rest = sys.argv[1:]
if kind == "redis":
    from service.redis_store import RedisStore
    store = RedisStore(where, *rest)
else:
    from service.sqlite_store import SqliteStore
    store = SqliteStore(Path(where))
version = store.record("s").version
while True:
    entry = Entry(f"u{version}", "r", ("w", str(version)) * 40, None, b"a" * 3000)
    version = store.append("s", version, entry, 100.0).version
    print(version, flush=True)
    if version % 5 == 0:
        store.save_snapshot("s", Snapshot(version, version, b"%d" % version * 5000))
"""


@pytest.mark.slow
def test_what_a_process_was_told_is_kept_is_there_after_it_was_killed(place: Any, new_record: Make) -> None:
    store = place.open()
    store.create(new_record())
    store.close()
    for turn in range(8):
        command = [sys.executable, "-c", SPEAKER, *place.arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            told = [int(process.stdout.readline()) for _ in range(3 + 5 * turn)]
            process.kill()
            told += map(int, process.stdout.read().split())
        store = place.open()
        reached = store.record("s").version
        assert reached in {told[-1], told[-1] + 1}
        log = store.entries("s")
        assert [entry.utterance_id for entry in log] == [f"u{number}" for number in range(reached)]
        assert all(entry.words == ("w", str(number)) * 40 for number, entry in enumerate(log))
        snapshot = store.snapshot("s")
        if snapshot is not None:
            assert snapshot.state == b"%d" % snapshot.version * 5000
            assert reached - 10 < snapshot.version <= reached
        store.close()
