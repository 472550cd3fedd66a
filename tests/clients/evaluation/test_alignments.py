import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.errors import EvaluationError
from clients.evaluation.alignment import align

WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=8)


def test_columns_of_an_alignment_with_one_reading() -> None:
    # a b c -    d
    # a x - e    d   would need three edits; so does no other
    alignment = align(["a", "b", "c", "d"], ["a", "c", "d", "e"])
    assert list(alignment.columns()) == [
        ("C", "a", "a"),
        ("D", "b", None),
        ("C", "c", "c"),
        ("C", "d", "d"),
        ("I", None, "e"),
    ]
    # slots: gap, a, gap, b, gap, c, gap, d, gap
    assert alignment.slots().tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 1]


def test_several_words_inserted_in_one_place_are_counted_there() -> None:
    assert align(["a"], ["x", "y", "a", "z"]).slots().tolist() == [2, 0, 1]


@given(WORDS, WORDS)
def test_columns_spell_both_sides_and_match_only_equal_words(reference: list[str], hypothesis: list[str]) -> None:
    columns = list(align(reference, hypothesis).columns())
    assert [said for _, said, _ in columns if said is not None] == reference
    assert [heard for _, _, heard in columns if heard is not None] == hypothesis
    for letter, said, heard in columns:
        assert (letter == "C") == (said == heard)
        assert (letter == "S") == (said is not None and heard is not None and said != heard)


@given(WORDS, WORDS)
def test_slots_hold_every_error_once(reference: list[str], hypothesis: list[str]) -> None:
    alignment = align(reference, hypothesis)
    slots = alignment.slots()
    assert len(slots) == 2 * len(reference) + 1
    assert sum(slots[0::2]) == alignment.counts.insertions
    assert sum(slots[1::2]) == alignment.counts.substitutions + alignment.counts.deletions


@pytest.mark.parametrize("word", ["", "a b", " "])
def test_what_is_no_word_is_refused(word: str) -> None:
    with pytest.raises(EvaluationError, match="a word is empty or holds a space"):
        align(["a", "b"], ["a", word])
