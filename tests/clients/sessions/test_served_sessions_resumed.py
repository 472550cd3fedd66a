"""Runs with sessions of a service that were interrupted, and gone on with."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clients.cli import main

Write = Callable[..., str]
Json = dict[str, Any]
COMMAND = [sys.executable, "-c", "import sys; from clients.cli import main; sys.exit(main(sys.argv[1:]))"]


def lists_of(count: int) -> list[Json]:
    """Lists of two speakers whose ranking depends on what was learnt before."""
    return [
        {
            "id": f"u{number}",
            "speaker": "ab"[number % 2],
            "reference": "grey" if number % 3 else "grey colour",
            "hypotheses": [
                {"text": "grey", "acoustic_score": -3.0 - number % 3},
                {"text": "gray", "acoustic_score": -2.5 - number % 4},
                {"text": "grey colour", "acoustic_score": 3.0 - number % 5},
            ],
        }
        for number in range(count)
    ]


class Run:
    """One command on one file, again and again."""

    def __init__(self, server: Any, source: str, out: Path, *more: str) -> None:
        self.out, self.part, self.run_file = out, Path(f"{out}.part"), Path(f"{out}.part.run")
        self.arguments = ["rescore", source, "--url", server.url, "-o", str(out), "--retry-for", "0", *more]

    def __call__(self, *more: str) -> int:
        return main([*self.arguments, *more])


@pytest.fixture
def run(server: Any, write_lines: Write, out: Path, request: pytest.FixtureRequest) -> Run:
    more = getattr(request, "param", ())
    return Run(server, write_lines("n.jsonl", lists_of(12)), out, "--dynamic", *more)


@pytest.fixture
def undisturbed(run: Run, fake: Any) -> bytes:
    assert run() == 0
    whole = run.out.read_bytes()
    run.out.unlink()
    fake.calls.clear()
    return whole


OF_ALL_KINDS = pytest.mark.parametrize(
    "run",
    [
        (),
        ("--learn-from", "confirmed"),
        ("--session-per", "file"),
        ("--session-per", "utterance"),
        ("--state", "reset", "--compact"),
    ],
    indirect=True,
)


@OF_ALL_KINDS
@pytest.mark.parametrize("nth", [1, 2, 7, 11])
def test_after_a_lost_answer_a_resumed_run_gives_the_file_of_an_undisturbed_one(
    run: Run, fake: Any, server: Any, undisturbed: bytes, nth: int
) -> None:
    # The list is scored, its winner accepted and logged; the answer never arrives.
    server.lost = lambda _, path: path.endswith("/rescore") and len(fake.paths("POST", "/rescore")) == nth
    assert run() == 1
    assert not run.out.exists()
    server.lost = lambda *_: False
    assert run("--resume") == 0
    assert run.out.read_bytes() == undisturbed
    assert [path.name for path in run.out.parent.glob("out*")] == ["out.jsonl"]


def test_a_resumed_run_goes_on_in_the_same_sessions_and_asks_only_for_what_is_missing(
    run: Run, fake: Any, server: Any, undisturbed: bytes
) -> None:
    server.lost = lambda _, path: path.endswith("/rescore") and len(fake.paths("POST", "/rescore")) == 7
    assert run("--concurrency", "1") == 1
    before = set(fake.sessions)
    kept = run.part.read_bytes().count(b"\n")
    assert kept == 6
    fake.calls.clear()
    server.lost = lambda *_: False
    assert run("--resume") == 0
    assert fake.paths("POST", "/v1/sessions") == []
    asked = [body["utterance"]["id"] for _, path, body in fake.calls if path.endswith("/rescore")]
    assert sorted(asked) == sorted(f"u{number}" for number in range(kept, 12))
    assert {path.split("/")[3] for path in fake.paths("POST", "/rescore")} == before
    assert run.out.read_bytes() == undisturbed


def test_no_list_of_a_session_is_sent_after_one_that_failed(run: Run, fake: Any, server: Any) -> None:
    failed: list[str] = []

    def lose(_: str, path: str) -> bool:
        if path.endswith("/rescore") and not failed and len(fake.paths("POST", path)) == 3:
            failed.append(path)
        return path in failed

    server.lost = lose
    assert run() == 1
    assert len(fake.paths("POST", failed[0])) == 3


def test_a_finished_part_needs_no_list_and_its_sessions_are_deleted(
    run: Run, fake: Any, server: Any, undisturbed: bytes
) -> None:
    server.lost = lambda _, path: path.endswith("/rescore") and len(fake.paths("POST", "/rescore")) == 12
    assert run() == 1
    run.part.write_bytes(undisturbed)
    server.lost = lambda *_: False
    fake.calls.clear()
    assert run("--resume") == 0
    assert (fake.paths("POST"), fake.sessions) == ([], {})
    assert run.out.read_bytes() == undisturbed


def test_a_run_that_ended_before_its_first_result_leaves_nothing(run: Run, fake: Any, server: Any) -> None:
    server.lost = lambda _, path: path.endswith("/rescore")
    assert run("--concurrency", "1") == 1
    assert (list(run.out.parent.glob("out*")), fake.sessions) == ([], {})


def interrupted(run: Run, fake: Any, server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    server.lost = lambda _, path: path.endswith("/rescore") and len(fake.paths("POST", "/rescore")) == 7
    assert run() == 1
    server.lost = lambda *_: False
    capsys.readouterr()


def test_results_without_the_id_of_their_run_cannot_be_continued(
    run: Run, fake: Any, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(run, fake, server, capsys)
    run.run_file.unlink()
    assert run("--resume") == 1
    assert f"nbest: error: {run.run_file}: is missing" in capsys.readouterr().err
    assert run.part.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b'{"run": "x"}', "holds no id of a run"),
        (b'{"run": "' + b"0" * 32 + b'"}', "of another kind"),
    ],
)
def test_a_broken_file_of_the_run_is_named(
    run: Run, fake: Any, server: Any, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    interrupted(run, fake, server, capsys)
    run.run_file.write_bytes(content)
    assert run("--resume") == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"nbest: error: {run.run_file}: ")
    assert message in said


@pytest.mark.parametrize("more", [("--rate", "0.3"), ("--session-per", "file"), ("--weight", "lm_scale=2")])
def test_a_run_is_not_continued_with_other_sessions(
    run: Run, fake: Any, server: Any, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    interrupted(run, fake, server, capsys)
    assert run("--resume", *more) == 1
    assert "continue with the same options, or start anew without --resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        ("unknown", "is unknown to the server: there never was one; start anew without --resume"),
        ("expired", "is gone: make another; start anew without --resume"),
        ("older", "has accepted fewer utterances than there are results of it; start anew without --resume"),
    ],
)
def test_sessions_that_the_server_has_lost_are_said_to_be(
    run: Run, fake: Any, server: Any, capsys: pytest.CaptureFixture[str], harm: str, message: str
) -> None:
    interrupted(run, fake, server, capsys)
    for name, session in list(fake.sessions.items()):
        if harm == "older":
            session.log = {}
        else:
            del fake.sessions[name]
            fake.gone |= {name: harm} if harm == "expired" else {}
    assert run("--resume") == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"nbest: error: {run.arguments[1]}:")
    assert message in said


def test_a_new_run_does_not_touch_the_sessions_of_an_interrupted_one(
    run: Run, fake: Any, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(run, fake, server, capsys)
    before = set(fake.sessions)
    assert run() == 0
    assert set(fake.sessions) == before


@pytest.mark.slow
def test_a_kill_at_any_moment_is_survived(run: Run, fake: Any, undisturbed: bytes) -> None:
    release, reached = threading.Event(), threading.Event()

    def hang(_: str, path: str) -> None:
        if path.endswith("/rescore") and len(fake.paths("POST", "/rescore")) >= 9:
            reached.set()
            release.wait(10)

    fake.meanwhile = hang
    process = subprocess.Popen([*COMMAND, *run.arguments], stderr=subprocess.DEVNULL)
    assert reached.wait(20)
    deadline = time.monotonic() + 10
    while not (run.part.exists() and run.part.read_bytes().count(b"\n") >= 6):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    fake.meanwhile = lambda *_: None
    release.set()
    kept = [json.loads(line)["id"] for line in run.part.read_bytes().splitlines()]
    assert kept == [f"u{number}" for number in range(len(kept))]
    assert run("--resume") == 0
    assert run.out.read_bytes() == undisturbed


@pytest.mark.slow
def test_ctrl_c_keeps_the_sessions_for_a_resumed_run(run: Run, fake: Any, undisturbed: bytes) -> None:
    reached, release = threading.Event(), threading.Event()

    def hang(_: str, path: str) -> None:
        if path.endswith("/rescore") and len(fake.paths("POST", "/rescore")) >= 9:
            reached.set()
            release.wait(10)

    fake.meanwhile = hang
    process = subprocess.Popen([*COMMAND, *run.arguments], stderr=subprocess.PIPE, text=True)
    assert reached.wait(20)
    deadline = time.monotonic() + 10
    while not (run.part.exists() and run.part.read_bytes().count(b"\n") >= 6):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "results are kept in" in said
    assert "Traceback" not in said
    fake.meanwhile = lambda *_: None
    release.set()
    assert run("--resume") == 0
    assert run.out.read_bytes() == undisturbed
