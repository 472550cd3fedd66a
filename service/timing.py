"""Where the time of one request went, for its Server-Timing header.

The header's syntax: https://www.w3.org/TR/server-timing/
"""

import time

HEADER = "server-timing"


class Timing:
    """Seconds by stage of one request, in the order in which the stages came, from when this object is made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def add(self, name: str, seconds: float) -> None:
        """Note what a stage took; one that comes again adds to what it took before."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def header(self) -> str:
        """The header's value, durations in milliseconds; total is the time since this object was made."""
        stages = {**self.seconds, "total": time.perf_counter() - self._began}
        return ", ".join(f"{name};dur={1e3 * max(0.0, seconds):.3f}" for name, seconds in stages.items())
