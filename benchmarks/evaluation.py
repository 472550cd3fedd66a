"""`nbest evaluate` on many long lists: time and peak memory.

    python benchmarks/evaluation.py [--utterances N] [--hypotheses N] [--seed N]

A seeded stream of results, as `nbest rescore` writes them, goes into `nbest evaluate -` through a pipe, so that nothing
but the evaluation itself holds memory. References have 5 to 35 words of a vocabulary of 20,000 with Zipf's frequencies;
about one word in eight has two or three alternatives, and each hypothesis takes one of them at each such place, as
paths through a lattice do. A tenth of the utterances is evaluated first: the difference tells what an utterance costs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from figures import Figure, write

VOCABULARY = 20_000
SHORTEST, LONGEST = 5, 35
UNSURE = 1 / 8
NBEST = Path(sys.executable).with_name("nbest")
SPEAKERS = 500
# The numbers of a ranked hypothesis, which evaluation reads past.
REST = (
    '"posterior": 0.01, "acoustic_score": -2200.5, "lm_score": -41.25, "lm": -77.125, "words": 20, "oov_words": 0, '
    '"contributions": {"acoustic": -2200.5, "first_pass": 0.0, "lm": -771.25, "words": 0.0, "oov": 0.0}, '
    '"lm_by_model": {"kn5": -80.5, "rnn": -79.25}'
)
MINUTES = 30
MEBIBYTES = 1024


@dataclass(frozen=True)
class Cost:
    """What one run took. seconds: on the wall; cpu: of the evaluating process; memory: its peak, in MiB."""

    seconds: float
    cpu: float
    memory: float
    wer: float


def results(utterances: int, hypotheses: int, seed: int) -> Iterator[bytes]:
    """Lines of a result file; each word is the same however many utterances are asked for."""
    rng = np.random.default_rng(seed)
    words = np.array([f"w{rank}" for rank in range(VOCABULARY)], dtype=object)
    shares = 1 / np.arange(1, VOCABULARY + 1)
    shares = np.cumsum(shares / shares.sum())
    for number in range(utterances):
        length = int(rng.integers(SHORTEST, LONGEST + 1))
        reference = words[np.searchsorted(shares, rng.random(length))]
        taken = np.tile(reference, (hypotheses, 1))
        for place in np.flatnonzero(rng.random(length) < UNSURE):
            others = words[np.searchsorted(shares, rng.random(3))].tolist()
            # The word itself, another one, and two of: none, another one, one more after it.
            said = [reference[place], others[0], *rng.choice(["", others[1], f"{reference[place]} {others[2]}"], 2)]
            taken[:, place] = np.array(said, dtype=object)[rng.choice(4, hypotheses, p=(0.4, 0.3, 0.2, 0.1))]
        texts = [" ".join(filter(None, row)) for row in taken.tolist()]
        yield line(number, " ".join(reference), texts, rng.permutation(hypotheses).tolist())


def line(number: int, reference: str, texts: list[str], ranking: list[int]) -> bytes:
    """One result. Words need no escaping; put together by hand, it is written faster than it is evaluated."""
    ranked = ", ".join(
        f'{{"index": {index}, "text": "{texts[index]}", "scored_text": "{texts[index]}", "total": {-rank}.5, {REST}}}'
        for rank, index in enumerate(ranking)
    )
    speaker = f"s{number % SPEAKERS}"
    head = f'"id": "{speaker}-u{number}", "speaker": "{speaker}", "scored_reference": "{reference}"'
    made_with = f'"bundle": "{"b" * 64}", "weights": {{"lm_scale": 10.0}}, "state": "reset"'
    return f'{{{head}, "best_text": "{texts[ranking[0]]}", "ranking": [{ranked}], {made_with}}}\n'.encode()


def evaluate(utterances: int, hypotheses: int, seed: int) -> Cost:
    """Feed the stream to `nbest evaluate`."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [str(NBEST), "evaluate", "-", "--worst", "20", "--json", str(report)]
        begun = time.perf_counter()
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert child.stdin is not None
        feed(child.stdin, utterances, hypotheses, seed)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - begun
        if status:
            sys.exit(f"nbest evaluate ended with status {os.waitstatus_to_exitcode(status)}")
        document = json.loads(report.read_text(encoding="utf-8"))
    if document["utterances"] != utterances:
        sys.exit(f"nbest evaluate counted {document['utterances']} utterances of {utterances}")
    cpu = usage.ru_utime + usage.ru_stime
    return Cost(seconds, cpu, usage.ru_maxrss / MEBIBYTES, document["systems"][0]["wer_percent"])


def feed(pipe: IO[bytes], utterances: int, hypotheses: int, seed: int) -> None:
    """Write the stream."""
    with pipe:
        for result in results(utterances, hypotheses, seed):
            pipe.write(result)


def figures(utterances: int, hypotheses: int, few: Cost, all_of_them: Cost) -> list[Figure]:
    """What it took, and how it grows."""
    size = f"{utterances:,} x {hypotheses}-best"
    a_tenth = f"{utterances // 10:,} x {hypotheses}-best"
    more = utterances - utterances // 10
    return [
        Figure(f"{size}: first pass", all_of_them.wer, "% WER"),
        Figure(f"{size}: time", all_of_them.seconds, "s", f"<= {60 * MINUTES}"),
        Figure(f"{size}: processor time of the evaluation", all_of_them.cpu, "s"),
        Figure(f"{size}: speed", utterances * hypotheses / all_of_them.seconds, "hypotheses/s"),
        Figure(f"{size}: peak memory", all_of_them.memory, "MiB"),
        Figure(f"{a_tenth}: time", few.seconds, "s"),
        Figure(f"{a_tenth}: peak memory", few.memory, "MiB"),
        Figure("memory of a further utterance", MEBIBYTES * (all_of_them.memory - few.memory) / more, "KiB"),
    ]


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--utterances", type=int, default=100_000)
    parser.add_argument("--hypotheses", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    few, everything = (
        evaluate(count, given.hypotheses, given.seed) for count in (given.utterances // 10, given.utterances)
    )
    command = "make bench-evaluation" + (f" ARGS='{' '.join(sys.argv[1:])}'" if sys.argv[1:] else "")
    print(f"written to {write('evaluation', figures(given.utterances, given.hypotheses, few, everything), command)}")


if __name__ == "__main__":
    main()
