import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.batches import Limits, batches, units
from clients.errors import InputFileError
from clients.files import NBestLine
from clients.types import State

WIDE = Limits(4, None)


def lines(sessions: list[str | None], text: str = "a") -> list[NBestLine]:
    out = []
    for number, session in enumerate(sessions, start=1):
        entry: Any = {"id": f"u{number}", "hypotheses": [{"text": text, "acoustic_score": -1.0}]}
        if session is not None:
            entry["session_id"] = session
        out.append(NBestLine(number, entry))
    return out


def packed(entries: list[NBestLine], state: State | None, limits: Limits) -> list[list[str]]:
    return [
        [line.utterance_id for line in batch] for batch in batches(units("n.jsonl", entries, state, limits), limits)
    ]


def test_batches_are_as_full_as_their_number_allows() -> None:
    assert packed(lines([None] * 5), None, Limits(2, None)) == [["u1", "u2"], ["u3", "u4"], ["u5"]]


def test_no_utterance_is_no_batch() -> None:
    assert packed([], None, WIDE) == []


@given(st.lists(st.sampled_from(["a", None]), max_size=30), st.integers(1, 7), st.integers(4300, 6000))
def test_batches_hold_every_utterance_once_in_order_within_the_limits(
    sessions: list[str | None], most: int, body_bytes: int
) -> None:
    entries = lines(sessions)
    limits = Limits(most, body_bytes)
    made = list(batches(units("n.jsonl", entries, "reset", limits), limits))
    assert [line for batch in made for line in batch] == entries
    for batch in made:
        assert len(batch) <= most
        assert len(json.dumps({"utterances": [line.utterance for line in batch]})) <= body_bytes


def test_an_utterance_that_fits_in_no_request_is_named() -> None:
    with pytest.raises(InputFileError, match=r"n\.jsonl:1: the utterance takes 5,\d+ bytes of JSON"):
        packed(lines([None], "a" * 5000), None, Limits(4, 9000))


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 6)), unique_by=lambda run: run[0]))
def test_a_session_whose_state_is_carried_is_never_cut(runs: list[tuple[str, int]]) -> None:
    entries = lines([session for session, length in runs for _ in range(length)])
    made = packed(entries, "carried", WIDE)
    assert [identifier for batch in made for identifier in batch] == [line.utterance_id for line in entries]
    for session, length in runs:
        ids = {line.utterance_id for line in entries if line.utterance.get("session_id") == session}
        assert sum(bool(ids & set(batch)) for batch in made) == 1
        assert len(ids) == length


def test_small_sessions_share_a_request() -> None:
    assert packed(lines(["a", "a", "b", "c", "c"]), "carried", WIDE) == [["u1", "u2", "u3"], ["u4", "u5"]]


def test_lines_without_a_session_are_one_session() -> None:
    assert packed(lines([None] * 6), "carried", WIDE) == [["u1", "u2", "u3", "u4", "u5", "u6"]]


def test_with_state_reset_a_session_may_be_cut() -> None:
    assert packed(lines(["a"] * 3), "reset", Limits(2, None)) == [["u1", "u2"], ["u3"]]


def test_a_session_that_goes_on_after_another_is_named_with_both_lines() -> None:
    with pytest.raises(InputFileError, match=r"n\.jsonl:3: session_id: session 'a' .*\(it began in line 1\)"):
        packed(lines(["a", "b", "a"]), "carried", WIDE)


def test_a_session_that_fits_in_no_request_is_named_with_its_lines() -> None:
    with pytest.raises(InputFileError, match=r"n\.jsonl:3: session 'b' does not fit .* from line 2 to here"):
        packed(lines(["a", "b", "b"], "a" * 3000), "carried", Limits(4, 8192))
