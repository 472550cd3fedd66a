"""Output layers compared: full softmax, class-factored, and logits without a normaliser.

    python benchmarks/output_layers.py [--lists N] [--rounds N] [--threads N] [--train FOLDER] [--bundle FOLDER]

Speed: real 100-best lists (examples/ljspeech) from text to ranking, networks of 200 hidden units and 10,000 classes
with random weights, on which speed does not depend; all run in turns, and medians are reported. The network is the only
model: an n-gram costs the same beside each.

--train FOLDER trains the three on Penn Treebank (ptb.train.txt, ptb.valid.txt, ptb.test.txt there; the text is licensed
by the LDC and no part of this project) for the same epochs, and reports test perplexities and how far from its constant
the normaliser is. --bundle FOLDER, repeatable, rescores the example's test lists with a bundle that `nbest train` and
`nbest tune` have made, and reports word error rates; networks that leave their normaliser out are run with it, too.
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from engine_inputs import EXAMPLE, Inputs
from figures import Figure, write

from models.bundle import load_bundle
from models.class_factored import ClassFactored, ClassGroups
from models.corpus import sentences, word_counts
from models.nbest import NBest
from models.normaliser import Normaliser
from models.perplexity import perplexity, text_events, text_log_probs
from models.ranking import RescoredList
from models.recipe_fast import FastOptions
from models.rescoring import Rescorer
from models.rnn_training import TrainingText, train_elman
from models.rnnlm import ElmanLM, ElmanWeights, WordClasses
from models.score import Weights
from models.self_normalised import SelfNormalisation, SelfNormalised, with_normaliser
from models.training_text import ClassStream
from models.tuning_command import read_nbest
from models.vocabulary import EOS_ID, Vocabulary
from models.word_errors import word_errors

HIDDEN, CLASSES = 200, 10_000
LISTS_A_BATCH = 8
TOOLKITS_WORDS_PER_SECOND, TIMES_TOOLKIT = 154_000, 2
# What a network trained with a penalty of 0.1 may say of itself; speed does not depend on it.
MEASURED = SelfNormalisation(0.0, 0.3, 3.0, 0.01)
PENALTY = 0.1
# The text is preprocessed: it is taken as it stands.
AS_IT_STANDS = Normaliser(case="keep", punctuation="keep", variants="keep", noise_tokens=())
CPU = torch.device("cpu")


def seconds(work: Callable[[], object]) -> float:
    """How long it takes, once."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def networks(inputs: Inputs, vocabulary: Vocabulary) -> dict[str, ElmanLM]:
    """The same recurrent part under each output layer; groups by the frequencies of the example's text."""
    full = inputs.network(vocabulary, HIDDEN)
    counts = np.zeros(full.classes.count, np.int64)
    for sentence in sentences([EXAMPLE / "ljspeech_text.txt.xz"], inputs.normaliser):
        np.add.at(counts, full.classes.of_event[[*vocabulary.ids(sentence), EOS_ID]], 1)
    groups = ClassGroups.by_frequency(counts)
    X = torch.randn(groups.count, HIDDEN, generator=torch.Generator().manual_seed(2)) * 0.2
    weights = ElmanWeights(full.weights.U, full.weights.W, torch.cat([full.weights.V, X]))
    return {
        "full softmax": full,
        "class-factored": ElmanLM(weights, full.classes, output=ClassFactored(weights.V, groups)),
        "without normaliser": ElmanLM(full.weights, full.classes, output=SelfNormalised(full.weights.V, MEASURED)),
    }


def speeds(inputs: Inputs, lists: list[NBest], rounds: int) -> list[Figure]:
    """Input words a second of each layer, in turns: from text to ranking, and the network alone."""
    vocabulary = inputs.vocabulary(CLASSES)
    batches = [lists[first : first + LISTS_A_BATCH] for first in range(0, len(lists), LISTS_A_BATCH)]
    weights = Weights({"rnn": 1.0})
    engines = {
        name: Rescorer(vocabulary, inputs.normaliser, {"rnn": model})
        for name, model in networks(inputs, vocabulary).items()
    }

    def whole(engine: Rescorer) -> None:
        for batch in batches:
            engine.rescore([engine.prepare(nbest) for nbest in batch], [weights] * len(batch))

    some = next(iter(engines.values()))
    trees = [some.score([some.prepare(nbest) for nbest in batch]).tree for batch in batches]
    words = sum(len(sentence) - 1 for tree in trees for sentence in tree.sentences)

    def network(engine: Rescorer) -> None:
        for tree in trees:
            engine.models["rnn"].score(tree)

    taken: dict[tuple[str, str], list[float]] = {}
    for number in range(1 + rounds):
        for name, engine in engines.items():
            for part, work in (("text to ranking", whole), ("network alone", network)):
                time_taken = seconds(lambda work=work, engine=engine: work(engine))  # type: ignore[misc] # mypy cannot type such a lambda
                if number:
                    taken.setdefault((name, part), []).append(time_taken)
    rates = {key: words / statistics.median(values) for key, values in taken.items()}
    label = f"hidden {HIDDEN}, {CLASSES} classes, {LISTS_A_BATCH} 100-best lists at once"
    out = [
        Figure(f"{name}, {part}, {label}, {torch.get_num_threads()} threads", rate, "words/s")
        for (name, part), rate in rates.items()
    ]
    for name in list(engines)[1:]:
        ratio = rates[name, "text to ranking"] / rates["full softmax", "text to ranking"]
        out.append(Figure(f"{name} / full softmax, text to ranking", ratio, "x"))
    times = rates["class-factored", "text to ranking"] / TOOLKITS_WORDS_PER_SECOND
    label = f"class-factored / the original toolkit's {TOOLKITS_WORDS_PER_SECOND:,} words/s (another machine, one core)"
    return [*out, Figure(label, times, "x", f">= {TIMES_TOOLKIT}")]


def perplexities(folder: Path, epochs: int) -> list[Figure]:
    """Test perplexities on Penn Treebank after the same epochs."""
    train, valid, test = (
        list(sentences([folder / f"ptb.{part}.txt"], AS_IT_STANDS)) for part in ("train", "valid", "test")
    )
    counts = word_counts(train)
    vocabulary = Vocabulary.from_counts(counts)
    classes = WordClasses.from_counts(vocabulary, counts, 0)
    streams = [ClassStream.from_sentences(part, vocabulary, classes) for part in (train, valid)]
    text = TrainingText(streams[0], streams[1], classes, vocabulary.sha256)
    ids = [vocabulary.ids(sentence) for sentence in test]
    out = []
    for name, options in (
        ("full softmax", FastOptions(epochs=epochs)),
        ("class-factored", FastOptions(epochs=epochs, output="class-factored")),
        ("penalty on the normaliser", FastOptions(epochs=epochs, normaliser_penalty=PENALTY)),
    ):
        with tempfile.TemporaryDirectory() as scratch:
            begun = time.perf_counter()
            model = train_elman(text, options, Path(scratch), hidden_size=HIDDEN, seed=1, device=CPU)
            minutes = (time.perf_counter() - begun) / 60
        log_probs = np.concatenate(text_log_probs(with_normaliser(model), ids, carry_state=True))
        found = perplexity(log_probs, text_events(ids)).with_oov
        label = f"{name}, hidden {HIDDEN}, {epochs} epochs"
        out.append(Figure(f"{label}: test perplexity", found, "perplexity"))
        out.append(Figure(f"{label}: training, validation included", minutes, "minutes"))
        if isinstance(model.output, SelfNormalised):
            out += _deviation(label, model, log_probs, ids)
    return out


def _deviation(label: str, model: ElmanLM, exact: np.ndarray, ids: list[list[int]]) -> list[Figure]:
    assert isinstance(model.output, SelfNormalised)
    measured = model.output.measured
    without = np.concatenate(text_log_probs(model, ids, carry_state=True))
    off = without - exact
    return [
        Figure(f"{label}: constant in place of ln Z", measured.log_normaliser, "nats"),
        Figure(f"{label}: deviation of ln Z, validation", measured.deviation, "nats"),
        Figure(f"{label}: deviation of ln P without normaliser, test", float(np.sqrt((off**2).mean())), "nats a word"),
        Figure(f"{label}: largest difference of ln P, test", float(np.abs(off).max()), "nats"),
        Figure(f"{label}: ln P held at 0, test", float((without == 0).mean()), "of words"),
        Figure(f"{label}: exp of the mean -ln P without normaliser, test", math.exp(-without.mean()), "no perplexity"),
    ]


def error_rates(bundle: Path, lists: list[NBest]) -> list[Figure]:
    """Word error rates of the example's test lists, without normalisers where the bundle says so, and with them."""
    out = []
    for exact in (False, True):
        loaded = load_bundle(bundle, exact_normaliser=exact)
        said = loaded.describe()["models"]
        if exact and not any("self_normalised" in model for model in said):
            continue
        engine = loaded.rescorer
        errors = words = 0
        for nbest in lists:
            (result,) = engine.rescore([engine.prepare(nbest)], [loaded.weights])
            assert isinstance(result, RescoredList)
            assert result.reference_words is not None
            errors += int(word_errors(result.reference_words, [result.best.words])[0])
            words += len(result.reference_words)
        layers = ", ".join(model["output"] for model in said if "output" in model)
        out.append(Figure(f"{bundle.name} ({layers}): lj.test word error rate", 100 * errors / words, "%"))
    return out


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lists", type=int, default=48, help="how many N-best lists are rescored for speed")
    parser.add_argument("--rounds", type=int, default=5, help="rounds measured, after one that is not")
    parser.add_argument("--threads", type=int, default=0, help="threads; 0 leaves the choice to torch")
    parser.add_argument("--train", type=Path, help="folder of the Penn Treebank files: compare perplexities, too")
    parser.add_argument("--epochs", type=int, default=8, help="epochs of each training")
    parser.add_argument("--bundle", type=Path, action="append", default=[], help="report word error rates of a bundle")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    lists = EXAMPLE / "lj.test.nbest.jsonl.gz"
    with tempfile.TemporaryDirectory() as scratch:
        inputs = Inputs([lists], Path(scratch))
        figures = speeds(inputs, inputs.lists[: arguments.lists], arguments.rounds)
    if arguments.train:
        figures += perplexities(arguments.train, arguments.epochs)
    for bundle in arguments.bundle:
        figures += error_rates(bundle, read_nbest(lists))
    print(f"written to {write('output_layers', figures, 'make bench-output-layers')}")


if __name__ == "__main__":
    main()
