import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clients.cli import main

Write = Callable[..., str]


def result(
    identifier: str, reference: str, texts: list[str], order: list[int], speaker: str | None = None
) -> dict[str, Any]:
    ranking = [{"index": i, "total": -1.0, "posterior": 0.5, "scored_text": texts[i]} for i in order]
    entry: dict[str, Any] = {"id": identifier, "ranking": ranking, "scored_reference": reference}
    if speaker is not None:
        entry["speaker"] = speaker
    return entry | {"bundle": "b", "weights": {}, "state": "reset"}


# utt-1, 4 words:  first pass "a b x" 2 errors, rescored "a b c" 1, oracle "a b c d" 0, third in the list
# utt-2, 2 words:  first pass "E, f" 0, rescored "e f g" 2 as they stand, 1 in lower case without punctuation
ROWS = [
    result("s-utt-1", "a b c d", ["a b x", "a b c", "a b c d"], [1, 0, 2], "s"),
    result("t-utt-2", "E, f", ["E, f", "e f g"], [1, 0], "t"),
]


def run(*arguments: str) -> int:
    return main(["evaluate", *arguments, "--resamples", "200"])


def report(tmp_path: Path, *arguments: str) -> Any:
    assert run(*arguments, "--json", str(tmp_path / "report.json")) == 0
    return json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))


def test_every_rate_is_reported_with_its_interval(write_lines: Write, tmp_path: Path) -> None:
    first, *_ = report(tmp_path, write_lines("r.jsonl", ROWS))["systems"]
    # 6 words, 1 substituted, 1 deleted: 4 hits in 5 hypothesis words. Characters: "a b c d" to "a b x" 1 + 2 of 7 + 4
    expected = {"wer": 100 * 2 / 6, "cer": 100 * 3 / 11, "ser": 50.0, "mer": 100 * 2 / 6, "wil": 100 * (1 - 16 / 30)}
    assert {name: first[f"{name}_percent"] for name in expected} == pytest.approx(expected)
    for name in expected:
        low, high = first[f"{name}_interval_percent"]
        assert low <= first[f"{name}_percent"] <= high


def test_the_oracle_by_depth_and_the_rank_of_the_best_are_reported(write_lines: Write, tmp_path: Path) -> None:
    first, ranked = report(tmp_path, write_lines("r.jsonl", ROWS))["oracle_by_depth"]
    assert (first["ranking"], ranked["ranking"]) == ("first pass", "r")
    assert [(p["depth"], p["errors"]) for p in first["curve"]] == [(1, 2), (2, 1), (3, 0)]
    assert [(p["depth"], p["errors"]) for p in ranked["curve"]] == [(1, 3), (2, 1), (3, 0)]
    # best at ranks 3 and 1; ranked by r at 3 and 2
    assert (first["rank_of_best"]["mean"], ranked["rank_of_best"]["mean"]) == (2.0, 2.5)
    assert first["rank_of_best"]["classes"] == [
        {"ranks": "1", "utterances": 1},
        {"ranks": "2", "utterances": 0},
        {"ranks": "3", "utterances": 1},
    ]


def test_what_rescoring_did_is_reported(write_lines: Write, tmp_path: Path) -> None:
    _, rescored, _ = report(tmp_path, write_lines("r.jsonl", ROWS))["systems"]
    assert rescored["effect"] == {
        "utterances_helped": 1,
        "utterances_hurt": 1,
        "utterances_with_as_many_errors": 0,
        "utterances_unchanged": 0,
        "errors_removed": 1,
        "errors_added": 2,
        "oracle_gap_closed_percent": -50.0,
    }


def test_groups_are_reported_and_printed_when_asked_for(
    write_lines: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_lines("r.jsonl", ROWS)
    groups = report(tmp_path, path, "--by", "speaker", "--by", "length", "--by", "session")["breakdowns"]["speaker"]
    assert [(g["name"], [s["errors"] for s in g["systems"]]) for g in groups] == [("s", [2, 1, 0]), ("t", [0, 2, 0])]
    out = capsys.readouterr().out
    assert "WER % by speaker" in out
    assert "WER % by length" in out
    assert "no utterance says its session" in out


def test_speakers_of_an_nbest_file_are_taken_too(write_lines: Write, tmp_path: Path) -> None:
    hypotheses = [{"text": "a", "acoustic_score": 0}]
    path = write_lines(
        "n.jsonl", [{"id": "u", "reference": "a", "hypotheses": hypotheses, "speaker": "s", "session_id": "m"}]
    )
    breakdowns = report(tmp_path, path)["breakdowns"]
    assert [breakdowns[by][0]["name"] for by in ("speaker", "session")] == ["s", "m"]


def test_a_group_without_a_reference_word_has_no_rate(write_lines: Write, tmp_path: Path) -> None:
    path = write_lines("r.jsonl", [*ROWS, result("v-utt-3", "", ["a"], [0], "v")])
    (group,) = [g for g in report(tmp_path, path, "--by", "speaker")["breakdowns"]["speaker"] if g["name"] == "v"]
    assert [(s["wer_percent"], s["errors"]) for s in group["systems"]] == [(None, 1)] * 3


def test_frequent_errors_are_reported_and_printed_when_asked_for(
    write_lines: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *_ = report(tmp_path, write_lines("r.jsonl", ROWS), "--confusions", "1")["systems"]
    found = first["confusions"]
    assert found["insertions"] == []
    assert found["short_by_at_most"] == 0
    # "a b c d" against "a b x": one of c and d is taken for x, the other is deleted
    (substituted,), (deleted,) = found["substitutions"], found["deletions"]
    assert {substituted["reference"], deleted["reference"]} == {"c", "d"}
    assert (substituted["hypothesis"], substituted["count"], deleted["count"]) == ("x", 1, 1)
    assert "most frequent errors of r" in capsys.readouterr().out


def test_the_worst_are_printed_aligned(write_lines: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, rescored, _ = report(tmp_path, write_lines("r.jsonl", ROWS), "--worst", "1")["systems"]
    (worst,) = rescored["worst"]
    assert (worst["id"], worst["errors"]) == ("t-utt-2", 2)
    assert worst["alignments"]["oracle"] == {"operations": "CC", "reference": ["E,", "f"], "hypothesis": ["E,", "f"]}
    out = capsys.readouterr().out
    assert "worst 1 of r: t-utt-2, speaker t, 2 errors" in out
    assert "REF:" in out


def test_a_chosen_normalisation_is_told_with_the_rates_before_and_after(
    write_lines: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = report(tmp_path, write_lines("r.jsonl", ROWS), "--lowercase", "--strip-punctuation")
    _, rescored, _ = document["systems"]
    assert rescored["errors"] == 1 + 1
    assert rescored["before_normalisation"] == {"wer_percent": 50.0, "errors": 3, "reference_words": 6}
    assert document["normalisation"]["lowercase"]
    assert document["normalisation"]["strip_punctuation"]
    out = capsys.readouterr().out
    line = "WER of r before lower case, punctuation stripped: 50.00 (3 errors, 6 words); after: 33.33"
    assert line in out
    assert "WER of first pass before" not in out  # it changes nothing there
    assert "words: the bundle's normaliser, then lower case, then punctuation stripped" in out


def test_words_can_be_dropped_and_unicode_forms_made_one(write_lines: Write, tmp_path: Path) -> None:
    path = write_lines("r.jsonl", [result("u", "uh caf\u00e9", ["cafe\u0301"], [0])])
    assert report(tmp_path, path, "--drop-word", "uh", "--unicode-form", "nfc")["systems"][0]["errors"] == 0


def test_the_matched_pairs_test_is_reported_with_its_correction(
    write_lines: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # against the first pass, utterance by utterance, a is better by 1, 1, 0, and b by 1, 0, 0 errors
    lists = [(["a x"], ["a b"], ["a b"]), (["a x"], ["a b"], ["a x"]), (["a x"], ["a y"], ["a y"])]
    for name, place in (("a", 1), ("b", 2)):
        rows = []
        for number, row in enumerate(lists):
            texts = [side[0] for side in row]
            rows.append(result(f"u{number}", "a b", texts, [place, *(i for i in range(3) if i != place)]))
        write_lines(f"{name}.jsonl", rows)
    document = report(tmp_path, str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"))
    tests = [system["against_first_pass"]["matched_pairs"] for system in document["systems"][1:-1]]
    # -1, -1, 0: mean -2/3, s^2 = 1/3, z = -2/3 / sqrt(1/9); -1, 0, 0: z = -1/3 / sqrt(1/9)
    assert [test["z"] for test in tests] == pytest.approx([-2.0, -1.0])
    # p from a table of the normal distribution; the comparison of b with a, +1 in one of three, has that of z = 1, too
    assert [test["p_value"] for test in tests] == pytest.approx([0.0455, 0.3173], abs=5e-5)
    assert [test["p_value_corrected"] for test in tests] == pytest.approx([0.1365, 0.6346], abs=2e-4)
    assert document["correction"] == {"method": "Holm", "comparisons": 3}
    out = capsys.readouterr().out
    assert "Holm's correction for 3 comparisons" in out
    assert "matched pairs: segments parted by 2 correct words | corrected: Holm, 3 comparisons" in out


def test_alignments_are_exported_for_kaldi_and_sclite(write_lines: Write, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert run(write_lines("r.jsonl", ROWS), "--export", str(folder)) == 0
    systems = ("first-pass", "r", "oracle")
    kinds = ("per_utt", "pra", "trn")
    assert {p.name for p in folder.iterdir()} == {f"{s}.{k}" for s in systems for k in kinds} | {"reference.trn"}
    assert (folder / "reference.trn").read_text(encoding="utf-8") == "a b c d (s-utt-1)\nE, f (t-utt-2)\n"
    assert (folder / "r.trn").read_text(encoding="utf-8") == "a b c (s-utt-1)\ne f g (t-utt-2)\n"
    assert "s-utt-1 #csid 3 0 0 1" in (folder / "r.per_utt").read_text(encoding="utf-8")
    assert "System name:   r\n\nid: (s-utt-1)\nScores: (#C #S #D #I) 3 0 1 0" in (folder / "r.pra").read_text()


def test_formats_can_be_chosen(write_lines: Write, tmp_path: Path) -> None:
    assert run(write_lines("r.jsonl", ROWS), "--export", str(tmp_path / "x"), "--export-format", "per_utt") == 0
    assert {p.suffix for p in (tmp_path / "x").iterdir()} == {".per_utt"}


def test_of_an_export_that_fails_nothing_is_left(
    write_lines: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_lines("r.jsonl", [*ROWS, result("a (b)", "x", ["x"], [0])])
    assert run(path, "--export", str(tmp_path / "x")) == 1
    assert "utterance 'a (b)': white space" in capsys.readouterr().err
    assert list((tmp_path / "x").iterdir()) == []


def test_two_utterances_that_sclite_could_not_tell_apart_are_refused(
    write_lines: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_lines("r.jsonl", [result("s-u", "x", ["x"], [0]), result("S-U", "x", ["x"], [0])])
    assert run(path, "--export", str(tmp_path / "x")) == 1
    assert "utterance 'S-U': another one has the same sclite id, 'S-U'" in capsys.readouterr().err


def test_systems_get_files_of_their_own_whatever_they_are_called(write_lines: Write, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    paths = [write_lines(f"{folder}/reference.jsonl", ROWS) for folder in ("one", "two")]
    assert run(*paths, "--export", str(tmp_path / "x"), "--export-format", "trn") == 0
    assert len(list((tmp_path / "x").iterdir())) == 5


def test_an_export_that_cannot_be_written_is_named(write_lines: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines("r.jsonl", ROWS)
    assert run(path, "--export", path) == 1
    assert f"{path}: cannot be made a folder" in capsys.readouterr().err


def test_a_format_without_a_folder_is_refused(write_lines: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write_lines("r.jsonl", ROWS), "--export-format", "pra") == 2
    assert "--export does not say where" in capsys.readouterr().err


# Three lists: the first pass right, wrong, wrong; the other hypothesis wrong, right, right.
THREE = [("a", ["a", "x"]), ("b", ["x", "b"]), ("c", ["x", "c"])]


def choosing(places: list[int], **extra: Any) -> list[Any]:
    rows = [
        result(f"u{number}", reference, texts, [place, 1 - place])
        for number, ((reference, texts), place) in enumerate(zip(THREE, places, strict=True))
    ]
    return [{**row, **extra} for row in rows]


@pytest.mark.parametrize(
    ("places", "note"),
    [
        ([1, 0, 0], "r is worse than the first pass, by 33.33 points of WER"),
        ([0, 0, 0], "r makes as many errors as the first pass"),
        ([1, 1, 1], "r is better than the first pass, but the interval of the difference holds 0"),
    ],
)
def test_rescoring_that_shows_no_gain_is_noted(
    write_lines: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], places: list[int], note: str
) -> None:
    assert note in report(tmp_path, write_lines("r.jsonl", choosing(places)))["findings"]
    assert f"note: {note}" in capsys.readouterr().out


def test_a_negative_scale_of_the_language_model_is_noted(write_lines: Write, tmp_path: Path) -> None:
    path = write_lines("r.jsonl", choosing([0, 1, 1], weights={"lm_scale": -0.5}))
    note = "r was made with a negative lm_scale, -0.5: its language model does not help"
    assert note in report(tmp_path, path)["findings"]


def test_a_clear_gain_on_many_utterances_needs_no_note(write_lines: Write, tmp_path: Path) -> None:
    rows = [result(f"u{number}", "a", ["x", "a"], [1, 0]) for number in range(60)]
    rows += [result(f"v{number}", "a", ["a", "x"], [1, 0]) for number in range(5)]
    assert report(tmp_path, write_lines("r.jsonl", rows))["findings"] == []


def test_hypotheses_repeated_change_no_count(write_lines: Write, tmp_path: Path) -> None:
    once = report(tmp_path, write_lines("r.jsonl", ROWS))["systems"]
    longer = []
    for row in ROWS:
        ranking = row["ranking"]
        N = len(ranking)
        longer.append({**row, "ranking": ranking + [{**entry, "index": entry["index"] + N} for entry in ranking]})
    assert report(tmp_path, write_lines("r.jsonl", longer))["systems"] == once
