import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.evaluation.alignment import align
from clients.evaluation.matched_pairs import MatchedPairs, matched_pairs, segment_differences

Said = list[str]
WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=8)


def slots(references: list[Said], hypotheses: list[Said]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    every = [align(r, h).slots() for r, h in zip(references, hypotheses, strict=True)]
    return np.array([number for part in every for number in part], np.int64)


def differences(references: list[Said], one: list[Said], other: list[Said], boundary_words: int = 2) -> list[int]:
    words = np.array([len(reference) for reference in references])
    found = segment_differences(slots(references, one), slots(references, other), words, boundary_words=boundary_words)
    return [int(number) for number in found]


def outcome_of(pairs: list[tuple[int, int]]) -> MatchedPairs:
    """One utterance of ten words a segment, in which the systems delete so many of its words."""
    references = [[f"w{i}" for i in range(10)]] * len(pairs)
    one, other = (
        [r[: 10 - gone] for r, gone in zip(references, side, strict=True)] for side in zip(*pairs, strict=True)
    )
    return matched_pairs(slots(references, one), slots(references, other), np.full(len(pairs), 10))


def test_two_correct_words_part_segments_and_one_does_not() -> None:
    reference = ["a", "b", "c", "d", "e"]
    # one errs at a, the other at c (b between) or at d (b and c between)
    near = differences([reference], [["x", *reference[1:]]], [["a", "b", "x", "d", "e"]])
    far = differences([reference], [["x", *reference[1:]]], [["a", "b", "c", "x", "e"]])
    assert (near, far) == ([0], [1, -1])


def test_with_one_boundary_word_one_correct_word_parts_segments() -> None:
    reference = ["a", "b", "c"]
    assert differences([reference], [["x", "b", "c"]], [["a", "b", "x"]], boundary_words=1) == [1, -1]


def test_an_insertion_between_correct_words_parts_nothing_by_itself() -> None:
    # a x b: the insertion lies between two correct words; before it and after it there is one of them
    reference = ["a", "b", "c", "d"]
    assert differences([reference], [["x", "b", "c", "d"]], [["a", "b", "x", "c", "d"]]) == [0]


def test_the_ends_of_utterances_bound_segments() -> None:
    assert differences([["a"], ["b"]], [["x"], ["y"]], [["a"], ["b"]]) == [1, 1]


def test_segments_without_an_error_are_none() -> None:
    assert differences([["a", "b"], []], [["a", "b"], []], [["a", "b"], []]) == []


def test_the_statistic_by_hand() -> None:
    # differences 2, 0, 1, -1, 3: mean 1, squares 1 + 1 + 0 + 4 + 4 = 10, s^2 = 10 / 4, z = 1 / sqrt(2.5 / 5)
    outcome = outcome_of([(2, 0), (1, 1), (1, 0), (0, 1), (3, 0)])
    assert (outcome.segments, outcome.mean) == (5, 1.0)
    assert outcome.z == pytest.approx(math.sqrt(2))
    # 2 (1 - Phi(1.41421)), from a table of the normal distribution
    assert outcome.p_value == pytest.approx(0.1573, abs=5e-5)


def test_systems_that_err_alike_everywhere_do_not_differ() -> None:
    assert outcome_of([(1, 1), (2, 2)]) == MatchedPairs(2, 0.0, 0.0, 1.0)
    assert outcome_of([(0, 0)]) == MatchedPairs(0, 0.0, 0.0, 1.0)


def test_without_spread_the_test_is_not_defined() -> None:
    assert outcome_of([(1, 0)]) == MatchedPairs(1, 1.0, None, None)
    assert outcome_of([(1, 0), (2, 1)]) == MatchedPairs(2, 1.0, None, None)


def by_walking(reference: Said, one: Said, other: Said, boundary: int) -> list[int]:
    """Segments found by walking along an utterance, word by word."""
    pair = [align(reference, hypothesis).slots() for hypothesis in (one, other)]
    found: list[int] = []
    good, current = 0, None
    for spot, (first, second) in enumerate(zip(*pair, strict=True)):
        if first or second:
            if current is None:
                current = 0
            current += first - second
            good = 0
        elif spot % 2:
            good += 1
            if good == boundary and current is not None:
                found.append(current)
                current = None
    return found if current is None else [*found, current]


@given(st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=5), st.integers(1, 3))
def test_segments_are_those_found_by_walking(rows: list[tuple[Said, Said, Said]], boundary: int) -> None:
    expected = [number for row in rows for number in by_walking(*row, boundary)]
    references, one, other = (list(side) for side in zip(*rows, strict=True))
    assert differences(references, one, other, boundary) == expected


@given(st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=6))
def test_turned_round_the_statistic_changes_its_sign_alone(rows: list[tuple[Said, Said, Said]]) -> None:
    references, one, other = (list(side) for side in zip(*rows, strict=True))
    words = np.array([len(reference) for reference in references])
    there = matched_pairs(slots(references, one), slots(references, other), words)
    back = matched_pairs(slots(references, other), slots(references, one), words)
    assert (there.segments, there.mean, there.p_value) == (back.segments, -back.mean, back.p_value)
    assert there.z == (None if back.z is None else -back.z)
