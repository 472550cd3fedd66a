import ssl
from email.utils import formatdate

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.retry import RetryPolicy, is_passing, retry_after


def test_delays_double_up_to_the_longest() -> None:
    # with the jitter at its highest: 1/4, 1/2, 1, 2, 4, then the longest, 5
    policy = RetryPolicy(first_delay=0.25, longest_delay=5.0, jitter=lambda: 1.0)
    assert [policy.delay(n, 100, None) for n in range(7)] == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_half_of_a_delay_is_always_waited() -> None:
    assert RetryPolicy(first_delay=1.0, jitter=lambda: 0.0).delay(0, 100, None) == 0.5


@given(st.integers(0, 5000), st.floats(0.001, 1000), st.floats(0, 1))
def test_no_delay_outlasts_the_time_that_is_left(retries: int, remaining: float, jitter: float) -> None:
    delay = RetryPolicy(jitter=lambda: jitter).delay(retries, remaining, None)
    assert delay is not None
    assert 0 < delay <= remaining


def test_what_the_server_asks_for_is_waited() -> None:
    assert RetryPolicy(longest_delay=1.0).delay(0, 100, 30.0) == 30.0


@pytest.mark.parametrize(("remaining", "asked"), [(0.0, None), (-1.0, None), (10.0, 11.0)])
def test_trying_is_over_when_the_time_is_over_or_too_short_for_the_server(
    remaining: float, asked: float | None
) -> None:
    assert RetryPolicy().delay(0, remaining, asked) is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        (" 0 ", 0.0),
        (formatdate(1_000_030, usegmt=True), 30.0),
        (formatdate(999_000, usegmt=True), 0.0),
        ("-3", None),
        ("1e9", None),
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str, seconds: float | None) -> None:
    assert retry_after(httpx.Response(429, headers={"Retry-After": value}), lambda: 1_000_000.0) == seconds


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (httpx.ConnectError("refused"), True),
        (httpx.ConnectTimeout("late"), True),
        (httpx.ReadTimeout("late"), True),
        (httpx.ReadError("reset"), True),
        (httpx.RemoteProtocolError("cut off"), True),
        (httpx.UnsupportedProtocol("ftp"), False),
        (httpx.LocalProtocolError("our fault"), False),
        (httpx.ProxyError("refused"), False),
    ],
)
def test_failures_of_the_connection_may_pass(error: httpx.TransportError, *, passing: bool) -> None:
    assert is_passing(error) is passing


def test_a_certificate_that_is_not_trusted_does_not_pass() -> None:
    error = httpx.ConnectError("certificate verify failed")
    error.__cause__ = ssl.SSLCertVerificationError("self-signed certificate")
    assert not is_passing(error)
