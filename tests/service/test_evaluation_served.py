"""`nbest evaluate --url` against the service on a real socket: the report is the one that is made offline."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from clients.cli import main
from clients.errors import BusyError, ProblemError
from clients.retry import RetryPolicy
from clients.sdk import Client
from models.bundle import Bundle
from service.protocol import limited_protocol
from service.settings import Limits

pytestmark = pytest.mark.slow

PATIENCE_S = 30
TEXTS = ("the cat sat", "the cat sad", "on the mat", "The cat", "")


def utterance(number: int, **more: Any) -> Any:
    texts = [TEXTS[(number + i) % len(TEXTS)] for i in range(1 + number % 4)]
    hypotheses = [{"text": text, "acoustic_score": -1.0 - 0.7 * i} for i, text in enumerate(texts)]
    return {
        "id": f"u{number}",
        "hypotheses": hypotheses,
        "reference": TEXTS[number % 3],
        "speaker": f"s{number % 2}",
        **more,
    }


@contextmanager
def listening(app: FastAPI, limits: Limits) -> Iterator[str]:
    configuration = uvicorn.Config(app, port=0, http=limited_protocol(limits), lifespan="on", log_config=None)
    server = uvicorn.Server(configuration)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)


@pytest.fixture
def serving(make_app: Callable[..., FastAPI], bundle: Bundle) -> Callable[..., Any]:
    def start(**limits: Any) -> Any:
        chosen = Limits(**limits)
        return listening(make_app(bundle, chosen), chosen)

    return start


def written(folder: Path, name: str, lines: list[Any]) -> str:
    path = folder / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("rescoring", "evaluating"),
    [
        ([], ["--worst", "3", "--by", "speaker", "--confusions", "4"]),
        (["--weight", "lm_scale=7", "--decision", "consensus"], ["--lowercase", "--drop-word", "on", "--seed", "5"]),
    ],
)
def test_the_report_is_the_one_made_offline(
    serving: Any,
    bundle_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    rescoring: list[str],
    evaluating: list[str],
) -> None:
    lists = written(tmp_path, "set.jsonl", [utterance(number) for number in range(80)])
    results, here, there = (str(tmp_path / name) for name in ("rescored.jsonl", "here.json", "there.json"))
    assert main(["rescore", lists, "--bundle", str(bundle_folder), "-o", results, "-q", *rescoring]) == 0
    capsys.readouterr()
    choices = [*evaluating, "--resamples", "300"]
    assert main(["evaluate", results, "--set-name", "set", "--json", here, *choices]) == 0
    offline = capsys.readouterr().out
    with serving() as url:
        assert main(["evaluate", lists, "--url", url, "--json", there, *rescoring, *choices]) == 0
    assert capsys.readouterr().out == offline
    assert "signature of rescored" in offline
    assert json.loads(Path(there).read_text("utf-8")) == json.loads(Path(here).read_text("utf-8"))


def test_a_set_much_larger_than_any_buffer_is_evaluated(serving: Any) -> None:
    noise = {"hypotheses": [{"text": "the cat sat", "acoustic_score": -1.0, "lm_score": -1.0}] * 400}
    with serving(max_body_bytes=100_000, max_inflight_bytes=100_000) as url, Client(url) as client:
        # 600 lines of some 30 kB.
        result = client.evaluate((utterance(number, **noise) for number in range(600)), resamples=100)
    assert (result["utterances"], result["hypotheses_per_list"]) == (600, 400)


def test_a_fault_in_the_middle_of_a_large_set_is_told_by_file_and_line(
    serving: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = {"hypotheses": [{"text": "the cat sat", "acoustic_score": -1.0}] * 400}
    lines = [utterance(number, **many) for number in range(1000)]
    lines[20]["hypotheses"] = [{"text": "the <s> cat", "acoustic_score": -1.0}]
    lists = Path(written(tmp_path, "set.jsonl", lines))
    # A blank line is no utterance, but a line of the file.
    lists.write_text("\n" + lists.read_text("utf-8"), "utf-8")
    with serving() as url:
        assert main(["evaluate", str(lists), "--url", url]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"nbest: error: {lists}:22: utterance 'u20', hypothesis 0: ")
    assert "<s>" in said


def test_a_large_set_is_refused_while_as_many_run_as_may(serving: Any) -> None:
    def held() -> Iterator[Any]:
        yield utterance(0)
        yield from (utterance(number) for number in range(1, 400))
        begun.set()
        assert done.wait(PATIENCE_S)

    begun, done = threading.Event(), threading.Event()
    many = {"hypotheses": [{"text": "the cat sat", "acoustic_score": -1.0}] * 400}
    outcome: list[Any] = []
    with serving(max_evaluations=1) as url, Client(url) as client:
        first = threading.Thread(target=lambda: outcome.append(client.evaluate(held(), resamples=100)))
        first.start()
        assert begun.wait(PATIENCE_S)
        with Client(url, retry=RetryPolicy(total_seconds=0)) as other, pytest.raises(BusyError) as refused:
            other.evaluate([utterance(number, **many) for number in range(500)])
        assert refused.value.problem["type"] == "/problems/too-many-evaluations"
        done.set()
        first.join(PATIENCE_S)
    assert outcome[0]["utterances"] == 400


def test_a_caller_whose_set_cannot_be_read_to_its_end_leaves_nothing_running(serving: Any) -> None:
    def broken() -> Iterator[Any]:
        yield from (utterance(number) for number in range(300))
        raise ZeroDivisionError

    with serving(max_evaluations=1) as url, Client(url) as client:
        with pytest.raises(ZeroDivisionError):
            client.evaluate(broken())
        assert client.evaluate([utterance(1)], resamples=100)["utterances"] == 1
        deadline = time.monotonic() + PATIENCE_S
        while 'nbest_evaluations_total{outcome="stopped"} 1.0' not in httpx.get(f"{url}/metrics").text:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_what_the_command_cannot_do_with_a_service_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lists = written(tmp_path, "set.jsonl", [utterance(0)])
    url = ["--url", "http://127.0.0.1:9"]
    for arguments, said in (
        ([lists, lists, *url], "one N-best file"),
        ([lists, "--nbest", lists, *url], "--nbest"),
        ([lists, "--export", str(tmp_path), *url], "--export"),
        ([lists, "--weight", "lm_scale=1"], "need --url"),
        ([lists, "--log-base", "e"], "need --url"),
    ):
        assert main(["evaluate", *arguments]) == 2
        assert said in capsys.readouterr().err


def test_a_file_that_cannot_be_evaluated_is_named_before_the_service_is_asked_twice(
    serving: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = written(tmp_path, "bare.jsonl", [utterance(0), {**utterance(1), "reference": None}])
    results = written(tmp_path, "results.jsonl", [{"id": "u", "ranking": [{"index": 0}]}])
    with serving() as url:
        for file, code, said in ((bare, 1, "bare.jsonl:2: no reference for 'u1'"), (results, 2, "results.jsonl:1")):
            assert main(["evaluate", file, "--url", url]) == code
            assert said in capsys.readouterr().err
        assert main(["evaluate", bare, "--url", url, "--skip-missing-reference", "--resamples", "100"]) == 0
    assert "left out for want of a reference: 1 utterances" in capsys.readouterr().out


def test_a_refusal_of_the_service_is_one_line(serving: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lists = written(tmp_path, "set.jsonl", [utterance(0)])
    with serving() as url:
        assert main(["evaluate", lists, "--url", url, "--interpolation", "whisper=1"]) == 1
        (said,) = capsys.readouterr().err.splitlines()
        assert "whisper" in said
        with Client(url) as client, pytest.raises(ProblemError, match="each utterance anew"):
            client.evaluate([utterance(0)], options={"state": "carried"})
