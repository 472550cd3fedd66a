"""A bounded load generator for the service, in a process of its own: closed or open loop, over loopback.

    python benchmarks/load.py < plan.json > report.json

plan.json: {"url", "bodies": [TEXT, ...], "words": [NUMBER, ...], "seconds", and one of
    "clients": N            closed loop: N connections, each sends its next request when it has its answer
    "rate": R, "arrivals": "poisson" | "steady"   open loop: R requests a second, come what may}

In open loop the latency of a request runs from the moment at which it was due, so a service that stalls is charged for
everybody whom it kept waiting, not only for whom it was serving (no coordinated omission). Requests are bytes made
beforehand and answers are read but not parsed, so that the generator costs little; what it costs is reported. All the
while /health/live is asked on a connection of its own, and how late the generator itself was is reported beside it.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.parse import urlsplit

LIVE_EVERY_S = 0.02
# An open loop opens a connection where none is free, up to so many.
MOST_CONNECTIONS = 512
GRACE_S = 40.0
OK, TOO_MANY = 200, 429


class Connection:
    """A kept-alive HTTP connection that sends bytes and reads whole answers."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer. A connection that was closed while nobody used it is opened anew, once."""
        if self._streams is not None:
            try:
                return await self._ask(request, *self._streams)
            except (OSError, EOFError):
                self.close()
        self._streams = await asyncio.open_connection(self._host, self._port, limit=2**20)
        return await self._ask(request, *self._streams)

    async def _ask(
        self, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[int, bytes]:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        lower = head.lower()
        _, _, rest = lower.partition(b"content-length:")
        body = await reader.readexactly(int(rest[: rest.index(b"\r")]))
        if b"connection: close" in lower:
            self.close()
        return int(head[9:12]), body

    def close(self) -> None:
        """Close it; the next request opens another."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


@dataclass
class Report:
    """What was seen. Times in seconds; words are those of answered requests."""

    waits: list[float] = field(default_factory=list)
    live: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    words: int = 0
    bytes: int = 0


class Generator:
    """Sends requests in turn and notes what becomes of them."""

    def __init__(self, plan: dict[str, Any]) -> None:
        address = urlsplit(plan["url"])
        self._host, self._port = str(address.hostname), int(address.port or 80)
        self._requests = [_post(body.encode(), address.netloc) for body in plan["bodies"]]
        self._words: list[int] = plan["words"]
        self._live = f"GET /health/live HTTP/1.1\r\nhost: {address.netloc}\r\n\r\n".encode()
        self._plan = plan
        self._numbers = count()
        self._free: list[Connection] = []
        self._made = 0
        self.report = Report()

    async def run(self) -> dict[str, Any]:
        """Carry the plan out."""
        watching = asyncio.create_task(self._watch())
        begun, used = time.monotonic(), time.process_time()
        end = begun + self._plan["seconds"]
        if "clients" in self._plan:
            await asyncio.gather(*(self._client(end) for _ in range(self._plan["clients"])))
        else:
            await self._arrivals(begun, end)
        seconds, busy = time.monotonic() - begun, time.process_time() - used
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        report = self.report
        return {
            "seconds": seconds,
            "generator_cpu": busy,
            "waits": report.waits,
            "live": report.live,
            "late": report.late,
            "statuses": report.statuses,
            "words": report.words,
            "bytes": report.bytes,
        }

    async def _client(self, end: float) -> None:
        connection = Connection(self._host, self._port)
        while time.monotonic() < end:
            await self._send(connection, time.monotonic())
        connection.close()

    async def _arrivals(self, begun: float, end: float) -> None:
        draw, gap = random.Random(1), 1 / self._plan["rate"]
        due, sent = begun, set()
        while True:
            due += draw.expovariate(1 / gap) if self._plan["arrivals"] == "poisson" else gap
            if due >= end:
                break
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.create_task(self._arrive(due))
            sent.add(task)
            task.add_done_callback(sent.discard)
        if sent:
            _, unanswered = await asyncio.wait(sent, timeout=GRACE_S)
            self.report.statuses[0] += len(unanswered)

    async def _arrive(self, due: float) -> None:
        if self._free:
            connection = self._free.pop()
        elif self._made < MOST_CONNECTIONS:
            connection = Connection(self._host, self._port)
            self._made += 1
        else:
            self.report.statuses[0] += 1
            return
        await self._send(connection, due)
        self._free.append(connection)

    async def _send(self, connection: Connection, due: float) -> None:
        number = next(self._numbers) % len(self._requests)
        report = self.report
        try:
            status, body = await connection.ask(self._requests[number])
        except (OSError, EOFError):
            report.statuses[0] += 1
            connection.close()
            return
        report.statuses[status] += 1
        if status == OK:
            report.waits.append(time.monotonic() - due)
            report.words += self._words[number]
            report.bytes += len(body)
        elif status == TOO_MANY and "clients" in self._plan:
            await asyncio.sleep(0.1)

    async def _watch(self) -> None:
        """Ask after the service's life at a steady pace, and see how late this process itself is."""
        connection = Connection(self._host, self._port)
        due = time.monotonic()
        while True:
            due = max(due + LIVE_EVERY_S, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            self.report.late.append(time.monotonic() - due)
            begun = time.monotonic()
            await connection.ask(self._live)
            self.report.live.append(time.monotonic() - begun)


def _post(body: bytes, host: str) -> bytes:
    head = f"POST /v1/rescore HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


if __name__ == "__main__":
    json.dump(asyncio.run(Generator(json.load(sys.stdin)).run()), sys.stdout)
