"""Processes that train together, as torchrun starts them, against one process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from models.distributed import Group, joined
from models.errors import TrainingError

NBEST = (sys.executable, "-c", "import sys; from clients.cli import main; sys.exit(main())")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python")
TRAIN = ("train", "rnn", "bundle", "--text", "train.txt", "--valid", "valid.txt", "--rare", "0", "--device", "cpu")
SMALL = ("--hidden", "8", "--epochs", "2", "--streams", "3", "--tau", "5", "--reset-share", "0.2")
MASKS = ("--dropout", "0.2", "--vector-dropout", "0.1", "--input-dropout", "0.1")
# Many times what it takes: only a command that hangs is ended.
LONG_ENOUGH = 600
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts commands; ends what a failed test leaves running."""
    started = []

    def command(folder: Path, *arguments: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(arguments, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield command
    for process in started:
        if process.poll() is None:
            # torchrun ends its processes when it is asked to.
            process.terminate()
            process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    complaint = process.communicate(timeout=LONG_ENOUGH)[1]
    return process.returncode, complaint


@pytest.fixture
def folder(tmp_path: Path, make: Any) -> Any:
    """Makes folders that hold the two texts."""

    def of(name: str) -> Path:
        (tmp_path / name).mkdir()
        for part, count, seed in (("train", 100, 1), ("valid", 20, 2)):
            lines = [" ".join(words) + "\n" for words in make.grammar(count, seed=seed)]
            (tmp_path / name / f"{part}.txt").write_text("".join(lines))
        return tmp_path / name

    return of


def same(one: Path, other: Path) -> None:
    ours, theirs = (load_file(path / "bundle" / "rnn" / "model.safetensors") for path in (one, other))
    for name in "UWV":
        assert ours[name].numpy() == pytest.approx(theirs[name].numpy(), abs=1e-4, rel=1e-4)


@given(st.integers(1, 60), st.integers(1, 60))
def test_shares_are_all_streams_and_differ_by_one_at_most(size: int, streams: int) -> None:
    shares = [list(range(streams)[Group(rank, size).share(streams)]) for rank in range(size)]
    assert [stream for share in shares for stream in share] == list(range(streams))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_one_process_alone_asks_nobody() -> None:
    tensor = torch.ones(2)
    group = Group()
    group.sum([tensor])
    assert tensor.tolist() == [1, 1]
    assert torch.equal(group.gather(tensor, 2), tensor)
    assert (group.any(True), group.any(False), group.leaders(0.5)) == (True, False, 0.5)


def test_without_torchrun_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined(torch.device("cpu")) as (group, device):
        assert (group, device) == (Group(), torch.device("cpu"))


def test_processes_that_cannot_meet_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(TrainingError, match="could not meet"), joined(torch.device("cpu")):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("output", [("--samples", "5"), ("--samples", "0"), ("--output", "class-factored")])
def test_two_processes_learn_what_one_does(folder: Any, start: Start, output: tuple[str, str]) -> None:
    # Three streams: one process reads one of them, the other two.
    command = (*NBEST, *TRAIN, *SMALL, *MASKS, *output)
    one, two = folder("one"), folder("two")
    assert ended(start(one, *command))[0] == 0
    assert ended(start(two, *TORCHRUN, *command))[0] == 0
    same(one, two)
    assert sorted(path.name for path in (two / "bundle").iterdir()) == ["bundle.json", "rnn", "vocab.txt"]
    assert len((two / "bundle" / "rnn" / "training-log.jsonl").read_text().splitlines()) == 2


@pytest.mark.slow
def test_what_two_processes_began_one_can_end(folder: Any, start: Start) -> None:
    command = (*NBEST, *TRAIN, *SMALL, "--epochs", "40")
    one, two = folder("one"), folder("two")
    process = start(two, *TORCHRUN, *command)
    checkpoint = two / "bundle" / ".training-rnn" / "checkpoint.safetensors"
    wait_for(checkpoint, process)
    process.send_signal(signal.SIGINT)
    code, complaint = ended(process)
    assert code != 0
    assert "stopped on request; --resume goes on" in complaint
    assert ended(start(two, *command, "--resume"))[0] == 0
    assert ended(start(one, *command))[0] == 0
    same(one, two)


@pytest.mark.slow
def test_a_process_that_dies_ends_all(folder: Any, start: Start) -> None:
    two = folder("two")
    process = start(two, *TORCHRUN, *NBEST, *TRAIN, *SMALL, "--epochs", "10000")
    wait_for(two / "bundle" / ".training-rnn" / "checkpoint.safetensors", process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    assert ended(process)[0] != 0


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + LONG_ENOUGH
    while not path.exists():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
def test_more_processes_than_streams_are_refused(folder: Any, start: Start) -> None:
    code, complaint = ended(start(folder("two"), *TORCHRUN, *NBEST, *TRAIN, *SMALL, "--streams", "1"))
    assert code != 0
    assert "1 streams are too few for 2 processes" in complaint
