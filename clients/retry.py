"""When a request is sent again, and when trying is over.

Sending again is safe: rescoring is pure, and a session knows what it has accepted by its utterance id.
"""

import email.utils
import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

BUSY = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off with jitter, up to a total time.

    total_seconds: how long to keep trying, counted from the first failure; 0 fails at once
    first_delay:   seconds before the first retry; doubled for each that follows
    longest_delay: seconds that no back-off exceeds; a server's Retry-After may
    jitter:        draws the part of a delay that is waited, in [0, 1); a half of it is always waited
    """

    total_seconds: float = 120.0
    first_delay: float = 0.25
    longest_delay: float = 10.0
    jitter: Callable[[], float] = field(default=random.random)

    def delay(self, retries: int, remaining: float, retry_after: float | None) -> float | None:
        """Seconds to wait before the next try; None when trying is over.

        retries:     how often the request has been sent again already
        remaining:   seconds of the total time that are left
        retry_after: what the server asked for, in seconds
        """
        if remaining <= 0 or (retry_after is not None and retry_after > remaining):
            return None
        longest = min(self.longest_delay, self.first_delay * 2.0 ** min(retries, 60))
        backoff = longest * (1 + self.jitter()) / 2
        return max(min(backoff, remaining), retry_after or 0.0)


def is_passing(error: httpx.TransportError) -> bool:
    """Whether a failure of the connection may pass by itself: refused, broken, timed out."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return False
        cause = cause.__cause__ or cause.__context__
    return isinstance(error, httpx.TimeoutException | httpx.NetworkError | httpx.RemoteProtocolError)


def retry_after(response: httpx.Response, wall_clock: Callable[[], float] = time.time) -> float | None:
    """The seconds that a Retry-After header asks for, as a number or a date; None where it asks nothing."""
    value = response.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        date = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, date.timestamp() - wall_clock())
