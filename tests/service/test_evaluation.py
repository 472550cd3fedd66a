"""POST /v1/evaluate: the same figures as offline, from lists sent as one document or line by line."""

import asyncio
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from clients.cli import main
from clients.evaluation.as_json import to_json
from clients.evaluation.evaluator import Choices
from clients.evaluation.normalisation import Normalisation
from clients.evaluation.run import Settings, evaluate
from service import evaluation_events, openapi_evaluation
from service.evaluation_schemas import EvaluationResult, ProgressEvent
from service.middleware import NDJSON
from service.settings import Limits

pytestmark = pytest.mark.anyio

WORDS = ("the", "cat", "sat", "sad", "on", "mat", "zebra", "The", "cat,")
LINES = {"content-type": NDJSON}


def utterances(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Lists of 1 to 6 hypotheses of 0 to 7 words, references of 1 to 7, three speakers, two sessions."""
    random_ = random.Random(seed)

    def text(least: int) -> str:
        return " ".join(random_.choices(WORDS, k=random_.randint(least, 7)))

    return [
        {
            "id": f"u{number}",
            "hypotheses": [
                {"text": text(0), "acoustic_score": -20 * random_.random(), "lm_score": -9 * random_.random()}
                for _ in range(random_.randint(1, 6))
            ],
            "reference": text(1),
            "speaker": f"s{number % 3}",
            "session_id": f"t{number % 2}",
        }
        for number in range(count)
    ]


def body(settings: dict[str, Any], lists: Iterable[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(document) + "\n" for document in (settings, *lists)).encode()


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    assert (answer.status_code, answer.headers["content-type"]) == (200, NDJSON), answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def last(answer: httpx.Response) -> dict[str, Any]:
    *before, event = events(answer)
    assert {one["event"] for one in before} <= {"progress"}
    return event


CASES: list[tuple[dict[str, Any], list[str], dict[str, Any]]] = [
    ({"resamples": 500, "seed": 3, "worst": 4, "confusions": 5}, [], {"seed": 3, "worst": 4, "confusions": 5}),
    (
        {
            "resamples": 500,
            "boundary_words": 3,
            "normalisation": {"lowercase": True, "strip_punctuation": True, "dropped_words": ["on"]},
            "options": {"lm_scale": 5, "interpolation": {"rnn": 1.0}},
        },
        ["--weight", "lm_scale=5", "--interpolation", "rnn=1"],
        {
            "boundary_words": 3,
            "normalisation": Normalisation(lowercase=True, strip_punctuation=True, dropped=frozenset({"on"})),
        },
    ),
    ({"resamples": 500, "options": {"decision": "mbr"}}, ["--decision", "mbr"], {}),
    ({"resamples": 500, "options": {"decision": "consensus"}}, ["--decision", "consensus"], {}),
    ({"resamples": 500, "log_base": "10"}, ["--log-base", "10"], {}),
]


def offline(
    folder: Path, bundle: Path, lists: Iterable[dict[str, Any]], options: list[str], choices: dict[str, Any]
) -> dict[str, Any]:
    """What `nbest rescore` and then `nbest evaluate --json` give."""
    nbest, results = folder / "set.jsonl", folder / "rescored.jsonl"
    nbest.write_text("".join(json.dumps(utterance) + "\n" for utterance in lists), encoding="utf-8")
    assert main(["rescore", str(nbest), "--bundle", str(bundle), "-o", str(results), "--quiet", *options]) == 0
    return to_json(evaluate([str(results)], Settings(set_name="set", choices=Choices(resamples=500, **choices))))


@pytest.mark.parametrize(("settings", "options", "choices"), CASES)
async def test_the_figures_are_those_of_rescoring_and_evaluating_offline(
    client: httpx.AsyncClient,
    bundle_folder: Path,
    tmp_path: Path,
    settings: dict[str, Any],
    options: list[str],
    choices: dict[str, Any],
) -> None:
    lists = utterances(60)
    expected = await asyncio.to_thread(offline, tmp_path, bundle_folder, lists, options, choices)
    named = {"set_name": "set", **settings}
    by_lines = last(await client.post("/v1/evaluate", content=body(named, lists), headers=LINES))
    assert by_lines.pop("event") == "result"
    assert by_lines == expected
    whole = await client.post("/v1/evaluate", json={**named, "utterances": lists})
    assert whole.json() == expected
    assert "seed 3" in expected["signatures"]["rescored"] or "seed 1" in expected["signatures"]["rescored"]


async def test_a_document_is_answered_with_events_where_they_are_accepted(client: httpx.AsyncClient) -> None:
    request = {"utterances": utterances(3), "resamples": 100}
    streamed = await client.post("/v1/evaluate", json=request, headers={"accept": NDJSON})
    assert last(streamed) == {"event": "result", **(await client.post("/v1/evaluate", json=request)).json()}


async def test_progress_counts_up_to_the_result(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_events, "PROGRESS_S", 0.001)
    lists = utterances(300)
    *progress, result = events(
        await client.post("/v1/evaluate", content=body({"resamples": 2000}, lists), headers=LINES)
    )
    done = [event["done"] for event in progress]
    assert len(done) > 5
    assert done == sorted(done)
    for event in progress:
        TypeAdapter(ProgressEvent).validate_python(event)
    summarising = progress[-1]
    first, rescored, _ = result["systems"]
    assert summarising == {
        "event": "progress",
        "stage": "summarising",
        "done": 300,
        "skipped": 0,
        "words": rescored["reference_words"],
        "errors": rescored["errors"],
        "first_pass_errors": first["errors"],
    }


async def test_utterances_without_a_reference_are_left_out_and_counted_where_that_is_asked_for(
    client: httpx.AsyncClient,
) -> None:
    lists = utterances(20)
    for number in (3, 7):
        del lists[number]["reference"]
    lists[9]["reference"] = None
    settings = {"resamples": 100, "skip_missing_reference": True}
    result = last(await client.post("/v1/evaluate", content=body(settings, lists), headers=LINES))
    assert (result["utterances"], result["skipped_without_reference"]) == (17, 3)
    kept = [utterance for utterance in lists if utterance.get("reference") is not None]
    without = last(await client.post("/v1/evaluate", content=body({"resamples": 100}, kept), headers=LINES))
    assert result["systems"] == without["systems"]


async def test_breakdowns_are_those_asked_for(client: httpx.AsyncClient) -> None:
    request = {"utterances": utterances(9), "resamples": 100}
    everything = (await client.post("/v1/evaluate", json=request)).json()
    assert list(everything["breakdowns"]) == ["speaker", "session", "length", "position"]
    chosen = (await client.post("/v1/evaluate", json={**request, "breakdowns": ["speaker"]})).json()
    assert chosen["breakdowns"] == {"speaker": everything["breakdowns"]["speaker"]}
    assert chosen["systems"] == everything["systems"]


async def test_blank_lines_and_the_line_ends_of_other_systems_change_nothing(client: httpx.AsyncClient) -> None:
    lists = utterances(5)
    plain = body({"resamples": 100}, lists)
    odd = b"\n" + plain.replace(b"\n", b"\r\n \r\n").rstrip()
    answers = [await client.post("/v1/evaluate", content=content, headers=LINES) for content in (plain, odd)]
    assert last(answers[0]) == last(answers[1])


def change(number: int, **fields: Any) -> Callable[[], bytes]:
    """Five lists, of which one is changed; list 0 stands in line 2."""

    def made() -> bytes:
        lists = utterances(5)
        lists[number] |= fields
        return body({}, lists)

    return made


@pytest.mark.parametrize(
    ("made", "kind", "field", "utterance"),
    [
        (change(2, reference=None), "invalid-request", "line 4.reference", "u2"),
        (change(4, id="u1"), "invalid-request", "line 6.id", "u1"),
        (change(1, hypotheses=[]), "invalid-request", "line 3.hypotheses", "u1"),
        (change(1, noise=1), "invalid-request", "line 3.noise", "u1"),
        (
            change(3, hypotheses=[{"text": "<s>", "acoustic_score": 0.0}]),
            "invalid-nbest",
            "line 5.hypotheses[0].text",
            "u3",
        ),
        (change(0, hypotheses=[{"text": "a"}]), "invalid-request", "line 2.hypotheses[0].acoustic_score", "u0"),
    ],
)
async def test_what_is_wrong_in_a_line_is_an_error_event_that_names_it(
    client: httpx.AsyncClient, made: Callable[[], bytes], kind: str, field: str, utterance: str
) -> None:
    error = last(await client.post("/v1/evaluate", content=made(), headers=LINES))
    assert (error["event"], error["type"]) == ("error", f"/problems/{kind}")
    assert [(entry["field"], entry["utterance"]) for entry in error["errors"]] == [(field, utterance)]


async def test_an_earlier_line_of_the_same_id_is_named(client: httpx.AsyncClient) -> None:
    error = last(await client.post("/v1/evaluate", content=change(4, id="u1")(), headers=LINES))
    assert "line 3" in error["detail"]


async def test_a_line_that_is_no_json_is_named(client: httpx.AsyncClient) -> None:
    content = body({}, utterances(2)) + b'{"id": "u2", '
    error = last(await client.post("/v1/evaluate", content=content, headers=LINES))
    assert (error["type"], error["detail"][:7]) == ("/problems/not-json", "line 4:")


@pytest.mark.parametrize(
    ("content", "status", "detail"),
    [
        (b"", 422, "first line holds the settings"),
        (body({}, utterances(1)).partition(b"\n")[2], 422, "no utterance"),
        (b'{"resample": 1}\n', 422, "line 1.resample"),
        (b'{"resamples": 99}\n', 422, "line 1: resamples"),
        (b"{\n", 400, "line 1"),
        (b'{"options": {"state": "carried"}}\n', 422, "each utterance anew"),
        (b'{"options": {"interpolation": {"whisper": 1.0}}}\n', 422, "whisper"),
        (b'{"system": "oracle"}\n', 422, "oracle"),
    ],
)
async def test_settings_that_are_wrong_are_refused_before_anything_is_evaluated(
    client: httpx.AsyncClient, content: bytes, status: int, detail: str
) -> None:
    answer = await client.post("/v1/evaluate", content=content, headers=LINES)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert detail in answer.text


async def test_what_is_wrong_in_a_document_is_a_problem_that_names_the_utterance(client: httpx.AsyncClient) -> None:
    lists = utterances(3)
    del lists[1]["reference"]
    answer = await client.post("/v1/evaluate", json={"utterances": lists})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "utterances[1].reference"


@pytest.mark.parametrize("reference", ["", "  "])
async def test_references_without_a_word_have_no_error_rate(client: httpx.AsyncClient, reference: str) -> None:
    lists = [{**utterance, "reference": reference} for utterance in utterances(2)]
    answer = await client.post("/v1/evaluate", json={"utterances": lists})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/cannot-evaluate")


async def test_a_set_whose_references_are_all_missing_has_no_error_rate(client: httpx.AsyncClient) -> None:
    lists = [{**utterance, "reference": None} for utterance in utterances(2)]
    answer = await client.post("/v1/evaluate", json={"utterances": lists, "skip_missing_reference": True})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/cannot-evaluate")


async def test_other_types_of_body_are_refused(client: httpx.AsyncClient) -> None:
    for headers in ({"content-type": "text/plain"}, {**LINES, "content-encoding": "gzip"}):
        answer = await client.post("/v1/evaluate", content=b"{}", headers=headers)
        assert answer.status_code == 415


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        (Limits(max_evaluation_lines=4), "request-too-large"),
        (Limits(max_evaluation_line_bytes=100), "request-too-large"),
        (Limits(max_evaluation_draws=4 * 10_000), "request-too-large"),
        (Limits(max_list_tokens=2), "list-too-large"),
    ],
)
async def test_a_stream_has_limits(serve: Callable[..., Any], bundle: Any, limits: Limits, kind: str) -> None:
    async with serve(bundle, limits) as client:
        error = last(await client.post("/v1/evaluate", content=body({}, utterances(5)), headers=LINES))
    assert (error["event"], error["type"]) == ("error", f"/problems/{kind}")


async def test_as_many_lines_as_are_allowed_are_taken(serve: Callable[..., Any], bundle: Any) -> None:
    async with serve(bundle, Limits(max_evaluation_lines=5, max_evaluation_draws=5 * 100)) as client:
        content = body({"resamples": 100}, utterances(5))
        assert last(await client.post("/v1/evaluate", content=content, headers=LINES))["event"] == "result"


async def test_a_stream_may_be_longer_than_a_body(serve: Callable[..., Any], bundle: Any) -> None:
    content = body({"resamples": 100}, utterances(100))
    limits = Limits(max_body_bytes=len(content) // 4, max_inflight_bytes=len(content) // 4)
    async with serve(bundle, limits) as client:
        assert (await client.post("/v1/evaluate", content=content)).status_code == 413
        assert last(await client.post("/v1/evaluate", content=content, headers=LINES))["utterances"] == 100


async def test_a_document_holds_no_more_utterances_than_a_request(serve: Callable[..., Any], bundle: Any) -> None:
    async with serve(bundle, Limits(max_utterances=4)) as client:
        answer = await client.post("/v1/evaluate", json={"utterances": utterances(5)})
    assert (answer.status_code, answer.json()["type"]) == (413, "/problems/request-too-large")


async def test_the_documented_requests_are_answered_as_documented(client: httpx.AsyncClient) -> None:
    whole = await client.post("/v1/evaluate", json=openapi_evaluation.REQUEST)
    TypeAdapter(EvaluationResult).validate_python(whole.json())
    lines = await client.post("/v1/evaluate", content=openapi_evaluation.LINES_EXAMPLE, headers=LINES)
    assert last(lines) == {"event": "result", **whole.json()}
    TypeAdapter(ProgressEvent).validate_python(openapi_evaluation.PROGRESS_EXAMPLE)


async def test_the_schema_holds_for_all_that_can_be_answered(client: httpx.AsyncClient) -> None:
    request = {"utterances": utterances(30), "worst": 3, "normalisation": {"lowercase": True, "unicode_form": "NFC"}}
    answer = (await client.post("/v1/evaluate", json=request)).json()
    TypeAdapter(EvaluationResult).validate_python(answer)
