import json
import unicodedata
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from models.errors import BundleError, InvalidTextError
from models.normaliser import Normaliser
from models.vocabulary import UNK

DEFAULT = Normaliser()
KEEPING = Normaliser(case="keep", punctuation="keep")
# All that may stand in a text: no NUL, no lone surrogate.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ()),
        ("   \t ", ()),
        ("Hello, World!", ("hello", "world")),
        ("mother-in-law", ("mother", "in", "law")),
        ("don't 'tis", ("don't", "'tis")),
        ("don\u2019t", ("don't",)),
        ("snake_case", ("snake", "case")),
        ("call 911", ("call", "911")),
        ("' -- ...", ()),
        ("<sil> yes [NOISE] no ++NOISE++", ("yes", "no")),
        ("I read(2) it", ("i", "read", "it")),
        ("read(2)(3)", ("read",)),
    ],
)
def test_what_words_a_text_has(text: str, words: tuple[str, ...]) -> None:
    assert DEFAULT.words(text) == words


@given(TEXTS)
@example("J\u030c H\u0331")
@example("\u0130stanbul")
@example("\u00b4 \u00a8")
def test_normalising_twice_is_normalising_once(text: str) -> None:
    for normaliser in (DEFAULT, Normaliser(unicode_form="NFKC"), Normaliser(case="keep")):
        try:
            words = normaliser.words(text)
        except InvalidTextError:
            continue
        assert normaliser.words(" ".join(words)) == words


@given(TEXTS)
def test_words_hold_no_white_space_and_are_not_empty(text: str) -> None:
    for normaliser in (DEFAULT, KEEPING):
        try:
            words = normaliser.words(text)
        except InvalidTextError:
            continue
        assert all(word and not any(map(str.isspace, word)) for word in words)


@given(TEXTS, TEXTS)
def test_a_text_of_two_parts_has_the_words_of_both(left: str, right: str) -> None:
    try:
        parts = DEFAULT.words(left) + DEFAULT.words(right)
    except InvalidTextError:
        return
    assert DEFAULT.words(f"{left}\n{right}") == parts


@given(TEXTS)
def test_canonically_equal_texts_have_equal_words(text: str) -> None:
    try:
        words = DEFAULT.words(text)
    except InvalidTextError:
        return
    assert DEFAULT.words(unicodedata.normalize("NFD", text)) == words


def test_composed_and_decomposed_accents_are_one_word() -> None:
    assert DEFAULT.words("caf\u00e9 cafe\u0301") == ("caf\u00e9", "caf\u00e9")


def test_case_is_folded_before_marks_are_composed() -> None:
    # There is no capital J with caron to compose to, but a small one there is.
    assert DEFAULT.words("J\u030c") == DEFAULT.words("\u01f0") == ("\u01f0",)


@pytest.mark.parametrize("word", ["\u0939\u093f\u0928\u094d\u0926\u0940", "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22"])
def test_words_of_scripts_whose_vowels_are_marks_stay_whole(word: str) -> None:
    assert DEFAULT.words(word) == (word,)


def test_a_variant_of_a_word_that_ends_in_a_mark_is_that_word() -> None:
    assert DEFAULT.words("\u0939\u093f(2)") == ("\u0939\u093f",)


def test_compatibility_forms_are_folded_only_when_asked_for() -> None:
    assert Normaliser(unicode_form="NFKC").words("\ufb01ne") == ("fine",)
    assert DEFAULT.words("\ufb01ne") == ("\ufb01ne",)


@pytest.mark.parametrize("space", ["\u00a0", "\u3000", "\x1c", "\u2028", "\x85", "\t", "\r\n"])
def test_every_unicode_white_space_parts_words(space: str) -> None:
    assert DEFAULT.words(f"a{space}b") == KEEPING.words(f"a{space}b") == ("a", "b")


@pytest.mark.parametrize("word", ["null", "NA", "nan", "None", "true", "inf"])
def test_words_that_look_like_values_are_words(word: str) -> None:
    assert KEEPING.words(word) == (word,)
    assert DEFAULT.words(word) == (word.lower(),)


@pytest.mark.parametrize("spelling", ["<unk>", "<UNK>", "<Unk>", "<oov>", "<OOV>", "<Oov>"])
@pytest.mark.parametrize("normaliser", [DEFAULT, KEEPING])
def test_all_spellings_of_the_unknown_word_are_one(spelling: str, normaliser: Normaliser) -> None:
    assert normaliser.words(f"a {spelling}") == ("a", UNK)


@pytest.mark.parametrize("marker", ["<s>", "</s>", "<S>", "</S>"])
@pytest.mark.parametrize("normaliser", [DEFAULT, KEEPING])
def test_a_sentence_marker_is_an_error_that_names_it(marker: str, normaliser: Normaliser) -> None:
    with pytest.raises(InvalidTextError, match=marker):
        normaliser.words(f"good {marker} morning")


def test_a_marker_that_only_the_unicode_form_reveals_is_one() -> None:
    with pytest.raises(InvalidTextError, match="sentence marker"):
        Normaliser(unicode_form="NFKC").words("\uff1cs\uff1e")


def test_a_marker_called_a_variant_does_not_become_one() -> None:
    assert "<s>" not in KEEPING.words("<s>(2)")


@pytest.mark.parametrize("place", ["\0", "a\0b", "word\0"])
def test_nul_is_an_error(place: str) -> None:
    with pytest.raises(InvalidTextError, match="NUL"):
        DEFAULT.words(place)


@pytest.mark.parametrize("lone", ["\ud800", "a\udfff", "\udc00\ud800"])
def test_a_lone_surrogate_is_an_error(lone: str) -> None:
    with pytest.raises(InvalidTextError, match="surrogate"):
        DEFAULT.words(lone)


def test_an_error_is_one_again_when_the_text_comes_again() -> None:
    normaliser = Normaliser()
    for _ in range(2):
        with pytest.raises(InvalidTextError):
            normaliser.words("<s>")


def test_noise_tokens_can_be_chosen() -> None:
    assert Normaliser(noise_tokens=("uh",)).words("uh <sil> yes") == ("sil", "yes")


def test_keeping_case_and_punctuation_leaves_tokens_as_they_are() -> None:
    assert KEEPING.words("Hello, World! <sil>") == ("Hello,", "World!")


@pytest.mark.parametrize(
    "normaliser", [DEFAULT, KEEPING, Normaliser(unicode_form="NFKC", variants="keep", noise_tokens=())]
)
def test_settings_survive_json(normaliser: Normaliser) -> None:
    assert Normaliser.from_json(json.loads(json.dumps(normaliser.to_json()))) == normaliser


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ([], "no object"),
        ({"stemming": True}, "'stemming'"),
        ({"case": "upper"}, "'case'"),
        ({"case": []}, "'case'"),
        ({"unicode_form": "NFD"}, "'unicode_form'"),
        ({"noise_tokens": "<sil>"}, "'noise_tokens'"),
        ({"noise_tokens": [1]}, "'noise_tokens'"),
        ({"noise_tokens": None}, "'noise_tokens'"),
    ],
)
def test_a_setting_that_is_none_is_refused_by_name(settings: Any, named: str) -> None:
    with pytest.raises(BundleError, match=named):
        Normaliser.from_json(settings)
