import gzip
import lzma
from pathlib import Path

import pytest

from models.corpus import sentences, word_counts
from models.errors import TrainingError
from models.normaliser import Normaliser

TEXT = "Good morning!\n\n  \nGood <unk> day.\n"


@pytest.mark.parametrize("name", ["text.txt", "text.gz", "text.xz"])
def test_lines_are_sentences_and_empty_lines_are_none(tmp_path: Path, name: str) -> None:
    packed = {"gz": gzip.compress(TEXT.encode()), "xz": lzma.compress(TEXT.encode())}.get(name[-2:], TEXT.encode())
    (tmp_path / name).write_bytes(packed)
    read = list(sentences([tmp_path / name], Normaliser()))
    assert read == [("good", "morning"), ("good", "<unk>", "day")]


def test_files_are_read_in_the_order_given(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    assert list(sentences([tmp_path / "b", tmp_path / "a"], Normaliser())) == [("b",), ("a",)]


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfgood\r\nday\r\n")
    assert list(sentences([tmp_path / "text"], Normaliser(punctuation="keep"))) == [("good",), ("day",)]


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a\u2028b\x1cc\rd\ne", newline="")
    assert list(sentences([tmp_path / "text"], Normaliser())) == [("a", "b", "c", "d"), ("e",)]


@pytest.mark.parametrize("bad", ["a\0b", "a <s> b", "</s>"])
def test_text_that_no_text_may_be_is_refused_by_file_and_line(tmp_path: Path, bad: str) -> None:
    (tmp_path / "text").write_text(f"good\n\n{bad}\n")
    with pytest.raises(TrainingError, match=r"text, line 3: the text holds"):
        list(sentences([tmp_path / "text"], Normaliser()))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("text", None),
        ("text", b"good\n\xff\n"),
        ("text.gz", b"not packed"),
        ("text.gz", gzip.compress(TEXT.encode())[:-9]),
        ("text.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff\xff\xff\xff"),
        ("text.xz", b"not packed"),
        ("text.xz", lzma.compress(TEXT.encode())[:-9]),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path, name: str, content: bytes | None) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TrainingError, match=name):
        list(sentences([path], Normaliser()))


def test_words_are_counted_over_all_sentences() -> None:
    assert word_counts([("a", "b"), (), ("a",)]) == {"a": 2, "b": 1}
