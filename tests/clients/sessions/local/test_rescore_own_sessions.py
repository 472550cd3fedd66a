"""`nbest rescore --bundle` with sessions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clients.cli import main
from models.learning import LearningOptions
from models.session import SessionOptions

ByHand = Callable[[SessionOptions], Any]
Lists = list[dict[str, Any]]
RATE = SessionOptions(learning=LearningOptions(rate=0.5))


@pytest.fixture
def source(write_lines: Callable[..., str], lists: Lists) -> str:
    return write_lines("n.jsonl", lists)


@pytest.fixture
def rescore(bundle_folder: Path, out: Path, fakes: Any) -> Callable[..., Lists]:
    def run(source: str, *more: str) -> Lists:
        arguments = ["rescore", source, "--bundle", str(bundle_folder), "-o", str(out), "--device", "cpu", *more]
        assert main(arguments) == 0
        results: Lists = fakes.results(out)
        return results

    return run


Rescore = Callable[..., Lists]


def rankings(results: Lists) -> list[list[tuple[int, float]]]:
    return [[(entry["index"], entry["total"]) for entry in result["ranking"]] for result in results]


def test_the_command_ranks_as_sessions_by_hand(source: str, lists: Lists, rescore: Rescore, by_hand: ByHand) -> None:
    hand = by_hand(RATE)
    results = rescore(source, "--dynamic", "--rate", "0.5", "--batch-size", "1")
    assert [result["id"] for result in results] == [utterance["id"] for utterance in lists]
    assert rankings(results) == [hand.rescore(utterance["speaker"], utterance) for utterance in lists]


@pytest.mark.parametrize("window", ["3", "16", "100"])
def test_a_wider_window_changes_no_ranking(source: str, rescore: Rescore, window: str) -> None:
    one = rescore(source, "--dynamic", "--rate", "0.5", "--batch-size", "1")
    more = rescore(source, "--dynamic", "--rate", "0.5", "--batch-size", window)
    for first, second in zip(rankings(one), rankings(more), strict=True):
        assert [index for index, _ in first] == [index for index, _ in second]
        assert [total for _, total in first] == pytest.approx([total for _, total in second], abs=1e-4)


def test_learning_makes_a_difference_to_these_lists(source: str, rescore: Rescore) -> None:
    dynamic = rescore(source, "--dynamic", "--rate", "0.5", "--session-per", "file")
    static = rescore(source, "--session-per", "file")
    assert [result["best_text"] for result in dynamic] != [result["best_text"] for result in static]


def test_one_session_for_the_file(source: str, lists: Lists, rescore: Rescore, by_hand: ByHand) -> None:
    hand = by_hand(RATE)
    results = rescore(source, "--dynamic", "--rate", "0.5", "--session-per", "file")
    assert rankings(results) == [hand.rescore("file", utterance) for utterance in lists]


def test_a_session_per_utterance_is_a_reset_before_each(
    source: str, lists: Lists, rescore: Rescore, by_hand: ByHand
) -> None:
    results = rescore(source, "--dynamic", "--rate", "0.5", "--session-per", "utterance", "--batch-size", "1")
    assert rankings(results) == [by_hand(RATE).rescore("", utterance) for utterance in lists]


def test_learning_from_nothing_with_the_state_reset_is_a_session_per_utterance(source: str, rescore: Rescore) -> None:
    alone = rescore(source, "--dynamic", "--session-per", "utterance", "--batch-size", "1")
    nothing = ("--learn-from", "nothing", "--state", "reset", "--session-per", "file")
    assert rankings(rescore(source, "--dynamic", *nothing)) == rankings(alone)


def test_frozen_sessions_rank_as_requests_with_carried_state(
    write_lines: Callable[..., str], lists: Lists, rescore: Rescore
) -> None:
    # Two ways to the same numbers: sessions here, and the state carried inside one request.
    named = sorted(({**u, "session_id": u["speaker"]} for u in lists), key=lambda u: u["speaker"])
    source = write_lines("sorted.jsonl", named)
    sessions = rescore(source, "--session-per", "speaker", "--batch-size", "1")
    carried = rescore(source, "--state", "carried")
    for first, second in zip(rankings(sessions), rankings(carried), strict=True):
        assert [index for index, _ in first] == [index for index, _ in second]
        assert [total for _, total in first] == pytest.approx([total for _, total in second], abs=1e-4)


def test_confirmed_references_are_learnt_in_place_of_winners(
    write_lines: Callable[..., str], lists: Lists, rescore: Rescore, by_hand: ByHand
) -> None:
    some = [
        {k: v for k, v in utterance.items() if k != "reference" or number % 4} for number, utterance in enumerate(lists)
    ]
    hand = by_hand(SessionOptions(learn_from="confirmed", learning=LearningOptions(rate=0.5)))
    source = write_lines("some.jsonl", some)
    results = rescore(source, "--dynamic", "--rate", "0.5", "--learn-from", "confirmed", "--batch-size", "1")
    assert rankings(results) == [hand.rescore(u["speaker"], u, confirm=True) for u in some]


def test_results_say_how_they_were_made(source: str, rescore: Rescore) -> None:
    result = rescore(source, "--dynamic", "--tau", "2", "--weight", "lm_scale=3")[0]
    assert result["sessions"] == {
        "per": "speaker",
        "weights": "dynamic",
        "learn_from": "winner",
        "rate": 0.1,
        "tau": 2,
        "decay": 0.0,
        "max_loss_rise": 0.5,
    }
    assert (result["state"], result["weights"]["lm_scale"]) == ("carried", 3.0)


@pytest.mark.parametrize("more", [("--session-per", "file"), ("--dynamic", "--session-per", "utterance")])
def test_where_nothing_is_learnt_from_one_utterance_for_the_next_nothing_is_said_of_it(
    source: str, rescore: Rescore, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    rescore(source, *more)
    assert "learnt" not in capsys.readouterr().err


def test_what_was_learnt_is_said(source: str, rescore: Rescore, capsys: pytest.CaptureFixture[str]) -> None:
    results = rescore(source, "--dynamic")
    words = sum(len(result["best_text"].split()) + 1 for result in results)
    assert f"3 sessions, {words} words learnt, 0 lessons undone; perplexity" in capsys.readouterr().err


KINDS = [
    ("--rate", "0.5"),
    ("--learn-from", "confirmed"),
    ("--session-per", "file", "--tau", "3"),
    ("--session-per", "utterance"),
    ("--learn-from", "nothing", "--compact"),
]


@pytest.mark.slow
@pytest.mark.parametrize("more", KINDS)
@pytest.mark.parametrize("window", ["1", "5"])
def test_an_interrupted_and_resumed_run_gives_the_file_of_an_undisturbed_one(
    source: str, rescore: Rescore, out: Path, more: tuple[str, ...], window: str
) -> None:
    options = ("--dynamic", *more, "--batch-size", window)
    rescore(source, *options)
    whole = out.read_bytes()
    lines = whole.splitlines(keepends=True)
    for stands in (1, 12, 20):
        out.unlink()
        half = lines[stands][:30] if stands < len(lines) else b""
        Path(f"{out}.part").write_bytes(b"".join(lines[:stands]) + half)
        rescore(source, *options, "--resume")
        assert out.read_bytes() == whole


def test_an_error_in_the_middle_keeps_whole_windows_and_resume_goes_on(
    write_lines: Callable[..., str], source: str, lists: Lists, rescore: Rescore, bundle_folder: Path, out: Path
) -> None:
    rescore(source, "--dynamic", "--batch-size", "4")
    whole = out.read_bytes()
    out.unlink()
    broken = write_lines("n.jsonl", [*lists[:10], {"id": "x"}, *lists[10:]])
    arguments = ["rescore", broken, "--bundle", str(bundle_folder), "-o", str(out), "--dynamic", "--batch-size", "4"]
    assert main(arguments) == 1
    assert Path(f"{out}.part").read_bytes() == b"".join(whole.splitlines(keepends=True)[:8])
    rescore(write_lines("n.jsonl", lists), "--dynamic", "--batch-size", "4", "--resume")
    assert out.read_bytes() == whole


def test_resume_refuses_to_go_on_with_other_learning(
    source: str, rescore: Rescore, bundle_folder: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rescore(source, "--dynamic")
    lines = out.read_bytes().splitlines(keepends=True)
    for more in (["--dynamic", "--rate", "0.2"], []):
        Path(f"{out}.part").write_bytes(lines[0])
        arguments = ["rescore", source, "--bundle", str(bundle_folder), "-o", str(out), "--resume", *more]
        assert main([*arguments, "--batch-size", "1"]) == 1
        assert "changed: these results are made with" in capsys.readouterr().err


def test_a_line_without_a_speaker_is_named(
    write_lines: Callable[..., str], lists: Lists, bundle_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_lines("n.jsonl", [lists[0], {**lists[1], "speaker": None}])
    assert main(["rescore", source, "--bundle", str(bundle_folder), "--dynamic"]) == 1
    assert f"nbest: error: {source}:2: speaker: missing" in capsys.readouterr().err


def test_a_mixture_that_cannot_learn_is_one_sentence(
    source: str, bundle_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["rescore", source, "--bundle", str(bundle_folder), "--dynamic", "--interpolation", "ngram=1"]
    assert main(arguments) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "nbest: error: the mixture gives no weight to a recurrent network: there is nothing that could learn"
    )


def test_the_evaluation_tells_static_from_dynamic_in_its_signatures(
    source: str, rescore: Rescore, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rescore(source, "--dynamic")
    dynamic = out.rename(tmp_path / "dynamic.jsonl")
    rescore(source)
    static = out.rename(tmp_path / "static.jsonl")
    report = tmp_path / "report.json"
    assert main(["evaluate", str(dynamic), str(static), "--json", str(report)]) == 0
    signatures = json.loads(report.read_text())["signatures"]
    assert '"learn_from":"winner"' in signatures["dynamic"]
    assert "sessions" not in signatures["static"]
    both = tmp_path / "both.jsonl"
    first, *_ = dynamic.read_bytes().splitlines(keepends=True)
    both.write_bytes(first + b"".join(static.read_bytes().splitlines(keepends=True)[1:]))
    capsys.readouterr()
    assert main(["evaluate", str(both)]) == 1
    assert f"{both}:2: " in capsys.readouterr().err
