"""The service under load: latency, throughput, refusals, liveness, and what HTTP adds to the engine's own time.

    python benchmarks/service.py [--bundle DIR] [--lists FILE] [--threads N] [--seconds S] [--rounds N] [--quick]

A real server process on loopback is loaded by another process (benchmarks/load.py). Without --bundle it serves a 5-gram
of the example text and a network of 200 hidden units and 10,000 classes with random weights, half each: speed does not
depend on them. Each request is one real 100-best list, its answer the full ranking.

Closed loop: 1, 8 and 32 clients, each sending its next list when it has its answer. The throughput of 32 is called the
capacity. Open loop: lists arrive at shares of the capacity, come what may, and latency runs from when they were due.
"Poisson" arrivals are independent of each other; "steady" ones come at equal distances, as wrk2 sends them. For scale:
a server that takes one request after another, all of equal cost, has p99 of about 5 p50 at 80 % of its capacity when
arrivals are Poisson, whatever its speed (M/D/1); that figure is simulated and printed beside.

What HTTP adds: clients keep the server saturated, then this process scores the same lists by the engine alone, in
batches as large as the server's were; in turns, with equal thread counts, the other process idle meanwhile. Medians.
"""

import argparse
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from dynamic import EXAMPLE, random_network
from figures import Figure, write
from live_sessions import address

from models.bundle import Bundle, add_elman, add_kenlm, create_bundle, load_bundle, set_threads
from models.corpus import sentences, word_counts
from models.kn_training import KneserNeyOptions, train_kneser_ney
from models.nbest import NBest
from models.normaliser import Normaliser
from models.score import Weights
from models.tuning_command import read_nbest

LOAD = Path(__file__).with_name("load.py")
CLIENTS = (1, 8, 32)
OPEN = (("poisson", 0.5), ("poisson", 0.8), ("steady", 0.8), ("poisson", 1.2))
OVERHEAD_CLIENTS = 8
DEADLINE_S = 3.0
MOST_OVERHEAD, MOST_SPREAD, MOST_LIVE_MS = 0.15, 3, 20


@dataclass(frozen=True)
class Work:
    """What is sent again and again: requests of one list each, and the words of each."""

    lists: list[NBest]
    bodies: list[str]
    words: list[int]


def work_of(lists: list[NBest]) -> Work:
    """The lists as requests."""
    bodies, words = [], []
    for nbest in lists:
        hypotheses = [{"text": h.text, "acoustic_score": h.acoustic} for h in nbest.hypotheses]
        bodies.append(json.dumps({"utterances": [{"id": nbest.utterance_id, "hypotheses": hypotheses}]}))
        words.append(sum(len(h.text.split()) for h in nbest.hypotheses))
    return Work(lists, bodies, words)


def build(folder: Path) -> None:
    """A bundle of a 5-gram and a network with random weights."""
    normaliser = Normaliser()
    text = list(sentences([EXAMPLE / "ljspeech_text.txt.xz"], normaliser))
    vocabulary, model = random_network(word_counts(text))
    manifest = create_bundle(folder, normaliser, vocabulary)
    train_kneser_ney(text, vocabulary, folder / "kn5.kenlm", KneserNeyOptions(memory="500M"))
    add_kenlm(folder, manifest, "kn5", {})
    add_elman(folder, manifest, "rnn", model)
    manifest.weights = Weights(interpolation={"kn5": 0.5, "rnn": 0.5})
    manifest.write(folder)


@contextmanager
def server(bundle: Path, threads: int, log: Path) -> Iterator[str]:
    """Serve a bundle for a while; its address."""
    command = [str(Path(sys.executable).with_name("nbest")), "serve", str(bundle), "--port", "0"]
    environment = {
        **os.environ,
        "NBEST_THREADS": str(threads),
        "NBEST_SESSION_STORE": "memory:",
        "NBEST_LOG_REQUESTS": "false",
        "NBEST_DEADLINE_S": str(DEADLINE_S),
        "OMP_NUM_THREADS": str(threads),
    }
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
    try:
        url = address(process, log)
        while httpx.get(f"{url}/health/ready").status_code != httpx.codes.OK:
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def load(url: str, work: Work, **plan: Any) -> dict[str, Any]:
    """What the load generator reports. plan: as benchmarks/load.py takes it."""
    document = json.dumps({"url": url, "bodies": work.bodies, "words": work.words, **plan})
    done = subprocess.run([sys.executable, str(LOAD)], input=document, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the load generator failed:\n{done.stderr}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def quantile(values: list[float], share: float) -> float:
    """The value that a share of all do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def figures_of(label: str, report: dict[str, Any], live: list[float], late: list[float]) -> list[Figure]:
    """What one run shows. live, late: take up the times of /health/live, and how late the generator asked for it."""
    waits, statuses = report["waits"], {int(status): n for status, n in report["statuses"].items()}
    live += report["live"]
    late += report["late"]
    out = [Figure(f"{label}: p{round(100 * share)}", 1e3 * quantile(waits, share), "ms") for share in (0.5, 0.95, 0.99)]
    answers = max(1, sum(statuses.values()))
    out += [
        Figure(f"{label}: throughput", report["words"] / report["seconds"], "words/s"),
        Figure(f"{label}: refused (429)", statuses.get(429, 0) / answers, "of all"),
        Figure(f"{label}: /health/live p99", 1e3 * quantile(report["live"], 0.99), "ms"),
        Figure(f"{label}: the generator itself, p99 late", 1e3 * quantile(report["late"], 0.99), "ms"),
        Figure(f"{label}: the generator itself", report["generator_cpu"] / report["seconds"], "cores"),
    ]
    # 0 stands for no answer at all.
    failed = {status: n for status, n in statuses.items() if n and status not in {200, 429}}
    return out + [Figure(f"{label}: failed ({status})", n, "requests", "0") for status, n in failed.items()]


def spread_of_equal_requests(load_share: float, requests: int = 200_000) -> float:
    """p99 / p50 of a server that takes requests of equal cost one by one, arrivals Poisson: simulated."""
    draw, arrived, free = random.Random(1), 0.0, 0.0
    waits = []
    for _ in range(requests):
        arrived += draw.expovariate(load_share)
        free = max(free, arrived) + 1.0
        waits.append(free - arrived)
    return quantile(waits, 0.99) / quantile(waits, 0.5)


def steps(url: str) -> tuple[float, float, float]:
    """Steps so far, lists scored in them, and the seconds they took, as the server counts them."""
    text = httpx.get(f"{url}/metrics").text

    def value(name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    return (
        value("nbest_batch_lists_count"),
        value("nbest_batch_lists_sum"),
        value('nbest_stage_seconds_sum{stage="score"}'),
    )


def engine_rate(bundle: Bundle, work: Work, lists_a_batch: int, seconds: float) -> float:
    """Words a second of the engine alone, lists prepared beforehand."""
    rescorer = bundle.rescorer
    prepared = [rescorer.prepare(nbest) for nbest in work.lists]
    numbers, words = itertools.cycle(range(len(prepared))), 0
    begun = time.perf_counter()
    while (spent := time.perf_counter() - begun) < seconds:
        batch = list(itertools.islice(numbers, lists_a_batch))
        rescorer.rescore([prepared[number] for number in batch], [bundle.weights] * len(batch))
        words += sum(work.words[number] for number in batch)
    return words / spent


def overhead(url: str, bundle: Bundle, work: Work, seconds: float, rounds: int, live: list[float]) -> list[Figure]:
    """The engine through HTTP against the engine alone, in turns."""
    through, alone, batches, busy = [], [], [], []
    for _ in range(rounds):
        before = steps(url)
        report = load(url, work, clients=OVERHEAD_CLIENTS, seconds=seconds)
        count, lists, scoring = (b - a for a, b in zip(before, steps(url), strict=True))
        live += report["live"]
        through.append(report["words"] / report["seconds"])
        batches.append(lists / max(1.0, count))
        busy.append(scoring / report["seconds"])
        alone.append(engine_rate(bundle, work, max(1, round(batches[-1])), seconds))
    ratios = [one / other - 1 for one, other in zip(alone, through, strict=True)]
    label = f"saturated by {OVERHEAD_CLIENTS} clients"
    return [
        Figure(f"{label}: through HTTP", statistics.median(through), "words/s"),
        Figure("the engine alone, same batches", statistics.median(alone), "words/s"),
        Figure(f"{label}: lists a step", statistics.median(batches), "lists"),
        Figure(f"{label}: the scoring thread is at work", statistics.median(busy), "of the time"),
        Figure("HTTP adds to the engine's time", statistics.median(ratios), "of it", f"< {MOST_OVERHEAD}"),
    ]


def run(bundle_folder: Path, arguments: argparse.Namespace, scratch: Path) -> list[Figure]:
    """All measurements of one server."""
    seconds = 2.0 if arguments.quick else arguments.seconds
    rounds = 1 if arguments.quick else arguments.rounds
    work = work_of(read_nbest(arguments.lists))
    set_threads(arguments.threads)
    bundle = load_bundle(bundle_folder)
    live: list[float] = []
    late: list[float] = []
    capacity = 0.0
    threads = f"{arguments.threads} scoring thread{'s' if arguments.threads > 1 else ''}"
    with server(bundle_folder, arguments.threads, scratch / "log") as url:
        load(url, work, clients=4, seconds=min(seconds, 4.0))
        figures = overhead(url, bundle, work, seconds / 3, rounds, live)
        for clients in CLIENTS:
            report = load(url, work, clients=clients, seconds=seconds)
            figures += figures_of(f"closed loop, {clients} clients", report, live, late)
            capacity = len(report["waits"]) / report["seconds"]
        figures.append(Figure(f"capacity, {threads}", capacity, "lists/s"))
        for arrivals, share in OPEN:
            report = load(url, work, rate=share * capacity, arrivals=arrivals, seconds=2 * seconds)
            label = f"{arrivals} arrivals at {share:.0%} of capacity"
            figures += figures_of(label, report, live, late)
            spread = quantile(report["waits"], 0.99) / max(1e-9, quantile(report["waits"], 0.5))
            goal = f"< {MOST_SPREAD}" if share == 0.8 else ""  # noqa: PLR2004 - the goal's own share
            figures.append(Figure(f"{label}: p99 / p50", spread, "x", goal))
    figures.append(Figure("p99 / p50 of M/D/1 at 80%, simulated", spread_of_equal_requests(0.8), "x"))
    figures.append(Figure("the generator itself throughout: latest", 1e3 * max(late), "ms"))
    figures.append(Figure("/health/live throughout: p50", 1e3 * quantile(live, 0.5), "ms"))
    figures.append(Figure("/health/live throughout: p99.9", 1e3 * quantile(live, 0.999), "ms", f"< {MOST_LIVE_MS}"))
    figures.append(Figure("/health/live throughout: slowest", 1e3 * max(live), "ms", f"< {MOST_LIVE_MS}"))
    return figures


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bundle", type=Path, help="serve this bundle; one is built when left out")
    parser.add_argument("--lists", type=Path, default=EXAMPLE / "lj.test.nbest.jsonl.gz", help="N-best JSONL to send")
    parser.add_argument("--threads", type=int, default=1, help="threads for matrix products")
    parser.add_argument("--seconds", type=float, default=15.0, help="of a closed loop; an open one runs twice as long")
    parser.add_argument("--rounds", type=int, default=5, help="turns of HTTP against the engine alone")
    parser.add_argument("--quick", action="store_true", help="a few seconds of each: whether it works, no figures")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        folder = arguments.bundle
        if folder is None:
            folder = scratch / "bundle"
            build(folder)
        figures = run(folder, arguments, scratch)
    if arguments.quick:
        for figure in figures:
            print(f"{figure.figure:70} {figure.value:12.4g} {figure.unit}")
        return
    print(f"written to {write('service', figures, 'make bench-service')}")


if __name__ == "__main__":
    main()
