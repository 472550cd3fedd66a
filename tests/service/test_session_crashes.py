"""A service that is killed again and again loses nothing that it answered, and does nothing twice.

Sessions are talked to while `nbest serve` is killed at random moments, with a signal that it cannot catch. Whoever
gets no answer repeats the request. In the end every answer and every session must be, bit for bit, what they are in a
service that was never killed. CRASHES says how often it is killed.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.anyio]

NBEST = Path(sys.executable).with_name("nbest")
CRASHES = int(os.environ.get("CRASHES", "5"))
SEED = 2026
PATIENCE_S = 60
LONGEST_LIFE_S = 2.0
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "far": {"tau": 3, "rate": 0.3},
    "told": {"learn_from": "confirmed"},
    "reset": {"state": "reset", "max_loss_rise": 0.0},
    "static": {"weights": "static"},
}
WORDS = ("the", "cat", "sat", "sad", "on", "mat", "zebra")


class Service:
    """`nbest serve` on one store, started anew after each death."""

    def __init__(self, bundle: Path, folder: Path) -> None:
        self.folder = folder
        self.arguments = [str(NBEST), "serve", str(bundle), "--port", "0"]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NBEST_")}
        self.environment = {
            **kept,
            "NBEST_THREADS": "1",
            "NBEST_SESSION_STORE": str(folder / "sessions.sqlite3"),
            # States leave memory and come back all the time; lists are scored one by one, so that no score depends on
            # which lists happened to wait together.
            "NBEST_SESSION_MEMORY_BYTES": "20000",
            "NBEST_SESSION_SNAPSHOT_EVERY": "3",
            "NBEST_MAX_BATCH_TOKENS": "1",
        }
        self.url: str | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.lives = 0

    def spawn(self) -> None:
        self.lives += 1
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(self.arguments, stderr=log, env=self.environment)

    async def start(self) -> None:
        self.spawn()
        deadline = time.monotonic() + PATIENCE_S
        while (url := self._address()) is None:
            assert self.process is not None
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            await asyncio.sleep(0.02)
        self.url = url

    def kill(self) -> None:
        self.url = None
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE_S)

    @property
    def _log(self) -> Path:
        return self.folder / f"stderr-{self.lives}"

    def _address(self) -> str | None:
        for line in self._log.read_text().splitlines():
            if line.startswith("{") and line.endswith("}") and json.loads(line)["event"] == "listening":
                return f"http://127.0.0.1:{json.loads(line)['port']}"
        return None


@dataclass
class Speaker:
    """Talks to one session, always about the same things in the same order.

    steps:   how many were taken
    version: the session's, as last answered
    answers: to each step, without what depends on when it was asked
    """

    name: str
    service: Service
    steps: int = 0
    version: int = 0
    answers: list[dict[str, Any]] = field(default_factory=list)

    async def talk(self, is_over: Callable[[], bool], most: int = sys.maxsize) -> None:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            await self.ask(client, "POST", "/v1/sessions", {"id": self.name, "options": OPTIONS[self.name]})
            while self.steps < most and not is_over():
                self.answers.append(await self.step(client))
                self.steps += 1

    async def step(self, client: httpx.AsyncClient) -> dict[str, Any]:
        draw = random.Random(f"{self.name} {self.steps}")
        path = f"/v1/sessions/{self.name}"
        if self.steps % 25 == 24:
            return await self.ask(client, "POST", f"{path}/reset", {})
        if self.steps % 5 == 4:
            earlier = draw.choice((self.steps - 1, self.steps - 2, self.steps - 4))
            text = " ".join(draw.choices(WORDS, k=draw.randrange(5)))
            return await self.ask(client, "PUT", f"{path}/utterances/u{earlier}/transcript", {"text": text})
        texts = [" ".join(draw.choices(WORDS, k=draw.randrange(6))) for _ in range(3)]
        hypotheses = [{"text": text, "acoustic_score": -10.0 - i} for i, text in enumerate(texts)]
        return await self.ask(
            client, "POST", f"{path}/rescore", {"utterance": {"id": f"u{self.steps}", "hypotheses": hypotheses}}
        )

    async def ask(self, client: httpx.AsyncClient, method: str, path: str, body: Any) -> dict[str, Any]:
        """The answer to a request, repeated until there is one."""
        repeated = False
        headers = {"if-match": f'"{self.version}"'} if path.endswith("/reset") else {}
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            url = self.service.url
            try:
                if url is not None:
                    if repeated and path != "/v1/sessions":
                        # At the last step that was answered, or at the one whose answer was on its way.
                        there = (await client.get(f"{url}/v1/sessions/{self.name}")).json()
                        assert there["version"] in {self.version, self.version + 1}
                    response = await client.request(method, f"{url}{path}", json=body, headers=headers)
                    return await self.understood(client, url, response, repeated=repeated)
            except httpx.TransportError:
                repeated = True
            await asyncio.sleep(0.02)
        pytest.fail(f"no answer to {method} {path}")

    async def understood(
        self, client: httpx.AsyncClient, url: str, response: httpx.Response, *, repeated: bool
    ) -> dict[str, Any]:
        answer: dict[str, Any] = response.json()
        if repeated and response.status_code == 409:
            # It was made, or reset, by the request that got no answer.
            assert answer["type"] in {"/problems/session-exists", "/problems/version-conflict"}
            response = await client.get(f"{url}/v1/sessions/{self.name}")
            answer = response.json()
        assert response.is_success, response.text
        assert repeated or not answer.get("repeated", False)
        self.version = answer["version"]
        return {name: value for name, value in answer.items() if name not in {"repeated", "used", "created"}}


async def exports(service: Service) -> dict[str, bytes]:
    out = {}
    async with httpx.AsyncClient(base_url=service.url or "", timeout=PATIENCE_S) as client:
        for name in OPTIONS:
            response = await client.get(f"/v1/sessions/{name}/export")
            assert response.status_code == 200
            out[name] = response.content
    return out


async def kill_at_random(service: Service) -> None:
    draw = random.Random(SEED)
    for number in range(CRASHES):
        if number % 10 == 9:
            # Now and then it does not even live to see a request.
            service.spawn()
            await asyncio.sleep(draw.uniform(0.0, 3.0))
        else:
            await service.start()
            await asyncio.sleep(draw.uniform(0.0, LONGEST_LIFE_S))
        service.kill()
    await service.start()


async def all_of(*works: Coroutine[Any, Any, None]) -> None:
    """Do all of it at once; when one fails the others end."""
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work)


async def test_a_service_that_is_killed_again_and_again_loses_nothing_and_does_nothing_twice(
    bundle_folder: Path, tmp_path: Path
) -> None:
    killed, spared = tmp_path / "killed", tmp_path / "spared"
    killed.mkdir()
    spared.mkdir()
    services = Service(bundle_folder, killed), Service(bundle_folder, spared)
    over = False

    async def kill() -> None:
        nonlocal over
        await kill_at_random(services[0])
        over = True

    try:
        speakers = [Speaker(name, services[0]) for name in OPTIONS]
        await all_of(kill(), *(speaker.talk(lambda: over) for speaker in speakers))
        assert min(speaker.steps for speaker in speakers) > CRASHES
        await services[1].start()
        again = [Speaker(speaker.name, services[1]) for speaker in speakers]
        await all_of(*(one.talk(lambda: False, other.steps) for one, other in zip(again, speakers, strict=True)))
        for one, other in zip(again, speakers, strict=True):
            assert one.answers == other.answers
        assert await exports(services[0]) == await exports(services[1])
    finally:
        for service in services:
            service.kill()
