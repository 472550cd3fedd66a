"""Tuning: the exact line search against trying values, and what all of a tuning takes.

    python benchmarks/tuning.py [--lists N] [--rounds N]

The 100-best lists of examples/ljspeech, scored with two unigram models, of the book and of other books: how fast a
search is does not depend on how good its models are. There are fewer lists than 500, so some are taken once more, with
noise on their acoustic scores. Line and grid are searched in turns, on the same lines; so are all weights.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from figures import Figure, write

from models.base import FloatArray
from models.corpus import sentences, word_counts
from models.development_set import PARAMETERS, DevelopmentSet
from models.grid_search import grid_line, grid_search
from models.lambda_search import LambdasFor
from models.line_search import search_line
from models.nbest import NBest
from models.normaliser import Normaliser
from models.prefix_tree import PrefixTree
from models.rescoring import Rescorer
from models.scored_lists import ScoredLists
from models.tuning import fit_mixture, score_lists, tune
from models.tuning_command import read_nbest
from models.vocabulary import EOS_ID, Vocabulary
from models.weight_ranges import RANGES
from models.weight_search import search

EXAMPLE = Path(__file__).parent.parent / "examples" / "ljspeech"
TEXTS = {"book": "ljspeech_text.txt.xz", "books": "standardebooks_60k.txt.xz"}
COMMON_WORDS = 20_000
NOISE = 5.0
LINES_A_ROUND = 20
MODES: tuple[LambdasFor, ...] = ("perplexity", "wer")
MOST_SECONDS = 60


class Unigram:
    """ln P of each event of the vocabulary, one added to every count."""

    kind = "unigram"

    def __init__(self, vocabulary: Vocabulary, text: list[tuple[str, ...]]) -> None:
        counts = np.ones(vocabulary.size)
        for sentence in text:
            np.add.at(counts, [*vocabulary.ids(sentence), EOS_ID], 1)
        self.log_probs = np.log(counts / counts.sum())

    def score(self, tree: PrefixTree, start: FloatArray | None = None) -> tuple[FloatArray, None]:
        """Every event of the tree."""
        del start
        return self.log_probs[tree.event_words], None

    def describe(self) -> dict[str, Any]:
        """What kind it is."""
        return {"kind": self.kind}


def scored_lists(count: int) -> tuple[Rescorer, list[ScoredLists]]:
    """So many lists, scored."""
    normaliser = Normaliser()
    texts = {name: list(sentences([EXAMPLE / file], normaliser)) for name, file in TEXTS.items()}
    common = word_counts(sentence for text in texts.values() for sentence in text).most_common(COMMON_WORDS)
    vocabulary = Vocabulary(tuple(word for word, _ in common))
    rescorer = Rescorer(vocabulary, normaliser, {name: Unigram(vocabulary, text) for name, text in texts.items()})
    real = [nbest for part in ("dev", "test") for nbest in read_nbest(EXAMPLE / f"lj.{part}.nbest.jsonl.gz")]
    lists = [*real, *(again(nbest, number) for number, nbest in enumerate(real))][:count]
    return rescorer, score_lists(rescorer, lists, list(TEXTS))


def again(nbest: NBest, seed: int) -> NBest:
    """The list once more, as another one."""
    noise = np.random.default_rng(seed).normal(0, NOISE, len(nbest.hypotheses))
    entries = (replace(h, acoustic=h.acoustic + float(n)) for h, n in zip(nbest.hypotheses, noise, strict=True))
    return NBest(f"{nbest.utterance_id} again", tuple(entries), reference=nbest.reference)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """How long it takes, in seconds, and what comes of it."""
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


def lines(development: DevelopmentSet, rounds: int) -> list[Figure]:
    """One weight moved along its range, the others drawn at random: both searches on every line."""
    draw = np.random.default_rng(1)
    seconds: dict[str, list[float]] = {"line": [], "grid": []}
    errors: dict[str, list[int]] = {"line": [], "grid": []}
    for number in range((1 + rounds) * LINES_A_ROUND):
        values = np.array([draw.uniform(spread.low / 2, spread.high / 2) for spread in RANGES.values()])
        values[0] = 1.0
        moved = 1 + number % (len(PARAMETERS) - 1)
        direction = np.eye(len(PARAMETERS))[moved]
        origin, spread = np.where(direction, 0.0, values), RANGES[PARAMETERS[moved]]
        taken, place = timed(lambda: search_line(development, origin, direction, spread.low, spread.high))  # noqa: B023 - called at once
        tried, (_, fewest) = timed(lambda: grid_line(development, origin, direction, spread.grid()))  # noqa: B023 - the same
        if number >= LINES_A_ROUND:
            seconds["line"].append(taken)
            seconds["grid"].append(tried)
            errors["line"].append(place.errors)
            errors["grid"].append(fewest)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    worse = sum(line > grid for line, grid in zip(errors["line"], errors["grid"], strict=True))
    label = f"{development.lists} lists of 100"
    return [
        Figure(f"exact line search, {label}", 1000 * medians["line"], "ms a line"),
        Figure(f"grid of 61 to 121 values, {label}", 1000 * medians["grid"], "ms a line"),
        Figure("grid / exact line search", medians["grid"] / medians["line"], "x", "> 1"),
        Figure("word errors, exact, mean of lines", statistics.mean(errors["line"]), "errors"),
        Figure("word errors, grid, mean of lines", statistics.mean(errors["grid"]), "errors"),
        Figure(f"lines of {len(errors['line'])} on which the exact search makes more errors", worse, "lines", "= 0"),
    ]


def searches(development: DevelopmentSet, rounds: int) -> list[Figure]:
    """All five weights, 16 starts and the first pass: both searches with the same seeds, in turns."""
    found: dict[str, list[tuple[float, int]]] = {"exact": [], "grid": []}
    for seed in range(rounds):
        for name, one in (("exact", search), ("grid", grid_search)):
            taken, best = timed(lambda: one(development, seed=seed))  # noqa: B023 - called at once
            found[name].append((taken, best.errors))
    medians = {name: statistics.median(taken for taken, _ in runs) for name, runs in found.items()}
    out = [Figure(f"search of all weights, {name}", seconds, "s") for name, seconds in medians.items()]
    out.append(Figure("search of all weights, grid / exact", medians["grid"] / medians["exact"], "x"))
    for name, runs in found.items():
        mean = statistics.mean(errors for _, errors in runs)
        out.append(Figure(f"word errors after the search of all weights, {name}", mean, "errors, mean of seeds"))
    first_pass = int(development.first_pass_errors.sum())
    return [*out, Figure("word errors of the first pass", first_pass, "errors")]


def whole(rescorer: Rescorer, scored: list[ScoredLists], rounds: int) -> list[Figure]:
    """What `nbest tune` does once the lists are scored: EM, search, five folds, intervals."""
    text = [prepared.reference_words or () for batch in scored for prepared in batch.lists]
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    held_out: dict[str, int] = {}
    for _ in range(rounds):
        for mode in MODES:
            taken, result = timed(
                lambda: tune(scored, *fit_mixture(rescorer, list(TEXTS), text), lambdas_for=mode)  # noqa: B023 - called at once
            )
            seconds[mode].append(taken)
            held_out[mode] = result.held_out_errors
    out = []
    for mode in MODES:
        label = f"interpolation weights for {mode}"
        goal = f"<= {MOST_SECONDS}" if mode == "perplexity" else ""
        out.append(Figure(f"all of the tuning, {label}", statistics.median(seconds[mode]), "s", goal))
        out.append(Figure(f"word errors on held-out folds, {label}", held_out[mode], "errors"))
    return out


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lists", type=int, default=500, help="how many N-best lists are tuned on")
    parser.add_argument("--rounds", type=int, default=5, help="rounds measured; one of lines more, which is not")
    arguments = parser.parse_args()
    rescorer, scored = scored_lists(arguments.lists)
    development = DevelopmentSet.from_scores(scored, dict.fromkeys(TEXTS, 1 / len(TEXTS)))
    figures = lines(development, arguments.rounds)
    figures += searches(development, arguments.rounds)
    figures += whole(rescorer, scored, max(1, arguments.rounds // 2))
    print(f"written to {write('tuning', figures, 'make bench-tuning')}")


if __name__ == "__main__":
    main()
