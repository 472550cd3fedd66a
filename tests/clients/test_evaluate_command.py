import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clients.cli import main

Write = Callable[..., str]


def ranked(texts: list[str], order: list[int]) -> list[Any]:
    return [{"index": i, "total": -1.0, "posterior": 0.5, "scored_text": texts[i]} for i in order]


def result(identifier: str, reference: str | None, texts: list[str], order: list[int], **extra: Any) -> dict[str, Any]:
    entry = {"id": identifier, "ranking": ranked(texts, order), "best_text": texts[order[0]]}
    if reference is not None:
        entry |= {"reference": reference, "scored_reference": reference}
    return entry | {"bundle": "b" * 64, "weights": {"lm_scale": 9.5}, "state": "reset"} | extra


# utt-1, 4 words:  first pass "a b x" deletes d and substitutes c: 2;  rescored "a b c": 1;  oracle "a b c d": 0
# utt-2, 5 words:  first pass "e f g h i": 0;  rescored "e f g h i j k": 2;  oracle: 0
# utt-3, 0 words:  first pass "l": 1;  rescored "": 0;  oracle "": 0
HAND_MADE = [
    result("utt-1", "a b c d", ["a b x", "a b c", "a b c d"], [1, 0, 2]),
    result("utt-2", "e f g h i", ["e f g h i", "e f g h i j k"], [1, 0]),
    result("utt-3", "", ["l", ""], [1, 0]),
]
FIRST_PASS = ["%WER 33.33 [ 3 / 9, 1 ins, 1 del, 1 sub ]", "%SER 66.67 [ 2 / 3 ]"]
RESCORED = ["%WER 33.33 [ 3 / 9, 2 ins, 1 del, 0 sub ]", "%SER 66.67 [ 2 / 3 ]"]
ORACLE = ["%WER 0.00 [ 0 / 9, 0 ins, 0 del, 0 sub ]", "%SER 0.00 [ 0 / 3 ]"]


def evaluate(*arguments: str) -> int:
    return main(["evaluate", *arguments, "--resamples", "200"])


def report(tmp_path: Path, *arguments: str) -> Any:
    assert evaluate(*arguments, "--json", str(tmp_path / "report.json")) == 0
    return json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert evaluate(*arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("nbest: error: ")
    return line.removeprefix("nbest: error: ")


def as_nbest(entry: Any) -> Any:
    texts = {h["index"]: h["scored_text"] for h in entry["ranking"]}
    hypotheses = [{"text": texts[i], "acoustic_score": -1.0 - i} for i in range(len(texts))]
    return {"id": entry["id"], "hypotheses": hypotheses, "reference": entry.get("reference")}


def compact(entry: Any) -> Any:
    dropped = {"reference", "scored_reference"}
    ranking = [{k: h[k] for k in ("index", "total", "posterior")} for h in entry["ranking"]]
    return {**{k: v for k, v in entry.items() if k not in dropped}, "ranking": ranking}


def test_the_lines_that_kaldi_users_parse(write_lines: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(write_lines("kn5.jsonl", HAND_MADE)) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("%")]
    assert lines == [
        f"{line} {name}"
        for name, both in (("first pass", FIRST_PASS), ("kn5", RESCORED), ("oracle", ORACLE))
        for line in both
    ]


def test_first_pass_rescored_and_oracle_stand_together(write_lines: Write, tmp_path: Path) -> None:
    systems = report(tmp_path, write_lines("kn5.jsonl.gz", HAND_MADE))["systems"]
    assert [(s["name"], s["errors"]) for s in systems] == [("first pass", 3), ("kn5", 3), ("oracle", 0)]


def test_the_words_of_references_and_of_each_system_are_counted(write_lines: Write, tmp_path: Path) -> None:
    systems = report(tmp_path, write_lines("kn5.jsonl", HAND_MADE))["systems"]
    # 3 + 5 + 1, 3 + 7 + 0, 4 + 5 + 0 words of hypotheses
    assert [(s["reference_words"], s["hypothesis_words"]) for s in systems] == [(9, 9), (9, 10), (9, 9)]


def test_a_plain_nbest_file_gives_first_pass_and_oracle(write_lines: Write, tmp_path: Path) -> None:
    systems = report(tmp_path, write_lines("n.jsonl.xz", list(map(as_nbest, HAND_MADE))))["systems"]
    assert [system["kaldi"] for system in systems] == [FIRST_PASS, ORACLE]


def test_texts_of_a_plain_nbest_file_are_split_at_any_white_space(write_lines: Write, tmp_path: Path) -> None:
    entry = {"id": "u", "reference": "a b c", "hypotheses": [{"text": " a\tb\u3000c ", "acoustic_score": 0}]}
    assert report(tmp_path, write_lines("n.jsonl", [entry]))["systems"][0]["errors"] == 0


def test_scored_texts_are_split_at_spaces_alone(write_lines: Write, tmp_path: Path) -> None:
    entry = result("u", "a\u00a0b c", ["a\u00a0b c"], [0])
    assert report(tmp_path, write_lines("r.jsonl", [entry]))["systems"][0]["reference_words"] == 2


def test_the_first_pass_is_input_index_0_wherever_it_is_ranked(write_lines: Write, tmp_path: Path) -> None:
    entry = result("u", "right", ["right", "wrong"], [1, 0])
    first, rescored, _ = report(tmp_path, write_lines("r.jsonl", [entry]))["systems"]
    assert (first["errors"], rescored["errors"]) == (0, 1)


@pytest.mark.parametrize("word", ["null", "NA", "nan", "None"])
def test_words_that_look_like_values_survive(write_lines: Write, tmp_path: Path, word: str) -> None:
    entry = result(word, word, ["x", word], [1, 0])
    systems = report(tmp_path, write_lines("r.jsonl", [entry]))["systems"]
    assert [s["errors"] for s in systems] == [1, 0, 0]


def test_several_results_are_compared_with_the_first_pass_and_with_each_other(
    write_lines: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kn5 = write_lines("kn5.jsonl", [result("u", "a b", ["x y", "a y", "a b"], [1, 0, 2])])
    rnn = write_lines("rnn.jsonl", [result("u", "a b", ["x y", "a y", "a b"], [2, 0, 1])])
    document = report(tmp_path, kn5, rnn)
    names = [system["name"] for system in document["systems"]]
    points = [s.get("against_first_pass", {}).get("points_percent") for s in document["systems"]]
    assert (names, points) == (["first pass", "kn5", "rnn", "oracle"], [None, -50.0, -100.0, -100.0])
    (comparison,) = document["comparisons"]
    assert comparison == {
        "system": "rnn",
        "against": "kn5",
        "points_percent": -50.0,
        "interval_percent": [-50.0, -50.0],
        "p_value": pytest.approx(2 / 201),
        "p_value_corrected": pytest.approx(3 * 2 / 201),  # three comparisons, all alike
        # One segment has no spread, so the matched-pairs test is not defined.
        "matched_pairs": {
            "segments": 1,
            "mean_errors": -1.0,
            "z": None,
            "p_value": None,
            "p_value_corrected": None,
        },
    }
    assert "rnn less kn5" in capsys.readouterr().out


def test_pairs_meet_by_id_whatever_their_order(write_lines: Write, tmp_path: Path) -> None:
    forward = write_lines("a.jsonl", HAND_MADE)
    backward = write_lines("b.jsonl", HAND_MADE[::-1])
    _, a, b, _ = report(tmp_path, forward, backward)["systems"]
    assert {**a, "name": ""} == {**b, "name": ""}


def test_differences_come_with_interval_and_p_value_that_a_seed_repeats(write_lines: Write, tmp_path: Path) -> None:
    path = write_lines("r.jsonl", HAND_MADE)
    first = report(tmp_path, path, "--seed", "3")
    assert first == report(tmp_path, path, "--seed", "3")
    difference = first["systems"][1]["against_first_pass"]
    low, high = difference["interval_percent"]
    assert low <= difference["points_percent"] <= high
    assert 0 < difference["p_value"] <= 1


def test_a_missing_partner_is_an_error_that_names_it(write_lines: Write, capsys: pytest.CaptureFixture[str]) -> None:
    whole, part = write_lines("a.jsonl", HAND_MADE), write_lines("b.jsonl", HAND_MADE[:1])
    message = f"{part}: lacks utterances of {whole}, or their references: 'utt-2', 'utt-3'"
    assert refused(capsys, whole, part) == message
    assert refused(capsys, part, whole) == message


def test_a_missing_reference_is_an_error_that_names_the_utterance(
    write_lines: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_lines("r.jsonl", [*HAND_MADE, result("utt-4", None, ["a"], [0])])
    assert refused(capsys, path).startswith(f"{path}: no reference for 'utt-4'; --skip-missing-reference")


def test_many_missing_references_are_counted(write_lines: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines("r.jsonl", [result(f"u{i}", None, ["a"], [0]) for i in range(15)])
    assert "'u9' and 5 more;" in refused(capsys, path)


def test_utterances_without_a_reference_are_left_out_when_asked_and_counted(
    write_lines: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_lines("r.jsonl", [*HAND_MADE, result("utt-4", None, ["a"], [0])])
    document = report(tmp_path, path, "--skip-missing-reference")
    assert (document["utterances"], document["skipped_without_reference"]) == (3, 1)
    assert "left out for want of a reference: 1 utterances" in capsys.readouterr().out


def test_other_lists_under_the_same_ids_are_noticed(write_lines: Write, capsys: pytest.CaptureFixture[str]) -> None:
    a = write_lines("a.jsonl", [result("u", "a", ["a", "b"], [0, 1])])
    b = write_lines("b.jsonl", [result("u", "a", ["a", "c"], [0, 1])])
    assert "hold other words for 'u'" in refused(capsys, a, b)


def test_lines_made_with_other_weights_are_noticed(write_lines: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines("r.jsonl", [HAND_MADE[0], {**HAND_MADE[1], "weights": {"lm_scale": 1.0}}])
    assert refused(capsys, path) == f"{path}:2: weights: differs from the lines before; a file is one system"


def test_compact_results_ask_for_the_nbest_file(write_lines: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines("r.jsonl", list(map(compact, HAND_MADE)))
    assert refused(capsys, path).startswith(f"{path}:1: compact results hold no texts")


def test_compact_results_with_the_nbest_file_count_as_full_ones_do(write_lines: Write, tmp_path: Path) -> None:
    nbest = write_lines("n.jsonl", list(map(as_nbest, HAND_MADE)))
    full = report(tmp_path, write_lines("kn5.jsonl", HAND_MADE))["systems"]
    short = write_lines("kn5.jsonl", list(map(compact, HAND_MADE))[::-1])
    assert report(tmp_path, short, "--nbest", nbest)["systems"] == full


def test_the_nbest_file_must_hold_the_same_utterances(write_lines: Write, capsys: pytest.CaptureFixture[str]) -> None:
    entries = list(map(as_nbest, HAND_MADE))
    results = write_lines("r.jsonl", HAND_MADE[:2])
    missing = refused(capsys, results, "--nbest", write_lines("n.jsonl", entries))
    assert missing.startswith(f"{results}: no result for utterance 'utt-3'")
    fewer = write_lines("n.jsonl", entries[:1])
    assert refused(capsys, results, "--nbest", fewer) == f"{fewer}: lacks utterances of {results}: 'utt-2'"
    entries[0]["hypotheses"].pop()
    other = refused(capsys, results, "--nbest", write_lines("n.jsonl", entries))
    assert "'utt-1' has 3 hypotheses there, but 2 in" in other


def test_references_without_a_word_have_no_rate(write_lines: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines("r.jsonl", [result("u", "", ["a"], [0])])
    assert "the references hold no word" in refused(capsys, path)


def test_the_signature_says_what_is_needed_to_repeat_a_figure(
    write_lines: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_lines("kn5.jsonl", HAND_MADE)
    assert evaluate(path, "--set-name", "dev", "--seed", "5") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("signature of kn5")]
    for part in (
        "jiwer: 4",
        "set: dev | utterances: 3 | N: 3",
        f"bundle: {'b' * 64}",
        'weights: {"lm_scale":9.5}',
        "state: reset",
        "the bundle's normaliser",
        "200 resamples of utterances, seed 5",
    ):
        assert part in line


def test_json_on_standard_output_stands_alone(write_lines: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(write_lines("r.jsonl", HAND_MADE), "--json", "-") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["utterances"] == 3
    assert "%WER 33.33" in captured.err


def test_a_json_file_that_cannot_be_written_is_named(
    write_lines: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "none" / "report.json"
    assert "cannot be written: No such file" in refused(
        capsys, write_lines("r.jsonl", HAND_MADE), "--json", str(target)
    )


def test_a_file_named_twice_is_refused(write_lines: Write) -> None:
    path = write_lines("r.jsonl", HAND_MADE)
    assert evaluate(path, path) == 2


def test_results_of_rescore_are_evaluated(write_lines: Write, fakes: Any, service: Any, tmp_path: Path) -> None:
    source = write_lines("n.jsonl", [fakes.utterance("u", "a b c", "c", reference="C")])
    out = tmp_path / "out.jsonl"
    assert main(["rescore", source, "--url", service.url, "-o", str(out), "-q"]) == 0
    assert [s["errors"] for s in report(tmp_path, str(out))["systems"]] == [2, 0, 0]


@pytest.mark.parametrize("with_nbest", [False, True])
def test_a_consensus_is_the_answer_though_no_hypothesis_of_the_list(
    write_lines: Write, tmp_path: Path, with_nbest: bool
) -> None:
    # utt-1, 4 words: "a b d" deletes c: 1.  utt-2, 5 words: "e f x h i" substitutes g: 1.  utt-3: "": 0.
    answers = ("a b d", "e f x h i", "")
    decided = [
        entry | {"decision": "consensus", "consensus": {"text": text}}
        for entry, text in zip(HAND_MADE, answers, strict=True)
    ]
    if with_nbest:
        nbest = write_lines("set.jsonl", [as_nbest(entry) for entry in HAND_MADE])
        found = report(tmp_path, write_lines("c.jsonl", list(map(compact, decided))), "--nbest", nbest)
    else:
        found = report(tmp_path, write_lines("c.jsonl", decided))
    assert [system["kaldi"][0] for system in found["systems"]] == [
        FIRST_PASS[0],
        "%WER 22.22 [ 2 / 9, 0 ins, 1 del, 1 sub ]",
        ORACLE[0],
    ]
    assert "decision: consensus" in found["signatures"]["c"]


def test_a_consensus_without_a_text_is_refused_by_name(write_lines: Write, capsys: pytest.CaptureFixture[str]) -> None:
    broken = HAND_MADE[0] | {"decision": "consensus", "consensus": {"words": ["a"]}}
    assert "c.jsonl:1: consensus: must be an object with a text" in refused(capsys, write_lines("c.jsonl", [broken]))
