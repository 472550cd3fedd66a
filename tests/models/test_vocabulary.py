from collections import Counter
from pathlib import Path

import pytest

from models.errors import BundleError, TrainingError
from models.vocabulary import EOS_ID, UNK_ID, Vocabulary

COUNTS = Counter({"the": 5, "cat": 2, "bat": 2, "sat": 1, "<unk>": 9})


def test_words_stand_by_frequency_and_ties_by_the_alphabet() -> None:
    assert Vocabulary.from_counts(COUNTS).words == ("the", "bat", "cat", "sat")


def test_the_unknown_word_of_a_text_is_no_word_of_the_vocabulary() -> None:
    assert "<unk>" not in Vocabulary.from_counts(COUNTS).words


def test_words_below_a_count_can_be_left_out() -> None:
    assert Vocabulary.from_counts(COUNTS, min_count=2).words == ("the", "bat", "cat")


def test_a_text_without_words_makes_no_vocabulary() -> None:
    with pytest.raises(TrainingError, match="no word"):
        Vocabulary.from_counts(Counter({"<unk>": 3}))


def test_the_event_space_is_the_words_the_unknown_word_and_the_sentence_end() -> None:
    vocabulary = Vocabulary(("a", "b"))
    assert vocabulary.size == 4
    assert [vocabulary.word(event) for event in range(4)] == ["<unk>", "</s>", "a", "b"]


def test_a_word_not_known_is_the_unknown_word() -> None:
    vocabulary = Vocabulary(("a", "b"))
    assert vocabulary.ids(("b", "zebra", "a", "<unk>")) == [3, UNK_ID, 2, UNK_ID]
    assert vocabulary.ids(("b", "zebra", "a", "<unk>")).count(UNK_ID) == 2


def test_no_word_can_end_a_sentence() -> None:
    assert EOS_ID not in Vocabulary(("a",)).ids(("a", "</s>", "<s>"))


def test_save_then_load_is_the_same_vocabulary(tmp_path: Path) -> None:
    vocabulary = Vocabulary(("null", "NA", "nan", "None", "caf\u00e9", "\u0939\u093f"))
    vocabulary.save(tmp_path / "vocab.txt")
    loaded = Vocabulary.load(tmp_path / "vocab.txt")
    assert (loaded, loaded.sha256) == (vocabulary, vocabulary.sha256)


def test_the_hash_depends_on_the_order_of_the_words() -> None:
    assert Vocabulary(("a", "b")).sha256 != Vocabulary(("b", "a")).sha256


@pytest.mark.parametrize("content", [b"a\nb\na\n", b"\xff\n", None], ids=["twice", "not UTF-8", "missing"])
def test_a_file_that_is_no_vocabulary_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BundleError, match=r"vocab\.txt"):
        Vocabulary.load(path)
