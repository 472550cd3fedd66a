import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clients import targets
from clients.cli import main

Write = Callable[..., str]


def test_results_are_the_answers_in_input_order(write_lines: Write, fakes: Any, service: Any, out: Path) -> None:
    lists = [fakes.utterance(f"u{i}", "a b", "c", reference="A b") for i in range(10)]
    assert fakes.rescore(write_lines("n.jsonl.gz", lists), service.url, out, "--batch-size", "3") == 0
    answer = fakes.answer({"utterances": lists})
    made_with = {name: answer[name] for name in ("bundle", "weights", "state")}
    assert fakes.results(out) == [{**result, **made_with} for result in answer["results"]]


def test_order_is_kept_when_answers_overtake_each_other(
    write_lines: Write, fakes: Any, service: Any, out: Path
) -> None:
    later = threading.Event()

    def late(handler: Any, request: Any) -> None:
        later.wait(5)
        fakes.send_answer(handler, request)

    def early(handler: Any, request: Any) -> None:
        fakes.send_answer(handler, request)
        later.set()

    service.script = [late, early]
    assert fakes.rescore(write_lines("n.jsonl", fakes.many(4)), service.url, out, "--batch-size", "2") == 0
    assert fakes.ids(out) == [f"utt-{i:03}" for i in range(4)]


def test_the_summary_counts_utterances_and_hypothesis_words(
    write_lines: Write, fakes: Any, service: Any, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_lines("n.jsonl", [fakes.utterance("u", "a b c", "", "d"), fakes.utterance("v", "e")])
    assert fakes.rescore(source, service.url, out) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("nbest: 2 utterances, 5 hypothesis words in ")
    assert captured.err.count("\n") == 1


def test_quiet_says_nothing(
    write_lines: Write, fakes: Any, service: Any, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fakes.rescore(write_lines("n.jsonl", fakes.many(1)), service.url, out, "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_standard_output_holds_the_results_alone(
    write_lines: Write, fakes: Any, service: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_lines("n.jsonl", fakes.many(3))
    assert main(["rescore", source, "--url", service.url, "--batch-size", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["utt-000", "utt-001", "utt-002"]


def test_a_file_of_no_utterance_gives_a_file_of_no_result(
    fakes: Any, write_lines: Write, service: Any, out: Path
) -> None:
    assert fakes.rescore(write_lines("n.jsonl", b"\n"), service.url, out) == 0
    assert fakes.results(out) == []
    assert service.requests == []


def test_settings_travel_in_every_request(write_lines: Write, fakes: Any, service: Any, out: Path) -> None:
    source = write_lines("n.jsonl", fakes.many(3))
    weights = ("--weight", "lm_scale=0", "--weight", "word_bonus=2.5", "--interpolation", "kn5=1")
    switches = ("--log-base", "10", "--word-scores", "--state", "reset", "--batch-size", "2")
    assert fakes.rescore(source, service.url, out, *weights, *switches) == 0
    for request in service.requests:
        settings = {name: value for name, value in request.items() if name != "utterances"}
        options = {"lm_scale": 0.0, "word_bonus": 2.5, "interpolation": {"kn5": 1.0}, "state": "reset"}
        assert settings == {"options": options, "log_base": "10", "word_scores": True, "compact": False}


@pytest.mark.parametrize("rule", ["total", "mbr", "consensus"])
def test_a_rule_and_the_wish_for_confidences_travel_when_they_are_given(
    write_lines: Write, fakes: Any, service: Any, out: Path, rule: str
) -> None:
    source = write_lines("n.jsonl", fakes.many(1))
    assert fakes.rescore(source, service.url, out, "--decision", rule, "--word-confidences") == 0
    (request,) = service.requests
    assert (request["options"], request["word_confidences"]) == ({"decision": rule}, True)


def test_the_declared_base_of_the_logarithms_is_passed_on(
    write_lines: Write, fakes: Any, service: Any, out: Path
) -> None:
    assert fakes.rescore(write_lines("n.jsonl", fakes.many(1)), service.url, out, "--log-base", "10") == 0
    assert service.requests[0]["log_base"] == "10"


def test_the_key_comes_from_the_environment(
    write_lines: Write, fakes: Any, service: Any, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBEST_API_KEY", "from-the-environment")
    assert fakes.rescore(write_lines("n.jsonl", fakes.many(1)), service.url, out) == 0
    assert service.headers[0]["Authorization"] == "Bearer from-the-environment"


def test_no_request_exceeds_the_limit_in_bytes(write_lines: Write, fakes: Any, service: Any, out: Path) -> None:
    lists = [fakes.utterance(f"u{i}", "ü" * 4000) for i in range(12)]
    source = write_lines("n.jsonl", lists)
    assert fakes.rescore(source, service.url, out, "--max-request-mib", "0.03") == 0
    assert max(service.bodies) <= 0.03 * 2**20
    assert len(fakes.ids(out)) == 12


def test_a_whole_session_travels_in_one_request_when_state_is_carried(
    write_lines: Write, fakes: Any, service: Any, out: Path
) -> None:
    lists = [
        fakes.utterance(f"{session}{i}", session_id=session)
        for session, n in (("a", 5), ("b", 1), ("c", 2))
        for i in range(n)
    ]
    assert (
        fakes.rescore(write_lines("n.jsonl", lists), service.url, out, "--state", "carried", "--batch-size", "3") == 0
    )
    sent = [[u["session_id"] for u in request["utterances"]] for request in service.requests]
    assert sorted(sent) == [["a"] * 5, ["b", "c", "c"]]
    assert {entry["state"] for entry in fakes.results(out)} == {"carried"}


def test_results_keep_the_input_index_of_each_hypothesis(
    write_lines: Write, fakes: Any, service: Any, out: Path
) -> None:
    # totals: -100 - 30, -101 - 10, -102 - 20
    source = write_lines("n.jsonl", [fakes.utterance("u", "a b c", "d", "e f")])
    assert fakes.rescore(source, service.url, out) == 0
    assert [entry["index"] for entry in fakes.results(out)[0]["ranking"]] == [1, 2, 0]


def test_a_bad_line_is_named_and_what_came_before_is_kept(
    write_lines: Write, fakes: Any, service: Any, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_lines("n.jsonl", [*fakes.many(5), {"id": "x", "hypotheses": []}])
    assert fakes.rescore(source, service.url, out, "--batch-size", "2") == 1
    error = capsys.readouterr().err.splitlines()
    assert error == [
        f"nbest: 4 results are kept in {out}.part; --resume continues there",
        f"nbest: error: {source}:6: hypotheses: must hold at least one entry; the list is empty",
    ]
    assert not out.exists()
    assert fakes.ids(Path(f"{out}.part")) == [f"utt-{i:03}" for i in range(4)]


def test_a_refusal_names_the_lines_of_its_request(
    write_lines: Write, fakes: Any, service: Any, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, document = fakes.problem(422, "utterance 'utt-003': <s> is no word")
    service.script = [
        fakes.send_answer,
        lambda handler, _: fakes.send_json(handler, status, document, "application/problem+json"),
    ]
    source = write_lines("n.jsonl", fakes.many(6))
    assert fakes.rescore(source, service.url, out, "--batch-size", "2", "--concurrency", "1") == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"nbest: error: {source}:3-4: 422 Some Problem: utterance 'utt-003': <s> is no word"
    )
    assert fakes.ids(Path(f"{out}.part")) == ["utt-000", "utt-001"]


def test_with_a_bundle_the_engine_of_the_entry_point_does_the_same_work(
    write_lines: Write,
    fakes: Any,
    service: Any,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []

    class Engine:
        def __init__(self, bundle: str, *, device: str, threads: int, precision: str, exact_normaliser: bool) -> None:
            made.append((bundle, device, threads, precision, exact_normaliser))

        def rescore(self, request: Any) -> Any:
            return fakes.answer(request)

    class Entry:
        def load(self) -> type[Engine]:
            return Engine

    source = write_lines("n.jsonl", fakes.many(5))
    assert fakes.rescore(source, service.url, out) == 0
    through_http = out.read_bytes()
    monkeypatch.setattr(targets, "entry_points", lambda **_: [Entry()])
    options = (
        *("--device", "cpu", "--threads", "2", "--precision", "bfloat16"),
        "--exact-normaliser",
        "--batch-size=2",
    )
    assert main(["rescore", source, "--bundle", "folder", "-o", str(out), *options]) == 0
    assert (made, out.read_bytes()) == ([("folder", "cpu", 2, "bfloat16", True)], through_http)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either --url URL or --bundle DIR"),
        (("--url", "http://x", "--bundle", "y"), "give either --url URL or --bundle DIR"),
        (("--url", "http://x", "--device", "cpu"), "--device, --threads and --precision go with --bundle"),
        (("--url", "http://x", "--exact-normaliser"), "--exact-normaliser goes with --bundle"),
        (("--url", "http://x", "--resume"), "--resume needs --output FILE"),
        (("--url", "x"), "is no URL of a service"),
        (("--url", "http://x", "--weight", "scale=1"), "no such weight"),
        (("--url", "http://x", "--decision", "rover"), "is not one of"),
        (("--url", "http://x", "--dynamic", "--decision", "mbr"), "no part of a session"),
        (("--bundle", "x", "--session-per", "file", "--decision", "total"), "no part of a session"),
        (("--url", "http://x", "--dynamic", "--word-confidences"), "no part of a session"),
    ],
)
def test_options_that_make_no_sense_end_with_2(
    write_lines: Write,
    fakes: Any,
    arguments: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["rescore", write_lines("n.jsonl", fakes.many(1)), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_bar_is_shown_on_a_terminal_only(
    write_lines: Write, fakes: Any, service: Any, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not sys.stderr.isatty()
    assert fakes.rescore(write_lines("n.jsonl", fakes.many(1)), service.url, out) == 0
    assert "━" not in capsys.readouterr().err
