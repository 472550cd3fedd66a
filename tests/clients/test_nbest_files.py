import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clients import jsonl
from clients.errors import InputFileError
from clients.files import NBestLine, ResultLine, read_either, read_nbest, read_results
from clients.jsonl import JsonLines

Write = Callable[..., str]


def nbest(path: str) -> list[NBestLine]:
    with JsonLines(path) as lines:
        return list(read_nbest(lines))


def fault(path: str) -> str:
    with pytest.raises(InputFileError) as caught:
        nbest(path)
    message = str(caught.value)
    assert message.startswith(path)
    return message.removeprefix(path)


def hypothesis_of(text: Any = "a", acoustic: Any = -1.0, **extra: Any) -> dict[str, Any]:
    return {"text": text, "acoustic_score": acoustic, **extra}


@pytest.mark.parametrize("name", ["n.jsonl", "n.jsonl.gz", "n.jsonl.xz"])
def test_plain_and_compressed_files_read_the_same(write_lines: Write, fakes: Any, name: str) -> None:
    read = nbest(write_lines(name, [fakes.utterance("u1"), fakes.utterance("u2")]))
    assert [(line.line, line.utterance_id) for line in read] == [(1, "u1"), (2, "u2")]


def test_standard_input_is_read_for_a_hyphen(fakes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = json.dumps(fakes.utterance("u1")).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    assert [line.utterance_id for line in nbest("-")] == ["u1"]


def test_a_line_without_id_is_an_error_and_its_first_word_is_kept(write_lines: Write) -> None:
    assert fault(write_lines("n.jsonl", [{"hypotheses": [hypothesis_of("utt-1 hello")]}])) == ":1: id: missing"


def test_n_hypotheses_in_are_n_out(write_lines: Write, fakes: Any) -> None:
    (line,) = nbest(write_lines("n.jsonl", [fakes.utterance("u", "a b", "a b", "", "c")]))
    assert [h["text"] for h in line.utterance["hypotheses"]] == ["a b", "a b", "", "c"]


def test_ids_with_hyphens_survive(write_lines: Write, fakes: Any) -> None:
    ids = ["utt-1", "spk-a-utt-1-2", "-", "utt-1-"]
    assert [line.utterance_id for line in nbest(write_lines("n", map_ids(fakes, ids)))] == ids


def map_ids(fakes: Any, ids: list[str]) -> list[Any]:
    return [fakes.utterance(identifier) for identifier in ids]


@pytest.mark.parametrize("word", ["null", "NA", "nan", "None", "NaN", "true", "-inf", "1e5"])
def test_words_that_look_like_values_survive(write_lines: Write, fakes: Any, word: str) -> None:
    (line,) = nbest(write_lines("n.jsonl", [fakes.utterance(word, word, reference=word, speaker=word)]))
    utterance = line.utterance
    assert (utterance["id"], utterance["reference"], utterance["speaker"]) == (word, word, word)
    assert utterance["hypotheses"][0]["text"] == word


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=1, max_size=4))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_text_survives(tmp_path: Path, texts: list[str]) -> None:
    path = tmp_path / "n.jsonl"
    entry = {"id": "u", "hypotheses": [hypothesis_of(text) for text in texts]}
    for escape in (True, False):
        path.write_bytes(json.dumps(entry, ensure_ascii=escape).encode())
        assert [h["text"] for h in nbest(str(path))[0].utterance["hypotheses"]] == texts


def test_fields_that_are_not_ours_are_dropped(write_lines: Write) -> None:
    entry = {"id": "u", "duration_s": 8.5, "hypotheses": [hypothesis_of(confidence=1)], "reference": None}
    (line,) = nbest(write_lines("n.jsonl", [entry]))
    assert line.utterance == {"id": "u", "hypotheses": [{"text": "a", "acoustic_score": -1.0}]}


def test_blank_lines_are_skipped_but_counted(write_lines: Write, fakes: Any) -> None:
    entry = json.dumps(fakes.utterance("u")).encode()
    assert [line.line for line in nbest(write_lines("n.jsonl", b"\n  \r\n" + entry + b"\r\n\n"))] == [3]


def test_a_byte_order_mark_at_the_beginning_is_skipped(write_lines: Write, fakes: Any) -> None:
    entry = json.dumps(fakes.utterance("u")).encode()
    assert nbest(write_lines("n.jsonl", b"\xef\xbb\xbf" + entry))[0].utterance_id == "u"


def test_line_separators_of_unicode_do_not_end_a_line(write_lines: Write) -> None:
    text = "a\u2028b\u0085c\x1cd"
    raw = json.dumps({"id": "u", "hypotheses": [hypothesis_of(text)]}, ensure_ascii=False).encode()
    raw = raw.replace(b"\x1c", rb"\u001c")
    assert nbest(write_lines("n.jsonl", raw))[0].utterance["hypotheses"][0]["text"] == text


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ([], "must hold an object, not an array"),
        ({"id": 7, "hypotheses": [hypothesis_of()]}, "id: must be a string, not a number"),
        ({"id": "", "hypotheses": [hypothesis_of()]}, "id: must not be empty"),
        ({"id": "u"}, "hypotheses: missing"),
        ({"id": "u", "hypotheses": {}}, "hypotheses: must be an array, not an object"),
        ({"id": "u", "hypotheses": []}, "hypotheses: must hold at least one entry; the list is empty"),
        ({"id": "u", "hypotheses": ["a"]}, "hypotheses[0]: must be an object, not a string"),
        ({"id": "u", "hypotheses": [{"acoustic_score": 1}]}, "hypotheses[0].text: missing"),
        ({"id": "u", "hypotheses": [hypothesis_of(None)]}, "hypotheses[0].text: must be a string, not null"),
        ({"id": "u", "hypotheses": [{"text": "a"}]}, "hypotheses[0].acoustic_score: missing"),
        (
            {"id": "u", "hypotheses": [hypothesis_of(acoustic=True)]},
            "hypotheses[0].acoustic_score: must be a number, not a boolean",
        ),
        (
            {"id": "u", "hypotheses": [hypothesis_of(acoustic="-1.0")]},
            "hypotheses[0].acoustic_score: must be a number, not a string",
        ),
        (
            {"id": "u", "hypotheses": [hypothesis_of(), hypothesis_of(acoustic=10**400)]},
            "hypotheses[1].acoustic_score: is too large; scores must be finite",
        ),
        (
            {"id": "u", "hypotheses": [hypothesis_of(lm_score=-1), hypothesis_of()]},
            "hypotheses[1].lm_score: missing, though other hypotheses have one",
        ),
        ({"id": "u", "hypotheses": [hypothesis_of("a\0b")]}, "hypotheses[0].text: holds a NUL character"),
        (
            {"id": "u", "hypotheses": [hypothesis_of("a\ud800")]},
            "hypotheses[0].text: holds a lone surrogate, which is no character",
        ),
        (
            {"id": "u", "hypotheses": [hypothesis_of()], "reference": 1},
            "reference: must be a string, not a number",
        ),
        (
            {"id": "\udc00", "hypotheses": [hypothesis_of()]},
            "id: holds a lone surrogate, which is no character",
        ),
    ],
)
def test_a_wrong_field_is_named_with_its_line(write_lines: Write, fakes: Any, entry: Any, message: str) -> None:
    assert fault(write_lines("n.jsonl", [fakes.utterance("first"), entry])) == f":2: {message}"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"id": "u", ', "not JSON"),
        (b'{"id": "u"} {}', "not JSON: Extra data"),
        (b'{"id": "u\0"}', "not JSON: Invalid control character"),
        (b'{"id": "\xff"}', "not UTF-8 (byte 9 of the line)"),
        ("{}".encode("utf-16"), "not UTF-8"),
        (b'{"score": NaN}', "NaN is no JSON number"),
        (b'{"score": -Infinity}', "-Infinity is no JSON number"),
        (b'{"id": "a", "id": "b"}', "the key 'id' is given twice"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"score": ' + b"1" * 5000 + b"}", "a number has 5000 digits"),
    ],
)
def test_a_line_that_is_no_strict_json_is_named(write_lines: Write, raw: bytes, message: str) -> None:
    assert fault(write_lines("n.jsonl", b"\n" + raw)).startswith(f":2: {message}")


def test_a_number_beyond_floating_point_is_refused(write_lines: Write) -> None:
    raw = b'{"id": "u", "hypotheses": [{"text": "a", "acoustic_score": 1e400}]}'
    assert fault(write_lines("n.jsonl", raw)).startswith(":1: hypotheses[0].acoustic_score: is too large")


def test_an_id_given_twice_is_named_with_both_lines(write_lines: Write, fakes: Any) -> None:
    path = write_lines("n.jsonl", map_ids(fakes, ["a", "b", "a"]))
    assert fault(path) == ":3: id: 'a' stands in line 1 already"


@pytest.mark.parametrize("name", ["n.jsonl.gz", "n.jsonl.xz"])
def test_a_compressed_file_that_is_cut_short_is_an_error(write_lines: Write, fakes: Any, name: str) -> None:
    path = write_lines(name, [fakes.utterance(f"u{i}") for i in range(5)])
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[: len(whole) // 2])
    assert "broken or cut short" in fault(path)


@pytest.mark.parametrize("name", ["n.jsonl.gz", "n.jsonl.xz"])
def test_a_file_that_is_not_compressed_as_its_name_says_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b'{"id": "u"}\n')
    assert "broken or cut short" in fault(str(tmp_path / name))


def test_a_missing_file_and_a_folder_are_errors(tmp_path: Path) -> None:
    assert fault(str(tmp_path / "none")) == ": cannot be read: No such file or directory"
    assert fault(str(tmp_path)) == ": cannot be read: Is a directory"


def test_an_endless_line_is_refused_before_it_fills_the_memory(
    write_lines: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 2**20)
    assert fault(write_lines("n.jsonl", b" " * (2**20 + 1))) == ":1: the line is longer than 1 MiB"


def test_a_file_is_read_as_it_is_asked_for(write_lines: Write, fakes: Any) -> None:
    with JsonLines(write_lines("n.jsonl", [fakes.utterance("good"), {"id": "bad"}])) as lines:
        assert next(read_nbest(lines)).utterance_id == "good"


def test_position_reaches_the_size_of_the_file(write_lines: Write, fakes: Any) -> None:
    with JsonLines(write_lines("n.jsonl.gz", [fakes.utterance("u")])) as lines:
        list(lines)
        assert lines.position == lines.total_bytes


def test_a_result_keeps_its_ranking_and_its_texts_by_input_index(write_lines: Write) -> None:
    ranking = [{"index": 1, "scored_text": "second"}, {"index": 0, "scored_text": "first"}]
    made_with = {"bundle": "x", "weights": {"lm_scale": 1.0}, "state": "reset"}
    entry = {"id": "u", "ranking": ranking, "scored_reference": "first", **made_with}
    with JsonLines(write_lines("r.jsonl", [entry])) as lines:
        (line,) = read_results(lines)
    assert line == ResultLine(1, "u", (1, 0), ("first", "second"), "first", made_with, frozenset(ranking[0]))


@pytest.mark.parametrize(
    ("ranking", "message"),
    [
        ([], "ranking: must hold at least one entry"),
        ([{"index": True}], "ranking[0].index: must be a whole number"),
        ([3], "ranking[0].index: must be a whole number"),
        ([{"index": 0}, {"index": 0}], "ranking: the indices must be 0 to 1, each once"),
        ([{"index": 0, "scored_text": 3}], "ranking[0].scored_text: must be a string, not a number"),
    ],
)
def test_a_result_that_is_none_is_named(write_lines: Write, ranking: Any, message: str) -> None:
    path = write_lines("r.jsonl", [{"id": "u", "ranking": ranking}])
    with JsonLines(path) as lines, pytest.raises(InputFileError) as caught:
        list(read_results(lines))
    assert str(caught.value).startswith(f"{path}:1: {message}")


def test_the_first_line_says_what_a_file_holds(write_lines: Write, fakes: Any) -> None:
    path = write_lines("m.jsonl", [fakes.utterance("u"), {"id": "v", "ranking": [{"index": 0}]}])
    with JsonLines(path) as lines, pytest.raises(InputFileError) as caught:
        list(read_either(lines))
    assert str(caught.value) == f"{path}:2: hypotheses: missing"


@pytest.mark.parametrize(("lines", "message"), [([], "holds no utterance"), ([{"id": "u"}], "neither a result")])
def test_a_file_of_neither_kind_is_an_error(write_lines: Write, lines: list[Any], message: str) -> None:
    with JsonLines(write_lines("m.jsonl", lines)) as opened, pytest.raises(InputFileError, match=message):
        list(read_either(opened))
