from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.evaluation.list_errors import ListErrors

Distance = Callable[[Sequence[str], Sequence[str]], int]
WORDS = st.lists(st.sampled_from(["a", "b", "null", "c c", "\u3000"]), max_size=7)


@given(WORDS, st.lists(WORDS, min_size=1, max_size=8))
def test_errors_are_edit_distances(edit_distance: Distance, reference: list[str], hypotheses: list[list[str]]) -> None:
    expected = [edit_distance(reference, words) for words in hypotheses]
    found = ListErrors(reference, hypotheses)
    assert found.errors.tolist() == expected
    assert found.oracle == expected.index(min(expected))


@given(WORDS, WORDS)
def test_keys_are_equal_where_words_are(one: list[str], other: list[str]) -> None:
    first, second = ListErrors([], [one, other]).keys
    assert (first == second) == (one == other)


@pytest.mark.parametrize("length", [63, 64, 65, 300])
def test_long_references_are_counted_as_short_ones(length: int) -> None:
    # rapidfuzz works on 64 words at a time
    reference = [f"w{i}" for i in range(length)]
    hypotheses = [reference[1:], [*reference, "x"], ["y", *reference[1:]], reference]
    assert ListErrors(reference, hypotheses).errors.tolist() == [1, 1, 1, 0]


def test_more_words_than_a_byte_or_two_can_tell_apart_are_told_apart() -> None:
    reference = [f"w{i}" for i in range(70_000)]
    assert ListErrors(reference, [reference, [*reference[:-1], "x"]]).errors.tolist() == [0, 1]
