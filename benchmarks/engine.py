"""The engine: words a second, where the time goes, and how far that is from what the machine can do.

    python benchmarks/engine.py [--lists FILE ...] [--threads N] [--rounds N] [--seconds S] [--quick]

Real 100-best lists (examples/ljspeech, or other files of N-best lists) are rescored by a 5-gram of the example text and
a network with random weights, half each: speed does not depend on them. One thing is varied at a time around a point of
8 lists of 100 hypotheses, 10,000 classes, 200 hidden units. Lists of 1,000 are spliced from real ones of 100; classes
beyond the example's words are never said, and there the n-gram, which would not know them, is left out.

Seconds are medians of rounds in which everything takes its turn: the whole (text to ranking), each part alone, the same
network as plain torch in padded and in packed batches (plain_torch.py), and matrix products alone (roofline.py). The
roofline is what those would take for the distinct histories of the lists, output layer alone: the rest counts as loss.
Then lists, hypotheses and classes are doubled again and again, and time and memory are held against each other.

Where there is a CUDA device, every point is measured there as well (on_cuda.py); all else is the processor's.
"""

import argparse
import math
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import on_cuda
import torch
from engine_inputs import EXAMPLE, Inputs
from figures import Figure, write
from plain_torch import PlainElman
from rich.console import Console
from rich.table import Table
from roofline import MatrixRate, bandwidth, peak_mebibytes, seconds

from models.base import LanguageModel
from models.errors import TrainingError
from models.kn_training import find_program
from models.nbest import NBest
from models.ngram import KenLMNgram
from models.output_layer import FullSoftmax
from models.prefix_tree import PrefixTree
from models.ranking import rank_list
from models.rescoring import ListLimits, Rescorer
from models.rnnlm import ElmanLM
from models.score import Weights
from models.threads import one_thread_an_operation
from models.vocabulary import Vocabulary

PARTS = ("text", "tree", "n-gram", "recurrent step", "output layer", "ranking")
FASTER_THAN_PADDED, FASTER_IN_BF16, SHARE_OF_ROOFLINE = 5, 10, 0.65
NGRAM_WORDS, NGRAM_SHARE = 2e6, 0.10
QUERY_WORDS = 1_000_000
# The plain implementation's speed hardly depends on the number of lists, and it is slow.
WORDS_OF_PLAIN = 15_000


@dataclass(frozen=True)
class Point:
    """What is measured."""

    lists: int = 8
    hypotheses: int = 100
    classes: int = 10_000
    hidden: int = 200

    def __str__(self) -> str:
        return f"{self.lists} x {self.hypotheses}-best, {self.classes:,} classes, hidden {self.hidden}"


BASE = Point()
POINTS = (
    BASE,
    replace(BASE, hypotheses=10),
    replace(BASE, hypotheses=1000, lists=2),
    replace(BASE, lists=1),
    replace(BASE, lists=64),
    replace(BASE, classes=50_000),
    replace(BASE, classes=200_000, lists=2),
    replace(BASE, hidden=400),
    replace(BASE, hidden=1024),
)
DOUBLED = {
    "hypotheses": [replace(BASE, hypotheses=n) for n in (25, 50, 100, 200, 400)],
    "lists": [replace(BASE, lists=n) for n in (4, 8, 16, 32, 64)],
    "classes": [replace(BASE, classes=n) for n in (5_000, 10_000, 20_000, 40_000, 80_000)],
}


class Benchmark:
    """Everything at one point.

    ngram: the n-gram over the vocabulary of 10,000 classes, or None where it cannot be built
    """

    def __init__(self, point: Point, inputs: Inputs, ngram: KenLMNgram | None, vocabulary: Vocabulary) -> None:
        known = vocabulary if point.classes == BASE.classes else inputs.vocabulary(point.classes)
        self.network: ElmanLM = inputs.network(known, point.hidden)
        self.ngram = ngram if point.classes == BASE.classes else None
        self.lists: list[NBest] = inputs.cut(point.lists, point.hypotheses)
        self.rescorer = self._rescorer(self.network, known, inputs)
        self.prepared = [self.rescorer.prepare(nbest) for nbest in self.lists]
        self.sentences = [ids for entry in self.prepared for ids in entry.ids]
        self.tree = PrefixTree.build(self.sentences)
        self.words = sum(map(len, self.sentences))

    def _rescorer(self, network: ElmanLM, vocabulary: Vocabulary, inputs: Inputs) -> Rescorer:
        models: dict[str, LanguageModel] = {"rnn": network}
        if self.ngram is not None:
            models["n-gram"] = self.ngram
        return Rescorer(vocabulary, inputs.normaliser, models, ListLimits())

    def with_network(self, network: ElmanLM) -> Rescorer:
        """The same with another network."""
        return replace(self.rescorer, models={**self.rescorer.models, "rnn": network})

    def weights(self) -> list[Weights]:
        """Half each, where there are two models."""
        names = list(self.rescorer.models)
        return [Weights(interpolation={name: 1 / len(names) for name in names})] * len(self.lists)

    def whole(self, rescorer: Rescorer | None = None) -> None:
        """From text to ranking."""
        engine = rescorer or self.rescorer
        engine.rescore([engine.prepare(nbest) for nbest in self.lists], self.weights())

    def parts(self) -> dict[str, Callable[[], object]]:
        """Each part alone, given what the parts before it made."""
        scored = self.rescorer.score(self.prepared)
        states = self.network.states(self.tree)
        histories = torch.from_numpy(self.tree.histories)
        classes = torch.from_numpy(self.network.classes.of_event[self.tree.event_words])

        def ranking() -> None:
            for (entry, first), weight in zip(scored.each(), self.weights(), strict=True):
                rank_list(scored, entry, first, weight, word_scores=False)

        parts: dict[str, Callable[[], object]] = {
            "text": lambda: [self.rescorer.prepare(nbest) for nbest in self.lists],
            "tree": lambda: PrefixTree.build(self.sentences),
            "recurrent step": lambda: inference(lambda: self.network.states(self.tree)),
            "output layer": lambda: inference(lambda: self.network.output.log_probs(states, histories, classes)),
            "ranking": ranking,
        }
        if self.ngram is not None:
            parts["n-gram"] = lambda ngram=self.ngram: ngram.score(self.tree)  # type: ignore[misc]
        return parts

    def few_sentences(self) -> list[list[int]]:
        """As many as the plain implementation is measured on."""
        few, words = [], 0
        for sentence in self.sentences:
            few.append(sentence)
            words += len(sentence)
            if words > WORDS_OF_PLAIN:
                break
        return few


def inference(work: Callable[[], Any]) -> Any:
    """The same as the network does it inside: no bookkeeping for gradients, threads of the engine's own."""
    with torch.inference_mode(), one_thread_an_operation():
        return work()


def in_turns(works: dict[str, Callable[[], float]], rounds: int, at_most_s: float) -> dict[str, float]:
    """Medians of what each measures, all in turns, after a turn that does not count.

    A point that takes long gets fewer rounds, one at least.
    """
    values: dict[str, list[float]] = {name: [] for name in works}
    spent = 0.0
    for turn in range(1 + rounds):
        taken = seconds(lambda: [values[name].append(work()) for name, work in works.items()])
        spent += taken
        if turn and spent + taken > at_most_s:
            break
    return {name: statistics.median(found[1:]) for name, found in values.items()}


def measure(point: Point, bench: Benchmark, rounds: int, at_most_s: float, *, plain: bool = True) -> list[Figure]:
    """All figures of a point."""
    few = bench.few_sentences()
    few_words = sum(map(len, few))
    rate = MatrixRate(point.hidden, bench.network.classes.count)
    works: dict[str, Callable[[], float]] = {"whole": lambda: seconds(bench.whole)}
    works |= {name: lambda work=work: seconds(work) for name, work in bench.parts().items()}  # type: ignore[misc]
    works["rate"] = rate.measure
    if plain:
        for name, packed in (("padded", False), ("packed", True)):
            model = PlainElman(bench.network, packed=packed)
            works[name] = lambda model=model: few_words / seconds(lambda: model.score(few))  # type: ignore[misc]
    if on_cuda.there():
        works |= cuda_works(bench)
    found = in_turns(works, rounds, at_most_s)
    whole, nodes = found["whole"], bench.tree.nodes
    operations = 2 * nodes * point.hidden * bench.network.classes.count
    figures = [
        Figure(f"{point}: input words", bench.words, "words"),
        Figure(f"{point}: distinct histories", nodes, "nodes"),
        *(Figure(f"{point}: {part}", found[part], "s") for part in PARTS if part in found),
        Figure(f"{point}: whole", whole, "s"),
        Figure(f"{point}: speed", bench.words / whole, "words/s"),
        Figure(f"{point}: distinct histories a second", nodes / whole, "nodes/s"),
        Figure(f"{point}: memory", peak_mebibytes(bench.whole), "MiB"),
        Figure(f"{point}: matrix products alone", found["rate"] / 1e9, "Gflop/s"),
        Figure(f"{point}: of the roofline", operations / found["rate"] / whole, "", goal(point, SHARE_OF_ROOFLINE)),
    ]
    if plain:
        figures += [
            Figure(f"{point}: plain torch, padded", found["padded"], "words/s"),
            Figure(f"{point}: plain torch, packed", found["packed"], "words/s"),
            Figure(f"{point}: / padded", bench.words / whole / found["padded"], "x", goal(point, FASTER_THAN_PADDED)),
            Figure(f"{point}: / packed", bench.words / whole / found["packed"], "x"),
        ]
    if "n-gram" in found:
        figures += [
            Figure(f"{point}: n-gram speed", bench.words / found["n-gram"], "words/s", goal(point, NGRAM_WORDS)),
            Figure(f"{point}: n-gram's share", found["n-gram"] / whole, "", goal(point, NGRAM_SHARE, "<=")),
        ]
    for name in on_cuda.PATHS if on_cuda.there() else ():
        products, alone = found[f"{name}: rate"], found[f"{name}: network"]
        figures += [
            Figure(f"{point}: {name}, whole", found[name], "s"),
            Figure(f"{point}: {name}, speed", bench.words / found[name], "words/s"),
            Figure(f"{point}: {name}, network alone", alone, "s"),
            Figure(f"{point}: {name}, matrix products alone", products / 1e9, "Gflop/s"),
            Figure(f"{point}: {name}, network alone, of the roofline", operations / products / alone, ""),
        ]
    return figures


def cuda_works(bench: Benchmark) -> dict[str, Callable[[], float]]:
    """What is measured on the GPU, warm: everything, the network alone, and matrix products alone."""
    works: dict[str, Callable[[], float]] = {}
    for name, precision in on_cuda.PATHS.items():
        network = on_cuda.moved(bench.network, precision)
        rescorer = bench.with_network(network)
        rate = on_cuda.MatrixRate(bench.network.hidden_size, bench.network.classes.count, precision)
        on_cuda.warm_up(lambda rescorer=rescorer: bench.whole(rescorer))  # type: ignore[misc]
        works[name] = lambda rescorer=rescorer: seconds(lambda: bench.whole(rescorer))  # type: ignore[misc]
        works[f"{name}: network"] = lambda network=network: seconds(lambda: network.score(bench.tree))  # type: ignore[misc]
        works[f"{name}: rate"] = rate.measure
    return works


def goal(point: Point, value: float, relation: str = ">=") -> str:
    """Goals are set at the base point."""
    return f"{relation} {value:g}" if point == BASE else ""


def agreement(bench: Benchmark) -> list[Figure]:
    """How far the engine is from the plain implementation, and bfloat16 from float32, a word."""
    log_probs, _ = bench.network.score(bench.tree)
    sums = np.array([log_probs[events].sum() for events in bench.tree.sentences])
    words = np.array([len(ids) + 1 for ids in bench.sentences])
    plain = PlainElman(bench.network, packed=False).score(bench.sentences).double().numpy()
    rounded, _ = in_bf16(bench.network).score(bench.tree)
    return [
        Figure(
            "largest difference to plain torch", float(np.max(abs(sums - plain) / words)), "nats a word", "<= 0.0001"
        ),
        Figure("largest difference of bfloat16", float(np.max(abs(rounded - log_probs))), "nats a word"),
        Figure("mean difference of bfloat16", float(np.mean(abs(rounded - log_probs))), "nats a word"),
        *(on_cuda.differences(bench.network, bench.tree) if on_cuda.there() else []),
    ]


def in_bf16(network: ElmanLM) -> ElmanLM:
    """The network with the reduced-precision output layer."""
    return ElmanLM(
        network.weights, network.classes, network.initial_state, output=FullSoftmax(network.weights.V, "bfloat16")
    )


def reduced_precision(bench: Benchmark, rounds: int, at_most_s: float) -> list[Figure]:
    """The base point in bfloat16, where the processor has it."""
    if not has_bf16():
        print("this processor has no bfloat16 instructions: they are left out")
        return []
    model, few = PlainElman(bench.network, packed=False), bench.few_sentences()
    rescorer = bench.with_network(in_bf16(bench.network))
    works: dict[str, Callable[[], float]] = {
        "bfloat16": lambda: seconds(lambda: bench.whole(rescorer)),
        "padded": lambda: sum(map(len, few)) / seconds(lambda: model.score(few)),
    }
    found = in_turns(works, rounds, at_most_s)
    speed = bench.words / found["bfloat16"]
    return [
        Figure(f"{BASE}, bfloat16: speed", speed, "words/s"),
        Figure(f"{BASE}, bfloat16: / padded", speed / found["padded"], "x", f">= {FASTER_IN_BF16}"),
    ]


def has_bf16() -> bool:
    """Whether the processor multiplies bfloat16."""
    info = Path("/proc/cpuinfo")
    flags = info.read_text(encoding="utf-8").split() if info.exists() else []
    return "avx512_bf16" in flags or "amx_bf16" in flags or "bf16" in flags


def growth(inputs: Inputs, ngram: KenLMNgram | None, vocabulary: Vocabulary, at_most_s: float) -> list[Figure]:
    """Time and memory as one thing is doubled again and again; the others stay.

    Longer lists hold other texts, so time is compared a word: twice the words in twice the time is 2.
    """
    figures = []
    for name, points in DOUBLED.items():
        times, memory, words = [], [], []
        for point in points:
            bench = Benchmark(point, inputs, ngram if name != "classes" else None, vocabulary)
            times.append(in_turns({"whole": lambda bench=bench: seconds(bench.whole)}, 5, at_most_s)["whole"])  # type: ignore[misc]
            memory.append(peak_mebibytes(bench.whole))
            words.append(bench.words)
            label = f"{name} doubled to {getattr(point, name):,}"
            figures += [Figure(f"{label}: whole", times[-1], "s"), Figure(f"{label}: memory", memory[-1], "MiB")]
        doublings = len(points) - 1
        longer, larger, most = times[-1] / times[0], memory[-1] / memory[0], "<= 1.1"
        if name != "classes":
            longer, most = longer * 2**doublings * words[0] / words[-1], "<= 2"
        figures.append(Figure(f"{name} doubled: time grows by", longer ** (1 / doublings), "x", "<= 2"))
        figures.append(Figure(f"{name} doubled: memory grows by", larger ** (1 / doublings), "x", most))
    return figures


def kenlm_query(bench: Benchmark, path: Path) -> list[Figure]:
    """KenLM's own program on the same hypotheses, word by word, without a prefix tree; loading is taken off."""
    try:
        program = find_program("query")
    except TrainingError as error:
        print(f"{error}: its speed is left out")
        return []
    vocabulary = bench.rescorer.vocabulary
    lines = "".join(" ".join(map(vocabulary.word, ids)) + "\n" for ids in bench.sentences)
    repeated = lines * max(QUERY_WORDS // bench.words, 1)

    def run(text: str) -> float:
        command = [program, "-v", "summary", str(path)]
        return seconds(lambda: subprocess.run(command, input=text, text=True, capture_output=True, check=True))

    net = statistics.median(run(repeated) - run("") for _ in range(3))
    return [Figure("KenLM's query, prefixes not shared", len(repeated.split()) / net, "words/s")]


def show(points: list[Point], figures: list[Figure]) -> None:
    """The points as a table, one a row."""
    columns = (
        *PARTS,
        "whole",
        "speed",
        "distinct histories a second",
        "memory",
        "/ padded",
        "/ packed",
        "of the roofline",
        *(f"{name}, speed" for name in on_cuda.PATHS if on_cuda.there()),
    )
    table = Table("point", *columns, title="seconds, words/s, nodes/s, MiB, times, share")
    values = {figure.figure: figure.value for figure in figures}
    for point in points:
        cells = (values.get(f"{point}: {column}", math.nan) for column in columns)
        table.add_row(str(point), *("" if math.isnan(cell) else f"{cell:.4g}" for cell in cells))
    Console(width=240).print(table)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lists", type=Path, nargs="+", help="files of N-best lists")
    parser.add_argument("--threads", type=int, default=0, help="threads of the engine and of torch; 0: torch's choice")
    parser.add_argument("--rounds", type=int, default=7, help="rounds measured, after one that is not")
    parser.add_argument("--seconds", type=float, default=20.0, help="a point is cut short after so many")
    parser.add_argument("--quick", action="store_true", help="the base point alone, a round or two: does it run?")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    points = [BASE] if arguments.quick else list(POINTS)
    at_most_s = 5.0 if arguments.quick else arguments.seconds
    files = arguments.lists or [EXAMPLE / f"lj.{part}.nbest.jsonl.gz" for part in ("test", "dev")]
    figures = [Figure("threads", torch.get_num_threads(), ""), Figure("bandwidth", bandwidth() / 1e9, "GB/s")]
    with tempfile.TemporaryDirectory() as folder:
        inputs = Inputs(files, Path(folder))
        vocabulary = inputs.vocabulary(BASE.classes)
        ngram = None
        try:
            ngram = inputs.ngram(vocabulary)
        except TrainingError as error:
            print(f"{error}: the n-gram is left out")
        for point in points:
            bench = Benchmark(point, inputs, ngram, vocabulary)
            figures += measure(point, bench, arguments.rounds, at_most_s)
            if point == BASE:
                figures += agreement(bench)
                figures += reduced_precision(bench, arguments.rounds, at_most_s)
                if ngram is not None:
                    figures += kenlm_query(bench, ngram.path)
        if not arguments.quick:
            figures += growth(inputs, ngram, vocabulary, at_most_s / 2)
    show(points, figures)
    if not arguments.quick:
        print(f"written to {write('engine', figures, 'make bench-engine')}")


if __name__ == "__main__":
    main()
