"""A thousand live sessions on one server: how long an utterance takes, and how much memory all of them do."""

import asyncio
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import Figure

from clients.sdk import AsyncClient
from clients.types import Utterance
from models.bundle import add_elman, create_bundle
from models.nbest import NBest
from models.normaliser import Normaliser
from models.rnnlm import ElmanLM
from models.score import Weights
from models.vocabulary import Vocabulary

HYPOTHESES = 10
AT_ONCE = 8
ROUNDS = 2
SECONDS_TO_START = 60


def live_sessions(vocabulary: Vocabulary, model: ElmanLM, lists: list[NBest], sessions: int) -> list[Figure]:
    """Serve the network, keep so many sessions and have each rescore a few 10-best lists, in closed loop."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest = create_bundle(folder / "bundle", Normaliser(), vocabulary)
        add_elman(folder / "bundle", manifest, "rnn", model)
        manifest.weights = Weights(interpolation={"rnn": 1.0})
        manifest.write(folder / "bundle")
        command = [str(Path(sys.executable).with_name("nbest")), "serve", str(folder / "bundle"), "--port", "0"]
        environment = {**os.environ, "NBEST_SESSION_STORE": str(folder / "sessions.sqlite3")}
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            url = address(server, folder / "log")
            waits, seconds = asyncio.run(_talk(url, lists, sessions))
            resident = _resident_mib(server.pid)
        finally:
            server.terminate()
            server.wait(60)
    waits.sort()
    label = f"{sessions} live sessions, {HYPOTHESES}-best lists, {AT_ONCE} at a time"
    return [
        Figure(f"{label}: p50", 1e3 * waits[len(waits) // 2], "ms an utterance"),
        Figure(f"{label}: p99", 1e3 * waits[int(0.99 * len(waits))], "ms an utterance"),
        Figure(f"{label}: throughput", len(waits) / seconds, "utterances/s"),
        Figure(f"{label}: memory of the server", resident, "MiB"),
    ]


def address(server: subprocess.Popen[bytes], log: Path) -> str:
    """Where a server that has just been started listens, as its log says."""
    begun = time.monotonic()
    while time.monotonic() - begun < SECONDS_TO_START:
        if found := re.search(r'"host":"([^"]+)","port":(\d+).*"listening"', log.read_text()):
            return f"http://{found[1]}:{found[2]}"
        if server.poll() is not None:
            break
        time.sleep(0.1)
    sys.exit(f"the service did not start; it said:\n{log.read_text()}")


async def _talk(url: str, lists: list[NBest], sessions: int) -> tuple[list[float], float]:
    """Seconds of each answer, and of all of them."""
    places = asyncio.Semaphore(AT_ONCE)
    waits: list[float] = []
    async with AsyncClient(url) as client:
        handles = [client.session(f"speaker-{number}", keep=True) for number in range(sessions)]

        async def made(number: int) -> None:
            async with places:
                await handles[number].open()

        async def spoken(number: int, turn: int) -> None:
            async with places:
                begun = time.perf_counter()
                await handles[number].rescore(_utterance(lists[(number + turn) % len(lists)], turn), compact=True)
                waits.append(time.perf_counter() - begun)

        await asyncio.gather(*(made(number) for number in range(sessions)))
        turns = [(number, turn) for turn in range(ROUNDS) for number in range(sessions)]
        random.Random(1).shuffle(turns)
        begun = time.perf_counter()
        await asyncio.gather(*(spoken(number, turn) for number, turn in turns))
        return waits, time.perf_counter() - begun


def _utterance(nbest: NBest, turn: int) -> Utterance:
    hypotheses = nbest.hypotheses[:HYPOTHESES]
    return {
        "id": f"{nbest.utterance_id}-{turn}",
        "hypotheses": [{"text": entry.text, "acoustic_score": entry.acoustic} for entry in hypotheses],
    }


def _resident_mib(process: int) -> float:
    """Resident memory, where /proc tells it; 0 elsewhere."""
    status = Path(f"/proc/{process}/status")
    found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) / 1024 if found else 0.0
