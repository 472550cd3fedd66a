import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.word_errors import word_errors

WORDS = st.lists(st.sampled_from(("a", "b", "c", "null", "NA", "nan", "None")), max_size=7)


def levenshtein(reference: list[str], hypothesis: list[str]) -> int:
    row = list(range(len(hypothesis) + 1))
    for i, wanted in enumerate(reference, 1):
        diagonal, row[0] = row[0], i
        for j, word in enumerate(hypothesis, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != wanted))
    return row[-1]


@given(WORDS, st.lists(WORDS, min_size=1, max_size=5))
def test_word_errors_are_the_fewest_edits(reference: list[str], hypotheses: list[list[str]]) -> None:
    assert word_errors(reference, hypotheses).tolist() == [levenshtein(reference, words) for words in hypotheses]


def test_against_an_empty_reference_every_word_is_an_error() -> None:
    assert word_errors((), (("a", "b", "c"), ())).tolist() == [3, 0]


def test_an_empty_hypothesis_misses_every_word() -> None:
    assert word_errors(("a", "b"), ((), ("a", "b"))).tolist() == [2, 0]


def test_a_word_that_is_one_letter_counts() -> None:
    # jiwer's own command line drops such lines; its library does not.
    assert word_errors(("i",), (("i",), ("a",), ("i", "am"))).tolist() == [0, 1, 1]


@pytest.mark.parametrize("word", ["null", "NA", "nan", "None"])
def test_words_that_look_like_values_are_words(word: str) -> None:
    assert word_errors((word, "a"), (("a",), (word, "a"))).tolist() == [1, 0]


def test_words_are_kept_apart_by_single_spaces_alone() -> None:
    # The normaliser has split already: what it leaves inside a word is part of the word.
    assert word_errors(("a-b", "c"), (("a", "b", "c"),)).tolist() == [2]
