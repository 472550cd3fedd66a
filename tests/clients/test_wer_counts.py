from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.errors import EvaluationError
from clients.evaluation.alignment import count_errors
from clients.evaluation.counts import ErrorCounts
from clients.evaluation.list_errors import ListErrors

Distance = Callable[[Sequence[str], Sequence[str]], int]
WORDS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=7)
COUNTS = st.builds(ErrorCounts, *[st.integers(0, 99)] * 6)


def summed(*pairs: tuple[str, str]) -> ErrorCounts:
    return sum((count_errors(r.split(), h.split()) for r, h in pairs), ErrorCounts())


def test_counts_of_each_kind(edit_distance: Distance) -> None:
    # a b c d   e
    # a x c     e f g:   one substituted, one deleted, two inserted of five words
    assert count_errors(list("abcde"), list("axcefg")).errors == edit_distance(list("abcde"), list("axcefg"))
    assert count_errors(["a", "b"], ["a", "x"]) == ErrorCounts(2, 1, 0, 0, 1, 1)
    assert count_errors(["a", "b"], ["a"]) == ErrorCounts(2, 0, 1, 0, 1, 1)
    assert count_errors(["a"], ["a", "b"]) == ErrorCounts(1, 0, 0, 1, 1, 1)
    assert count_errors(["a"], ["a"]) == ErrorCounts(1, 0, 0, 0, 1, 0)


def test_pairs_are_not_run_together() -> None:
    # "I" against "I am" inserts one word, "am I good?" against "I good?" deletes one: 2 of 4
    assert summed(("I", "I am"), ("am I good?", "I good?")).wer == 50.0


def test_the_rate_is_of_summed_counts_not_a_mean_of_rates() -> None:
    # 1 error of 1 word, 0 of 9: 1 / 10, where the mean of the rates would be 1 / 2
    assert summed(("a", "x"), ("b c d e f g h i j", "b c d e f g h i j")).wer == 10.0


@given(WORDS, WORDS)
def test_the_total_is_the_edit_distance_however_it_is_split(
    edit_distance: Distance, reference: list[str], hypothesis: list[str]
) -> None:
    assert count_errors(reference, hypothesis).errors == edit_distance(reference, hypothesis)


def test_an_empty_reference_has_no_words_and_only_insertions() -> None:
    assert count_errors([], ["a", "b", "c"]) == ErrorCounts(0, 0, 0, 3, 1, 1)
    assert count_errors([], []) == ErrorCounts(0, 0, 0, 0, 1, 0)


def test_an_empty_reference_adds_its_insertions_to_the_sum() -> None:
    assert summed(("", "a b c"), ("a b c d", "a b c d")).wer == 75.0


@pytest.mark.parametrize("space", ["\t", "\u00a0", "\u3000", "\x1c", "\u2028"])
def test_white_space_inside_a_word_neither_parts_nor_vanishes(space: str) -> None:
    assert count_errors([f"a{space}b"], ["a", "b"]).errors == 2
    assert count_errors([space, "a"], ["a"]) == ErrorCounts(2, 0, 1, 0, 1, 1)


def test_utterances_of_one_letter_shift_no_pair() -> None:
    # jiwer's command line drops "a" and "b" here, pairs "hello world" with itself, and reports no error
    assert summed(("a", "hello world"), ("hello world", "b")).errors == 2 + 2


@pytest.mark.parametrize("word", ["null", "NA", "nan", "None"])
def test_words_that_look_like_values_are_words(word: str) -> None:
    assert count_errors([word], [word]) == ErrorCounts(1, 0, 0, 0, 1, 0)
    assert count_errors([word], []) == ErrorCounts(1, 0, 1, 0, 1, 1)


@given(WORDS, WORDS)
def test_words_of_the_hypothesis_follow_from_the_counts(reference: list[str], hypothesis: list[str]) -> None:
    assert count_errors(reference, hypothesis).hypothesis_words == len(hypothesis)


@given(WORDS, st.lists(WORDS, min_size=1, max_size=6))
def test_the_oracle_has_the_fewest_errors_and_is_the_first_of_several(
    edit_distance: Distance, reference: list[str], hypotheses: list[list[str]]
) -> None:
    distances = [edit_distance(reference, words) for words in hypotheses]
    assert ListErrors(reference, hypotheses).oracle == distances.index(min(distances))


@given(COUNTS, COUNTS, COUNTS)
def test_counts_add_in_any_order(a: ErrorCounts, b: ErrorCounts, c: ErrorCounts) -> None:
    assert (a + b) + c == c + (b + a)
    assert a + ErrorCounts() == a
    assert (a + b).errors == a.errors + b.errors


def test_rates_of_nothing_are_errors() -> None:
    with pytest.raises(EvaluationError, match="no word"):
        _ = ErrorCounts(insertions=3, utterances=1).wer
    with pytest.raises(EvaluationError, match="no utterance"):
        _ = ErrorCounts().ser
