"""`Client.evaluate`: a set sent line by line, what the server says meanwhile, and the result."""

import json
import types
from typing import Any

import httpx
import pytest

from clients.errors import BadAnswerError, BusyError, InputFileError, ProblemError, UsageError
from clients.evaluating import _Body

PROGRESS = {"event": "progress", "stage": "scoring", "done": 1, "skipped": 0, "words": 4, "errors": 1}
RESULT = {"event": "result", "set": "s", "utterances": 2}


def said(*events: Any) -> httpx.Response:
    lines = "".join(json.dumps(event) + "\n" for event in events)
    return httpx.Response(200, content=lines, headers={"Content-Type": "application/x-ndjson"})


def test_settings_and_utterances_are_the_lines_of_the_body(colour: Any, fakes: Any) -> None:
    script = fakes.script(said(RESULT))
    utterances = [fakes.utterance("a", "ä b"), fakes.utterance("b")]
    assert colour.call(script, "evaluate", utterances, options={"lm_scale": 0.0}, seed=7) == {
        "set": "s",
        "utterances": 2,
    }
    (request,) = script.requests
    assert (request.method, str(request.url)) == ("POST", "http://test/base/v1/evaluate")
    assert request.headers["content-type"] == "application/x-ndjson"
    lines = request.content.decode().splitlines()
    assert [json.loads(line) for line in lines] == [{"options": {"lm_scale": 0.0}, "seed": 7}, *utterances]


def test_a_large_set_is_sent_in_pieces_that_are_lines_together(colour: Any, fakes: Any) -> None:
    script = fakes.script(said(RESULT))
    colour.call(script, "evaluate", (fakes.utterance(f"u{i}") for i in range(2000)))
    names = [json.loads(line).get("id") for line in script.requests[0].content.decode().splitlines()]
    assert names == [None, *(f"u{i}" for i in range(2000))]


def test_what_comes_slowly_is_sent_as_it_comes() -> None:
    def slowly() -> Any:
        for number in range(4):
            clock.seconds += 0.3
            sent.append(len(pieces))
            yield {"id": f"u{number}"}

    clock, pieces, sent = types.SimpleNamespace(seconds=0.0), list[bytes](), list[int]()
    for piece in _Body({}, slowly(), lambda: clock.seconds):
        pieces.append(piece)
    # The settings at once; then what half a second brought: utterances of seconds 0.3 and 0.6, of 0.9 and 1.2.
    assert [piece.count(b"\n") for piece in pieces] == [1, 2, 2]
    assert sent == [1, 1, 2, 2]


def test_progress_is_told_as_it_comes(colour: Any, fakes: Any) -> None:
    heard: list[Any] = []
    second = {**PROGRESS, "done": 2}
    colour.call(
        fakes.script(said(PROGRESS, second, RESULT)), "evaluate", [fakes.utterance("u")], on_progress=heard.append
    )
    assert heard == [PROGRESS, second]


def test_an_error_event_is_a_problem(colour: Any, fakes: Any) -> None:
    status, document = fakes.problem(422, "line 3.id: taken", errors=[{"field": "line 3.id", "message": "taken"}])
    script = fakes.script(said(PROGRESS, {"event": "error", **document}))
    with pytest.raises(ProblemError) as caught:
        colour.call(script, "evaluate", [fakes.utterance("u")])
    assert caught.value.problem == document
    assert (caught.value.problem["status"], len(script.requests)) == (status, 1)


def test_an_error_event_that_may_pass_is_told_apart(colour: Any, fakes: Any) -> None:
    _, document = fakes.problem(503, "stopping")
    with pytest.raises(BusyError):
        colour.call(fakes.script(said({"event": "error", **document})), "evaluate", [fakes.utterance("u")])


@pytest.mark.parametrize(
    "answer", [said(), said(PROGRESS), said([]), httpx.Response(200, content=b"<html>\n"), said({})]
)
def test_an_answer_without_a_result_is_an_error(colour: Any, fakes: Any, answer: httpx.Response) -> None:
    with pytest.raises(BadAnswerError):
        colour.call(fakes.script(answer), "evaluate", [fakes.utterance("u")])


@pytest.mark.parametrize("failure", [httpx.Response(429), httpx.Response(503), httpx.ConnectError("refused")])
def test_a_set_that_can_be_gone_through_again_is_sent_again(colour: Any, fakes: Any, failure: Any) -> None:
    script = fakes.script(failure, said(RESULT))
    assert colour.call(script, "evaluate", [fakes.utterance("u")]) == {"set": "s", "utterances": 2}
    assert script.requests[0].content == script.requests[1].content


def test_a_set_that_can_be_gone_through_once_is_sent_once(colour: Any, fakes: Any) -> None:
    script = fakes.script(httpx.Response(429), said(RESULT))
    with pytest.raises(BusyError):
        colour.call(script, "evaluate", iter([fakes.utterance("u")]))
    assert len(script.requests) == 1


def test_what_fails_while_the_set_is_read_reaches_the_caller(colour: Any, fakes: Any) -> None:
    def broken() -> Any:
        yield fakes.utterance("u")
        raise InputFileError("set.jsonl:2: broken")

    with pytest.raises(InputFileError, match=r"set\.jsonl:2"):
        colour.call(fakes.script(said(RESULT)), "evaluate", broken())


def test_what_is_no_number_is_not_sent(colour: Any, fakes: Any) -> None:
    with pytest.raises(UsageError, match="cannot be written as JSON"):
        colour.call(fakes.script(said(RESULT)), "evaluate", [fakes.utterance("u")], options={"lm_scale": float("nan")})
