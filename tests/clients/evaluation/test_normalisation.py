import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.evaluation.normalisation import Normalisation, Normaliser


def normalised(text: str, chosen: Normalisation) -> str:
    return " ".join(Normaliser(chosen).words(text.split(" ")))


@given(st.lists(st.text(min_size=1)))
def test_nothing_is_done_unless_chosen(words: list[str]) -> None:
    assert Normaliser(Normalisation()).words(words) is words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, world!", "Hello world"),
        ("don't well-known 3.5 1,000 12:30", "don't well-known 3.5 1,000 12:30"),
        ("'tis dogs' -- end.", "tis dogs end"),
        ("«oui» ¿qué? „ja“", "oui qué ja"),
        ("$5 a+b", "$5 a+b"),  # symbols are no punctuation
    ],
)
def test_punctuation_goes_but_for_what_joins_letters_or_digits(text: str, expected: str) -> None:
    assert normalised(text, Normalisation(strip_punctuation=True)) == expected


def test_lower_case_is_unicodes() -> None:
    assert normalised("ÀÉ Straße ΟΔΟΣ", Normalisation(lowercase=True)) == "àé straße οδος"


def test_unicode_forms() -> None:
    assert normalised("e\u0301", Normalisation(unicode_form="NFC")) == "\u00e9"
    # a no-break space inside a word is a space under NFKC, so one word becomes two
    assert Normaliser(Normalisation(unicode_form="NFKC")).words(["\ufb01n\u00a0a"]) == ["fin", "a"]


def test_words_are_dropped_as_they_are_after_the_other_steps() -> None:
    chosen = Normalisation(lowercase=True, strip_punctuation=True, dropped=frozenset({"uh"}))
    assert normalised("Uh, yes uh-huh", chosen) == "yes uh-huh"


def test_a_word_of_which_nothing_is_left_vanishes() -> None:
    assert normalised("a -- b", Normalisation(strip_punctuation=True)) == "a b"


@given(st.text(alphabet="aB'-.,! \u00c9", max_size=20))
def test_normalising_twice_is_normalising_once(text: str) -> None:
    chosen = Normalisation("NFC", lowercase=True, strip_punctuation=True)
    once = normalised(text, chosen)
    assert normalised(once, chosen) == once


def test_what_was_chosen_is_told_in_words() -> None:
    chosen = Normalisation("NFKC", lowercase=True, strip_punctuation=True, dropped=frozenset({"um", "uh"}))
    assert chosen.describe() == ["NFKC", "lower case", "punctuation stripped", "without uh um"]
    assert Normalisation().describe() == []
