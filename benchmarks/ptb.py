"""Penn Treebank: test perplexity of KN5, of the recurrent network by both recipes, and of their mixture.

Each network is also tested dynamically, learning from the text after scoring it (tau 1, no decay): at the paper's rate
of 0.1 and at the best of a few rates on the beginning of the validation text. Published: static 124.7, dynamic 123.2.

    python benchmarks/ptb.py --data FOLDER [--recipe NAME] [--mikolov-epochs N] [--work FOLDER]

FOLDER holds ptb.train.txt, ptb.valid.txt and ptb.test.txt as preprocessed by Mikolov; the text is licensed by the LDC
and is not part of this project. Published test perplexities: KN5 141.2, RNN 124.7, RNN + KN5 105.7 (Mikolov et al.,
ICASSP 2011). Running text: the hidden state is carried over sentences; </s> is counted.

What is trained is kept in the work folder and used again; interrupted trainings are resumed.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from figures import Figure, write

from models.base import FloatArray
from models.bundle import add_elman, add_kenlm, create_bundle, load_bundle
from models.corpus import sentences, word_counts
from models.dynamic import DynamicElman
from models.interpolation import fit_lambdas
from models.kn_training import KneserNeyOptions, train_kneser_ney
from models.learning import LearningOptions, Start
from models.normaliser import Normaliser
from models.perplexity import perplexity, text_events, text_log_probs
from models.recipe_fast import FastOptions
from models.recipe_mikolov2010 import Mikolov2010Options
from models.rnn_training import Options, TrainingText, train_elman
from models.rnnlm import ElmanLM, WordClasses
from models.score import interpolate
from models.training_text import ClassStream
from models.vocabulary import Vocabulary

# The text is preprocessed: it is taken as it stands.
AS_IT_STANDS = Normaliser(case="keep", punctuation="keep", variants="keep", noise_tokens=())
RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
PAPERS_RATE = 0.1
WORDS_TO_CHOOSE_BY = 10_000
PUBLISHED = {"kn5": "<= 141.3", "fast": "<= 126", "kn5 + fast": "<= 104"}


# There is little text for so many weights: more of everything that keeps a network from learning it by heart.
FAST = FastOptions(epochs=30, rate=0.042, dropout=0.5, vector_dropout=0.35, input_dropout=0.1, reset_share=0.0)


# Word by word is slow: a number of epochs that one core does in two to three hours.
MIKOLOV_HIDDEN = 200
MIKOLOV_EPOCHS = 8


def networks(mikolov_epochs: int) -> dict[str, tuple[int, Options]]:
    """Recipe -> hidden size and options."""
    return {
        "fast": (450, FAST),
        "mikolov2010": (MIKOLOV_HIDDEN, Mikolov2010Options(max_epochs=mikolov_epochs)),
    }


class Experiment:
    """The three texts, the bundle, and the models trained into it."""

    def __init__(self, data: Path, work: Path) -> None:
        self.train, self.valid, self.test = (
            list(sentences([data / f"ptb.{part}.txt"], AS_IT_STANDS)) for part in ("train", "valid", "test")
        )
        self.counts = word_counts(self.train)
        self.vocabulary = Vocabulary.from_counts(self.counts)
        self.work = work
        self.manifest = create_bundle(work / "bundle", AS_IT_STANDS, self.vocabulary)
        self.seconds: dict[str, float] = {}
        self.curves: dict[str, list[dict[str, float]]] = {}

    def train_ngram(self) -> None:
        """KN5 by lmplz."""
        begun = time.perf_counter()
        train_kneser_ney(self.train, self.vocabulary, self.work / "bundle" / "kn5.kenlm", KneserNeyOptions())
        self.seconds["kn5"] = time.perf_counter() - begun
        add_kenlm(self.work / "bundle", self.manifest, "kn5", {})

    def train_network(self, name: str, hidden_size: int, options: Options) -> None:
        """A network by one recipe; threads as torch chooses them, one for word-by-word training."""
        classes = WordClasses.from_counts(self.vocabulary, self.counts, 0)
        train, valid = (ClassStream.from_sentences(text, self.vocabulary, classes) for text in (self.train, self.valid))
        text = TrainingText(train, valid, classes, self.vocabulary.sha256)
        folder = self.work / name
        before = torch.get_num_threads()
        if isinstance(options, Mikolov2010Options):
            torch.set_num_threads(1)
        model = train_elman(
            text,
            options,
            folder,
            hidden_size=hidden_size,
            seed=1,
            device=torch.device("cpu"),
            resume=(folder / "checkpoint.safetensors").exists(),
            log=lambda entry: print(name, json.dumps(entry), flush=True),
        )
        torch.set_num_threads(before)
        self.curves[name] = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        self.seconds[name] = self.curves[name][-1]["seconds"]
        add_elman(self.work / "bundle", self.manifest, name, model)

    def perplexities(self) -> dict[str, float]:
        """Test perplexity of each model and of KN5 mixed with each network, weights fitted on the validation text."""
        bundle = load_bundle(self.work / "bundle")
        ids = {part: [self.vocabulary.ids(words) for words in getattr(self, part)] for part in ("valid", "test")}
        events = text_events(ids["test"])
        out: dict[str, float] = {}

        def report(label: str, log_probs: FloatArray) -> None:
            out[label] = perplexity(log_probs, events).with_oov

        ngram = {p: np.concatenate(text_log_probs(bundle.rescorer.models["kn5"], ids[p])) for p in ids}
        report("kn5", ngram["test"])
        for name, model in bundle.rescorer.models.items():
            if not isinstance(model, ElmanLM):
                continue
            valid, test = (np.concatenate(text_log_probs(model, ids[part], carry_state=True)) for part in ids)
            lambdas = fit_lambdas(np.stack([ngram["valid"], valid])).lambdas
            report(name, test)
            report(f"kn5 + {name}", interpolate(np.stack([ngram["test"], test]), lambdas))
            best = best_rate(model, ids["valid"])
            for rate in sorted({PAPERS_RATE, best}):
                chosen = ", the best on the validation text" if rate == best else ""
                test = dynamic_log_probs(model, ids["test"], rate)
                report(f"{name}, dynamic at rate {rate:g}{chosen}", test)
                mixed = interpolate(np.stack([ngram["test"], test]), lambdas)
                report(f"kn5 + {name}, dynamic at rate {rate:g}{chosen}", mixed)
        return out


def dynamic_log_probs(model: ElmanLM, text: list[list[int]], rate: float) -> FloatArray:
    """(events,) ln P of running text, each word scored before it is learnt."""
    dynamic = DynamicElman(model, LearningOptions(rate=rate))
    start = Start.fresh(model)
    out = []
    for sentence in text:
        log_probs, start = dynamic.learn(sentence, start)
        out.append(log_probs)
    return np.concatenate(out)


def best_rate(model: ElmanLM, text: list[list[int]]) -> float:
    """The learning rate with the lowest perplexity on the beginning of a text."""
    beginning: list[list[int]] = []
    while sum(map(len, beginning)) < WORDS_TO_CHOOSE_BY and len(beginning) < len(text):
        beginning.append(text[len(beginning)])
    return max(RATES, key=lambda rate: float(dynamic_log_probs(model, beginning, rate).sum()))


def figures(experiment: Experiment) -> list[Figure]:
    """Perplexities, training times and learning curves."""
    out = [
        Figure(f"Penn Treebank test perplexity, {name}", value, "perplexity", PUBLISHED.get(name, ""))
        for name, value in experiment.perplexities().items()
    ]
    out += [Figure(f"training time, {name}", value, "s") for name, value in experiment.seconds.items()]
    for name, curve in experiment.curves.items():
        hidden = networks(MIKOLOV_EPOCHS)[name][0]
        for entry in curve:
            after = f"after epoch {entry['epoch']:.0f}, {entry['seconds']:.0f} s"
            label = f"{name}, hidden {hidden}: validation perplexity {after}"
            out.append(Figure(label, entry["valid_perplexity"], "perplexity"))
    return out


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of ptb.train.txt, ptb.valid.txt, ptb.test.txt")
    parser.add_argument("--work", type=Path, default=Path("demo/ptb"), help="where models and checkpoints are kept")
    parser.add_argument("--mikolov-epochs", type=int, default=MIKOLOV_EPOCHS, help="epochs of recipe mikolov2010")
    parser.add_argument(
        "--recipe", choices=("fast", "mikolov2010"), help="train and test this one alone; figures of the other stay"
    )
    arguments = parser.parse_args()
    experiment = Experiment(arguments.data, arguments.work)
    experiment.train_ngram()
    for name, (hidden_size, options) in networks(arguments.mikolov_epochs).items():
        if arguments.recipe in (None, name):
            experiment.train_network(name, hidden_size, options)
    given = [f"--recipe {arguments.recipe}"] if arguments.recipe else []
    if arguments.mikolov_epochs != MIKOLOV_EPOCHS:
        given.append(f"--mikolov-epochs {arguments.mikolov_epochs}")
    command = "make ptb PTB=DIR" + (f" ARGS='{' '.join(given)}'" if given else "")
    print(f"written to {write('ptb', figures(experiment), command, others_stay=arguments.recipe is not None)}")


if __name__ == "__main__":
    main()
