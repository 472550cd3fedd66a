"""Training: words a second against a plain word-by-word loop, and the time to a known perplexity on Penn Treebank.

    python benchmarks/training.py --data FOLDER [--rounds N] [--threads N] [--no-race]

FOLDER holds ptb.train.txt, ptb.valid.txt and ptb.test.txt as preprocessed by Mikolov; the text is licensed by the LDC
and is not part of this project. All train the same network, 200 hidden units over the text's 10,000 classes. The plain
loop is the paper's algorithm in NumPy, one word at a time, full softmax, updates in place; NumPy is given one thread
(OPENBLAS_NUM_THREADS=1, which the make target sets), since the loop waits for memory. All run in turns, each going on
where it stood; medians and ratios are reported. Then recipe fast trains from nothing by settings made to be quick,
checkpoints and validation included in its time, and is tested.

The original toolkit's figures (rnnlm 0.3e and 0.4b, one core, hidden 200, this text) were measured on another machine:
1,200 words/s with the full softmax; test perplexity 138.5 after 889 s of its class-based training.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from figures import Figure, write
from numpy.typing import NDArray

from models.corpus import sentences, word_counts
from models.normaliser import Normaliser
from models.perplexity import perplexity, text_events, text_log_probs
from models.recipe import Recipe
from models.recipe_fast import FastOptions
from models.recipe_mikolov2010 import Mikolov2010, Mikolov2010Options
from models.rnn_training import Options, TrainingText, make_recipe, train_elman
from models.rnnlm import WordClasses
from models.training_text import ClassStream
from models.vocabulary import Vocabulary

HIDDEN = 200
CPU = torch.device("cpu")
TOOLKITS_WORDS_PER_SECOND, TIMES_TOOLKIT = 1_200, 8
TOOLKITS_PERPLEXITY, TOOLKITS_SECONDS, SHARE_OF_ITS_TIME = 138.5, 889, 0.5
# A little dropout and few epochs: what comes below the toolkit's perplexity soonest.
QUICK = FastOptions(epochs=3, rate=0.08, dropout=0.1, vector_dropout=0.0, input_dropout=0.0, reset_share=0.0)
# The text is preprocessed: it is taken as it stands.
AS_IT_STANDS = Normaliser(case="keep", punctuation="keep", variants="keep", noise_tokens=())
Matrix = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to train. going: yields the words learnt since the last yield. yields: how many are timed in a round."""

    name: str
    going: Iterator[int]
    yields: int


class Texts:
    """Penn Treebank: its three parts as words, the vocabulary, and what a network learns from."""

    def __init__(self, folder: Path) -> None:
        parts = {
            part: list(sentences([folder / f"ptb.{part}.txt"], AS_IT_STANDS)) for part in ("train", "valid", "test")
        }
        counts = word_counts(parts["train"])
        self.vocabulary = Vocabulary.from_counts(counts)
        classes = WordClasses.from_counts(self.vocabulary, counts, 0)
        train, valid = (ClassStream.from_sentences(parts[p], self.vocabulary, classes) for p in ("train", "valid"))
        self.training = TrainingText(train, valid, classes, self.vocabulary.sha256)
        self.test = [self.vocabulary.ids(words) for words in parts["test"]]


def plain_loop(text: TrainingText) -> Iterator[int]:
    """The paper's training word by word, tau 1, rate 0.1, in NumPy; yields 1 after each word."""
    options = Mikolov2010Options()
    start = Mikolov2010.initial_weights(text.classes.count, HIDDEN, options, seed=1)
    U, W, V = (matrix.numpy() for matrix in (start.U, start.W, start.V))
    rate = np.float32(options.rate)
    state: Matrix = np.full(HIDDEN, Mikolov2010.initial_state, np.float32)
    step = np.empty_like(V)
    for read, target in zip(text.train.inputs.tolist(), text.train.targets.tolist(), strict=True):
        previous, state = state, 1 / (1 + np.exp(-(U[read] + W @ state)))
        logits = V @ state
        y = np.exp(logits - logits.max())
        error = -y / y.sum()
        error[target] += 1
        hidden_error = (error @ V) * state * (1 - state)
        V += np.outer(rate * error, state, out=step)
        U[read] += rate * hidden_error
        W += np.outer(rate * hidden_error, previous)
        yield 1


def contestants(text: TrainingText) -> list[Contestant]:
    """The plain loop, and the recipes."""

    def recipe(options: Options) -> Recipe:
        return make_recipe(text, options, hidden_size=HIDDEN, seed=1, device=CPU)

    return [
        Contestant("plain NumPy loop, full softmax", plain_loop(text), 400),
        Contestant("recipe mikolov2010, full softmax", recipe(Mikolov2010Options()).epoch(), 3),
        Contestant("recipe fast, full softmax", recipe(FastOptions(samples=0)).epoch(), 20),
        Contestant("recipe fast, sampled softmax", recipe(FastOptions()).epoch(), 150),
    ]


def speeds(text: TrainingText, rounds: int) -> list[Figure]:
    """Words a second of each, in turns; one round before is not measured."""
    rates: dict[str, list[float]] = {}
    running = contestants(text)
    for number in range(1 + rounds):
        for contestant in running:
            begun = time.perf_counter()
            words = sum(islice(contestant.going, contestant.yields))
            if number:
                rates.setdefault(contestant.name, []).append(words / (time.perf_counter() - begun))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    plain, _, full, _ = medians
    label = f"hidden {HIDDEN}, {text.classes.count:,} classes, {torch.get_num_threads()} threads"
    goal = f">= {TIMES_TOOLKIT}"
    toolkit = f"{full} / {TOOLKITS_WORDS_PER_SECOND:,} words/s of the original toolkit"
    return [
        *(Figure(f"training, {name}, {label}", value, "words/s") for name, value in medians.items()),
        *(
            Figure(f"{name} / plain loop", value / medians[plain], "x")
            for name, value in medians.items()
            if name != plain
        ),
        Figure(toolkit, medians[full] / TOOLKITS_WORDS_PER_SECOND, "x", goal),
    ]


def race(texts: Texts) -> list[Figure]:
    """Train by QUICK to the end of its epochs: the time of it all, and the test perplexity reached."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        model = train_elman(
            texts.training,
            QUICK,
            Path(folder),
            hidden_size=HIDDEN,
            seed=1,
            device=CPU,
            log=lambda entry: print(f"epoch {entry['epoch']}: validation perplexity {entry['valid_perplexity']:.1f}"),
        )
        taken = time.perf_counter() - begun
    log_probs = np.concatenate(text_log_probs(model, texts.test, carry_state=True))
    label = f"recipe fast, hidden {HIDDEN}, {QUICK.epochs} epochs, {torch.get_num_threads()} threads"
    reached = perplexity(log_probs, text_events(texts.test)).with_oov
    return [
        Figure(f"test perplexity, {label}", reached, "perplexity", f"<= {TOOLKITS_PERPLEXITY}"),
        Figure(f"seconds to it, {label}", taken, "s", f"<= {SHARE_OF_ITS_TIME * TOOLKITS_SECONDS:g}"),
        Figure(
            "the original toolkit's time to 138.5 / ours",
            TOOLKITS_SECONDS / taken,
            "x",
            f">= {1 / SHARE_OF_ITS_TIME:g}",
        ),
    ]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of ptb.train.txt, ptb.valid.txt, ptb.test.txt")
    parser.add_argument("--rounds", type=int, default=5, help="rounds measured, after one that is not")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0 leaves the choice to it")
    parser.add_argument("--no-race", action="store_true", help="leave out the training to a known perplexity")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    texts = Texts(arguments.data)
    figures = speeds(texts.training, arguments.rounds)
    if not arguments.no_race:
        figures += race(texts)
    print(f"written to {write('training', figures, 'make bench-training PTB=DIR')}")


if __name__ == "__main__":
    main()
