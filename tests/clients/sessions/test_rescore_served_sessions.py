"""`nbest rescore` with sessions, against the fake service on a real socket."""

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clients.cli import main

Write = Callable[..., str]
Json = dict[str, Any]


def lists_of(*speakers: str) -> list[Json]:
    """Lists whose ranking depends on what was learnt before: two ways to spell, with a bias to the second."""
    return [
        {
            "id": f"u{number}",
            "speaker": speaker,
            "reference": "grey" if number % 3 else "grey colour",
            "hypotheses": [
                {"text": "grey", "acoustic_score": -3.0 - number % 2},
                {"text": "gray", "acoustic_score": -2.5 - number % 3},
                {"text": "grey colour", "acoustic_score": 3.0 - number % 4},
            ],
        }
        for number, speaker in enumerate(speakers)
    ]


def expected(fake: Any, lists: list[Json], key: Callable[[Json], str], **options: Any) -> list[Json]:
    """What sessions by hand answer, one list after the other."""
    out = []
    for utterance in lists:
        identifier = f"by-hand-{key(utterance)}"
        if identifier not in fake.sessions:
            fake.answer("POST", "/v1/sessions", {}, json.dumps({"id": identifier, "options": options}).encode())
        path = f"/v1/sessions/{identifier}"
        _, answer = fake.answer("POST", f"{path}/rescore", {}, json.dumps({"utterance": utterance}).encode())
        out.append(answer["result"])
        if options.get("learn_from") == "confirmed" and "reference" in utterance:
            said = json.dumps({"text": utterance["reference"]}).encode()
            fake.answer("PUT", f"{path}/utterances/{utterance['id']}/transcript", {}, said)
    for identifier in {f"by-hand-{key(utterance)}" for utterance in lists}:
        del fake.sessions[identifier]
    fake.calls.clear()
    return out


@pytest.fixture
def rescore(server: Any, out: Path) -> Callable[..., int]:
    def run(source: str, *more: str) -> int:
        return main(["rescore", source, "--url", server.url, "-o", str(out), "--retry-for", "20", *more])

    return run


Rescore = Callable[..., int]


def bare(entry: Json) -> Json:
    return {name: value for name, value in entry.items() if name not in {"bundle", "weights", "state", "sessions"}}


def test_each_speaker_has_a_session_and_results_are_in_input_order(
    write_lines: Write, fake: Any, fakes: Any, rescore: Rescore, out: Path
) -> None:
    lists = lists_of(*"abcabcaabbccab")
    by_hand = expected(fake, lists, lambda utterance: utterance["speaker"], weights="dynamic")
    assert rescore(write_lines("n.jsonl", lists), "--dynamic", "--concurrency", "3") == 0
    assert [bare(entry) for entry in fakes.results(out)] == by_hand
    assert len(fake.paths("POST", "/v1/sessions")) == 3


def test_the_expectation_by_hand_tells_a_session_from_none(fake: Any) -> None:
    lists = lists_of(*"abcabcaabbccab")
    together = expected(fake, lists, lambda utterance: utterance["speaker"])
    alone = expected(fake, lists, lambda utterance: utterance["id"])
    assert [r["best_text"] for r in together] != [r["best_text"] for r in alone]


def test_a_session_id_goes_before_the_speaker(
    write_lines: Write, fake: Any, fakes: Any, rescore: Rescore, out: Path
) -> None:
    lists = lists_of(*"aabb")
    for number, utterance in enumerate(lists):
        utterance["session_id"] = f"call {number % 2}"
    lists.append({**lists_of("call 1")[0], "id": "a speaker of the same name"})
    by_hand = expected(fake, lists, lambda utterance: utterance.get("session_id", "speaker"), weights="dynamic")
    assert rescore(write_lines("n.jsonl", lists), "--dynamic", "--session-per", "speaker") == 0
    assert [bare(entry) for entry in fakes.results(out)] == by_hand
    assert len(fake.paths("POST", "/v1/sessions")) == 3


def test_a_line_without_a_speaker_is_named_and_what_came_before_is_kept(
    write_lines: Write, fakes: Any, rescore: Rescore, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = lists_of(*"aaa")
    del lists[2]["speaker"]
    source = write_lines("n.jsonl", lists)
    assert rescore(source, "--dynamic") == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith(f"nbest: error: {source}:3: speaker: missing; --session-per speaker needs")
    assert fakes.ids(Path(f"{out}.part")) == ["u0", "u1"]


def test_one_session_for_the_whole_file(write_lines: Write, fake: Any, fakes: Any, rescore: Rescore, out: Path) -> None:
    lists = lists_of(*"abab")
    by_hand = expected(fake, lists, lambda _: "file", weights="dynamic")
    assert rescore(write_lines("n.jsonl", lists), "--dynamic", "--session-per", "file") == 0
    assert [bare(entry) for entry in fakes.results(out)] == by_hand
    assert fake.most["one session"] == 1


def test_a_session_per_utterance_is_a_reset_before_each(
    write_lines: Write, fake: Any, fakes: Any, rescore: Rescore, out: Path
) -> None:
    lists = lists_of(*"aaaaaaaaaaaa")
    by_hand = expected(fake, lists, lambda utterance: utterance["id"], weights="dynamic")
    assert rescore(write_lines("n.jsonl", lists), "--dynamic", "--session-per", "utterance", "--concurrency", "2") == 0
    assert [bare(entry) for entry in fakes.results(out)] == by_hand
    assert fake.sessions == {}
    # They go as their results are written, so that a long file does not fill the server.
    deleted = [number for number, (method, _, _) in enumerate(fake.calls) if method == "DELETE"]
    made = [number for number, (_, path, _) in enumerate(fake.calls) if path == "/v1/sessions"]
    assert deleted[0] < made[-1]


def test_references_are_confirmed_after_each_list_when_they_are_to_be_learnt(
    write_lines: Write, fake: Any, fakes: Any, rescore: Rescore, out: Path
) -> None:
    lists = lists_of(*"ababababab")
    del lists[4]["reference"]
    options = {"weights": "dynamic", "learn_from": "confirmed"}
    by_hand = expected(fake, lists, lambda utterance: utterance["speaker"], **options)
    assert rescore(write_lines("n.jsonl", lists), "--dynamic", "--learn-from", "confirmed") == 0
    assert [bare(entry) for entry in fakes.results(out)] == by_hand
    assert len(fake.paths("PUT", "/transcript")) == 9


@pytest.mark.parametrize("order", ["abababab", "aaaabbbb"])
def test_two_sessions_are_served_together_and_each_in_order(
    write_lines: Write, fake: Any, rescore: Rescore, order: str
) -> None:
    meeting = threading.Barrier(2, timeout=10)

    def meet(_: str, path: str) -> None:
        if path.endswith("/rescore"):
            meeting.wait()  # passed only when a list of the other session is on its way at the same time

    fake.meanwhile = meet
    assert rescore(write_lines("n.jsonl", lists_of(*order)), "--dynamic", "--concurrency", "2") == 0
    assert fake.most == {"all": 2, "one session": 1}
    asked: dict[str, list[str]] = {}
    for _, path, body in fake.calls:
        if path.endswith("/rescore"):
            asked.setdefault(path, []).append(body["utterance"]["id"])
    numbers = [[int(name[1:]) for name in names] for names in asked.values()]
    assert all(found == sorted(found) for found in numbers)
    assert sorted(map(len, numbers)) == [4, 4]


def test_no_more_calls_are_on_their_way_than_allowed(write_lines: Write, fake: Any, rescore: Rescore) -> None:
    assert rescore(write_lines("n.jsonl", lists_of(*"abcdefghijkl")), "--dynamic", "--concurrency", "3") == 0
    assert fake.most["all"] <= 3


def test_options_are_fixed_when_a_session_is_made_and_the_form_travels_with_each_list(
    write_lines: Write, fake: Any, fakes: Any, rescore: Rescore, out: Path
) -> None:
    learning = ("--learn-from", "nothing", "--rate", "0.25", "--tau", "3", "--decay", "0.5", "--state", "reset")
    weights = ("--weight", "lm_scale=2", "--interpolation", "rnn=1", "--log-base", "10", "--compact")
    assert rescore(write_lines("n.jsonl", lists_of("a")), "--dynamic", *learning, *weights) == 0
    (_, _, made), (_, _, asked) = fake.calls[:2]
    options = {"weights": "dynamic", "state": "reset", "learn_from": "nothing", "rate": 0.25, "tau": 3, "decay": 0.5}
    assert made["options"] == options
    assert made["rescoring"] == {"lm_scale": 2.0, "interpolation": {"rnn": 1.0}}
    assert {name: value for name, value in asked.items() if name != "utterance"} == {
        "log_base": "10",
        "word_scores": False,
        "compact": True,
    }
    (entry,) = fakes.results(out)
    del options["state"]
    assert entry["sessions"] == {"per": "speaker", "max_loss_rise": 0.5, **options}
    assert (entry["state"], entry["weights"]) == ("reset", made["rescoring"])


def test_without_dynamic_sessions_have_frozen_weights(
    write_lines: Write, fake: Any, fakes: Any, rescore: Rescore, out: Path
) -> None:
    assert rescore(write_lines("n.jsonl", lists_of(*"aa")), "--session-per", "file") == 0
    assert fake.calls[0][2]["options"] == {"weights": "static"}
    assert {entry["state"] for entry in fakes.results(out)} == {"carried"}


def test_sessions_are_deleted_at_the_end(write_lines: Write, fake: Any, rescore: Rescore, out: Path) -> None:
    assert rescore(write_lines("n.jsonl", lists_of(*"abc")), "--dynamic") == 0
    assert (fake.sessions, len(fake.gone)) == ({}, 3)
    assert [path.name for path in out.parent.glob("out*")] == ["out.jsonl"]


def test_sessions_are_kept_on_request_and_said_how_to_find(
    write_lines: Write, fake: Any, rescore: Rescore, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = lists_of("a", "Jörg Ä")
    assert rescore(write_lines("n.jsonl", lists), "--dynamic", "--keep-sessions") == 0
    run = re.findall(r"their ids begin with ([0-9a-f]{32})", capsys.readouterr().err)[0]
    assert sorted(re.sub(r"[0-9a-f]{16}$", "#", name) for name in fake.sessions) == [
        f"{run}.J_rg__.#",
        f"{run}.a.#",
    ]


def test_what_the_sessions_have_learnt_is_said(
    write_lines: Write, rescore: Rescore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rescore(write_lines("n.jsonl", lists_of(*"ab")), "--dynamic") == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "lessons" in line]
    # the fake's perplexities are 8 and 16 whatever is accepted
    assert re.fullmatch(
        r"nbest: 2 sessions, [234] words learnt, 0 lessons undone; perplexity of the accepted texts 8\.00, "
        r"with the shared weights 16\.00",
        line,
    )


def test_a_run_that_nobody_can_go_on_with_leaves_no_sessions(
    write_lines: Write, fake: Any, server: Any, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    lists = [*lists_of(*"ab"), {"id": "bad"}]
    assert main(["rescore", write_lines("n.jsonl", lists), "--url", server.url, "--dynamic"]) == 1
    assert capsysbinary.readouterr().out.count(b"\n") == 2
    assert fake.sessions == {}


def test_sessions_that_cannot_be_deleted_do_not_spoil_the_results(
    write_lines: Write, fakes: Any, rescore: Rescore, server: Any, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.lost = lambda method, _: method == "DELETE"
    assert rescore(write_lines("n.jsonl", lists_of(*"ab")), "--dynamic", "--retry-for", "0") == 0
    assert "sessions that could not be deleted: 2" in capsys.readouterr().err
    assert fakes.ids(out) == ["u0", "u1"]
