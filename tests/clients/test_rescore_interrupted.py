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

COMMAND = [sys.executable, "-c", "import sys; from clients.cli import main; sys.exit(main(sys.argv[1:]))"]


class Halfway:
    """A run of ten utterances in a process of its own, stopped by the server after four results."""

    def __init__(self, service: Any, source: str, out: Path, fakes: Any) -> None:
        self.release = threading.Event()

        def hang(*_: Any) -> None:
            self.release.wait(10)

        service.script = [fakes.send_answer, fakes.send_answer, hang, hang]
        self.part = Path(f"{out}.part")
        self.arguments = ["rescore", source, "--url", service.url, "-o", str(out), "--batch-size", "2"]
        self.process = subprocess.Popen(
            [*COMMAND, *self.arguments, "--concurrency", "1"], stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 20
        while not (self.part.exists() and self.part.read_bytes().count(b"\n") == 4):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=10)
        self.release.set()
        return self.process.returncode, said


@pytest.fixture
def source(write_lines: Callable[..., str], fakes: Any) -> str:
    return write_lines("n.jsonl", [fakes.utterance(f"u{i}", "a b", "c", reference="c") for i in range(10)])


@pytest.mark.slow
def test_a_kill_leaves_whole_lines_and_resume_gives_the_file_of_an_undisturbed_run(
    service: Any, source: str, tmp_path: Path, fakes: Any
) -> None:
    out = tmp_path / "out.jsonl"
    halfway = Halfway(service, source, out, fakes)
    halfway.end(signal.SIGKILL)
    assert not out.exists()
    kept = halfway.part.read_bytes()
    assert [json.loads(line)["id"] for line in kept.splitlines()] == ["u0", "u1", "u2", "u3"]
    # What a kill in the middle of a write would leave.
    halfway.part.write_bytes(kept + kept[:25])
    service.script = []
    assert main([*halfway.arguments, "--resume"]) == 0
    undisturbed = tmp_path / "undisturbed.jsonl"
    assert main(["rescore", source, "--url", service.url, "-o", str(undisturbed)]) == 0
    assert out.read_bytes() == undisturbed.read_bytes()


@pytest.mark.slow
def test_ctrl_c_ends_with_130_and_keeps_whole_lines(service: Any, source: str, tmp_path: Path, fakes: Any) -> None:
    halfway = Halfway(service, source, tmp_path / "out.jsonl", fakes)
    code, said = halfway.end(signal.SIGINT)
    assert code == 130
    assert said == f"nbest: 4 results are kept in {halfway.part}; --resume continues there\n"
    assert halfway.part.read_bytes().endswith(b"}\n")
    assert halfway.part.read_bytes().count(b"\n") == 4


@pytest.mark.slow
def test_ctrl_c_ends_the_wait_for_standard_input(service: Any) -> None:
    process = subprocess.Popen(
        [*COMMAND, "rescore", "-", "--url", service.url, "--batch-size", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    entry = {"id": "u", "hypotheses": [{"text": "a", "acoustic_score": -1}]}
    for number in range(2):  # with two in flight the answer of the first is waited for
        process.stdin.write(json.dumps({**entry, "id": f"u{number}"}).encode() + b"\n")
    process.stdin.flush()
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["id"] == "u0"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 130
    process.stdin.close()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
