import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., str]


def test_resume_goes_on_after_the_last_whole_line(write_lines: Write, fakes: Any, service: Any, out: Path) -> None:
    source = write_lines("n.jsonl", fakes.many(6))
    assert fakes.rescore(source, service.url, out) == 0
    whole = out.read_bytes()
    lines = whole.splitlines(keepends=True)
    out.unlink()
    Path(f"{out}.part").write_bytes(b"".join(lines[:3]) + lines[3][:40])
    service.requests.clear()
    assert fakes.rescore(source, service.url, out, "--resume") == 0
    assert out.read_bytes() == whole
    assert [u["id"] for request in service.requests for u in request["utterances"]] == [
        "utt-003",
        "utt-004",
        "utt-005",
    ]


def test_resume_begins_at_the_beginning_where_there_is_nothing(
    write_lines: Write, fakes: Any, service: Any, out: Path
) -> None:
    assert fakes.rescore(write_lines("n.jsonl", fakes.many(2)), service.url, out, "--resume") == 0
    assert fakes.ids(out) == ["utt-000", "utt-001"]


def test_resume_of_a_finished_part_sends_nothing(write_lines: Write, fakes: Any, service: Any, out: Path) -> None:
    source = write_lines("n.jsonl", fakes.many(2))
    assert fakes.rescore(source, service.url, out) == 0
    whole = out.read_bytes()
    out.rename(f"{out}.part")
    service.requests.clear()
    assert fakes.rescore(source, service.url, out, "--resume") == 0
    assert (service.requests, out.read_bytes()) == ([], whole)


def test_resume_takes_up_a_carried_session_at_its_first_utterance(
    write_lines: Write, fakes: Any, service: Any, out: Path
) -> None:
    lists = [fakes.utterance(f"{session}{i}", session_id=session) for session in "ab" for i in range(3)]
    source = write_lines("n.jsonl", lists)
    assert fakes.rescore(source, service.url, out, "--state", "carried") == 0
    whole = out.read_bytes()
    Path(f"{out}.part").write_bytes(b"".join(whole.splitlines(keepends=True)[:4]))
    service.requests.clear()
    assert fakes.rescore(source, service.url, out, "--state", "carried", "--resume") == 0
    assert [u["id"] for u in service.requests[0]["utterances"]] == ["b0", "b1", "b2"]
    assert out.read_bytes() == whole


def test_resume_refuses_the_work_of_another_run(
    write_lines: Write, fakes: Any, service: Any, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fakes.rescore(write_lines("n.jsonl", fakes.many(3)), service.url, out) == 0
    out.rename(f"{out}.part")
    other = write_lines("other.jsonl", [fakes.utterance("utt-000"), fakes.utterance("x")])
    capsys.readouterr()
    assert fakes.rescore(other, service.url, out, "--resume") == 1
    assert f"{out}.part:2: id: 'utt-001' is no result for 'x' of {other}:2" in capsys.readouterr().err


def test_resume_refuses_results_beyond_the_end_of_the_input(
    write_lines: Write, fakes: Any, service: Any, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fakes.rescore(write_lines("n.jsonl", fakes.many(3)), service.url, out) == 0
    out.rename(f"{out}.part")
    capsys.readouterr()
    assert fakes.rescore(write_lines("n.jsonl", fakes.many(2)), service.url, out, "--resume") == 1
    assert "holds more results than" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [(("--weight", "lm_scale=1"), "the weights changed"), (("--compact",), "of another kind")],
)
def test_resume_refuses_to_mix_two_kinds_of_results(
    write_lines: Write,
    fakes: Any,
    service: Any,
    out: Path,
    more: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = write_lines("n.jsonl", fakes.many(3))
    assert fakes.rescore(source, service.url, out) == 0
    part = Path(f"{out}.part")
    part.write_bytes(out.read_bytes().splitlines(keepends=True)[0])
    capsys.readouterr()
    assert fakes.rescore(source, service.url, out, "--resume", *more) == 1
    assert message in capsys.readouterr().err
    assert fakes.ids(part) == ["utt-000"]


def test_a_server_that_comes_back_with_another_bundle_is_noticed(
    write_lines: Write, fakes: Any, service: Any, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def other(handler: Any, request: Any) -> None:
        fakes.send_json(handler, 200, {**fakes.answer(request), "bundle": "c" * 64})

    service.script = [fakes.send_answer, other]
    source = write_lines("n.jsonl", fakes.many(2))
    assert fakes.rescore(source, service.url, out, "--batch-size", "1", "--concurrency", "1") == 1
    assert f"{source}:2: the bundle changed" in capsys.readouterr().err


def test_a_restart_of_the_server_is_survived(
    write_lines: Write, fakes: Any, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = fakes.service()
    restarted: list[Any] = []

    def restart() -> None:
        first.stop()
        time.sleep(0.2)
        restarted.append(fakes.service(first.port))

    def die(handler: Any, _: Any) -> None:
        handler.close_connection = True
        threading.Thread(target=restart).start()

    first.script = [fakes.send_answer, die]
    source = write_lines("n.jsonl", fakes.many(8))
    assert fakes.rescore(source, first.url, out, "--batch-size", "2", "--concurrency", "2") == 0
    restarted[0].stop()
    assert fakes.ids(out) == [f"utt-{i:03}" for i in range(8)]
    said = capsys.readouterr().err.splitlines()
    assert "trying again in" in said[0]
    assert "8 utterances" in said[-1]


def test_no_server_is_an_error_once_the_time_is_over(
    write_lines: Write, fakes: Any, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = fakes.service()
    gone.stop()
    assert fakes.rescore(write_lines("n.jsonl", fakes.many(1)), gone.url, out, "--retry-for", "0") == 1
    assert "no answer from the server" in capsys.readouterr().err
    assert list(out.parent.glob("out*")) == []
