from typing import Any

import httpx
import pytest

from clients.errors import BusyError, NoAnswerError
from clients.retry import RetryPolicy
from clients.sdk import Client


def test_a_restart_of_the_server_is_survived(colour: Any, answered: Any, fakes: Any) -> None:
    refused = httpx.ConnectError("Connection refused")
    script = fakes.script(httpx.ReadError("reset"), refused, refused, answered)
    assert colour.call(script, "rescore", [fakes.utterance("u")])["results"][0]["id"] == "u"
    assert colour.clock.pauses == [1.0, 2.0, 4.0]


def test_each_request_that_is_sent_again_is_the_same(colour: Any, answered: Any, fakes: Any) -> None:
    script = fakes.script(httpx.ConnectError("refused"), answered)
    colour.call(script, "rescore", [fakes.utterance("u")])
    first, second = script.requests
    assert first.content == second.content


def test_a_response_that_breaks_off_is_asked_for_again(colour: Any, answered: Any, fakes: Any) -> None:
    script = fakes.script(httpx.RemoteProtocolError("peer closed connection"), answered)
    assert colour.call(script, "rescore", [fakes.utterance("u")])["results"]


def test_a_busy_server_is_given_the_time_it_asks_for(colour: Any, answered: Any, fakes: Any) -> None:
    script = fakes.script(httpx.Response(429, headers={"Retry-After": "17"}), answered)
    assert colour.call(script, "rescore", [fakes.utterance("u")])["results"]
    assert colour.clock.pauses == [17.0]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_server_out_of_service_is_tried_again(colour: Any, answered: Any, fakes: Any, status: int) -> None:
    script = fakes.script(httpx.Response(status), httpx.Response(status), answered)
    assert colour.call(script, "rescore", [fakes.utterance("u")])["results"]
    assert colour.clock.pauses == [1.0, 2.0]


def test_each_retry_is_reported_with_its_reason(colour: Any, answered: Any, fakes: Any) -> None:
    colour.call(fakes.script(httpx.ConnectError("Connection refused"), answered), "rescore", [fakes.utterance("u")])
    assert colour.reports == [("no answer from the server: Connection refused", 1.0)]


def test_trying_ends_with_the_total_time(colour: Any, fakes: Any) -> None:
    # 1 + 2 + 4 + 8 + 8 + 8 + 8 + 8 + 8 = 55; the 5 seconds left of 60 are waited before the last try
    script = fakes.script(httpx.ConnectError("Connection refused"))
    with pytest.raises(NoAnswerError, match="Connection refused"):
        colour.call(script, "rescore", [fakes.utterance("u")])
    assert colour.clock.pauses == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 5.0]


def test_a_server_that_stays_busy_is_an_error_with_its_problem(colour: Any, fakes: Any) -> None:
    _, document = fakes.problem(429, "the queue is full")
    headers = {"Content-Type": "application/problem+json", "Retry-After": "50"}
    with pytest.raises(BusyError, match="429 Some Problem: the queue is full"):
        colour.call(
            fakes.script(httpx.Response(429, json=document, headers=headers)), "rescore", [fakes.utterance("u")]
        )
    assert colour.clock.pauses == [50.0]


def test_a_half_closed_response_on_a_real_socket_is_asked_for_again(service: Any, fakes: Any) -> None:
    service.script = [fakes.cut_off]
    policy = RetryPolicy(first_delay=0.01)
    with Client(service.url, retry=policy) as client:
        assert client.rescore_one(fakes.utterance("u"))["id"] == "u"
    assert len(service.requests) == 2
