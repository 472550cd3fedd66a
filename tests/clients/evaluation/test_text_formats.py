import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.errors import EvaluationError
from clients.evaluation.alignment import align
from clients.evaluation.text_formats import columns_text, per_utt, pra, trn, trn_id
from clients.evaluation.utterance import Utterance

WORDS = st.lists(st.sampled_from(["a", "bb", "ccc", "語"]), max_size=7)


def utterance(identifier: str = "u", speaker: str | None = None) -> Utterance:
    return Utterance(identifier, [], [[]], speaker=speaker)


def test_kaldis_details_by_hand() -> None:
    alignment = align(["a", "bb", "c"], ["a", "x", "c", "dd"])
    assert per_utt(utterance("s-1"), alignment).splitlines() == [
        "s-1 ref a bb c ***",
        "s-1 hyp a x  c dd",
        "s-1 op  C S  C I",
        "s-1 #csid 2 1 1 0",
    ]


def test_sclites_layout_by_hand() -> None:
    alignment = align(["a", "bb", "c", "d"], ["a", "x", "c"])
    assert pra(utterance("s-1"), alignment).splitlines() == [
        "id: (s-1)",
        "Scores: (#C #S #D #I) 2 1 1 0",
        "REF:  a bb c d",
        "HYP:  a x  c ***",
        "Eval:   S    D",
        "",
    ]


@given(WORDS, WORDS)
def test_kaldis_columns_can_be_read_back(reference: list[str], hypothesis: list[str]) -> None:
    alignment = align(reference, hypothesis)
    rows = [line.split()[2:] for line in per_utt(utterance(), alignment).splitlines()]
    assert [word for word in rows[0] if word != "***"] == reference
    assert [word for word in rows[1] if word != "***"] == hypothesis
    assert "".join(rows[2]) == alignment.operations
    counts = [int(number) for number in rows[3]]
    assert counts == [alignment.operations.count(letter) for letter in "CSID"]


def test_wide_characters_take_two_columns() -> None:
    # 漢 is as wide as "xy": no space is needed to stand above it
    assert columns_text(align(["漢", "b"], ["xy", "b"]))[:2] == ["REF:  漢 b", "HYP:  xy b"]


@pytest.mark.parametrize(
    ("identifier", "speaker", "made"),
    [
        ("bob-u1", "bob", "bob-u1"),
        ("bob_u1", "bob", "bob_u1"),
        ("u-1", "bob", "bob-u-1"),
        ("bobby", "bob", "bob-bobby"),
        ("a-b-c", None, "a-b-c"),
        ("u1", None, "unknown-u1"),
        ("-u1", None, "unknown--u1"),
    ],
)
def test_the_speaker_stands_before_the_first_hyphen_of_a_trn_id(
    identifier: str, speaker: str | None, made: str
) -> None:
    assert trn_id(utterance(identifier, speaker)) == made


@pytest.mark.parametrize("identifier", ["a b", "a(b", "a)b", "a\tb"])
def test_an_id_that_trn_cannot_hold_is_refused_by_name(identifier: str) -> None:
    with pytest.raises(EvaluationError, match=r"utterance 'a.*b': white space or parentheses"):
        trn(utterance(identifier), ["x"])


@pytest.mark.parametrize("word", ["{", "a{b", "/", "@", "(uh)", "a\u00a0b", ";;x", "<b", "*"])
def test_a_word_that_means_something_else_to_sclite_is_refused_by_name(word: str) -> None:
    with pytest.raises(EvaluationError, match=r"utterance 'u-1': the word .* means something else to sclite"):
        trn(utterance("u-1"), ["x", word])


def test_words_that_only_look_like_markup_are_written() -> None:
    assert trn(utterance("u-1"), ["a/b", "me@x", "semi;;colon"]) == "a/b me@x semi;;colon (u-1)\n"
    assert trn(utterance("u-1"), []) == "(u-1)\n"


def test_what_kaldis_format_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(EvaluationError, match="utterance 'a b': white space in an id"):
        per_utt(utterance("a b"), align([], []))
    with pytest.raises(EvaluationError, match="utterance 'u': the word '\\*\\*\\*'"):
        per_utt(utterance(), align(["***"], []))
