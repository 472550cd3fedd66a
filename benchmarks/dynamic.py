"""Dynamic evaluation: its speed against a plain loop and against frozen weights, and what a session costs.

    python benchmarks/dynamic.py [--lists N] [--rounds N]

Real 100-best lists (examples/ljspeech), a network of 200 hidden units and 10,000 classes. Its weights are random:
speed does not depend on them. The plain loop is the paper's protocol as one would write it in torch: each hypothesis
starts from a copy of the weights and is scored, learnt and read word by word, gradients by autograd, steps by
torch.optim.SGD. The loop by hand does the same with three rank-one updates in place, the least that a word can cost
when words are taken one by one. All run in turns; medians and ratios are reported. Then a real server keeps a thousand
sessions.
"""

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from figures import Figure, write
from live_sessions import live_sessions

from models.base import FloatArray
from models.corpus import sentences, word_counts
from models.dynamic import DynamicElman
from models.learning import LearningOptions, Start
from models.nbest import NBest
from models.normaliser import Normaliser
from models.prefix_tree import PrefixTree
from models.rnnlm import EOS_CLASS, RARE_CLASS, ElmanLM, ElmanWeights, WordClasses
from models.tuning_command import read_nbest
from models.vocabulary import Vocabulary

EXAMPLE = Path(__file__).parent.parent / "examples" / "ljspeech"
HIDDEN, CLASSES = 200, 10_000
WORDS_OF_THE_LOOP = 120
LISTS_A_BATCH = 8
SESSION_WORDS = (100, 1_000, 10_000)
FASTER_THAN_LOOP, SLOWER_THAN_STATIC = 60, 5


def random_network(counts: Counter[str]) -> tuple[Vocabulary, ElmanLM]:
    """A network over the commonest words, with weights of the size that training gives."""
    vocabulary = Vocabulary(tuple(word for word, _ in counts.most_common(CLASSES - 2)))
    classes = WordClasses.from_counts(vocabulary, counts, 0)
    draw = torch.Generator().manual_seed(1)
    U, W, V = (
        torch.randn(rows, HIDDEN, generator=draw) * spread
        for rows, spread in ((classes.count, 0.5), (HIDDEN, 0.1), (classes.count, 0.2))
    )
    return vocabulary, ElmanLM(ElmanWeights(U, W, V), classes)


def plain_loop(model: ElmanLM, sentence: list[int], options: LearningOptions) -> FloatArray:
    """Word by word from a copy of the weights, by autograd: (T + 1,) ln P."""
    U, W, V = parameters = [matrix.clone().requires_grad_() for matrix in model.weights.named().values()]
    optimiser = torch.optim.SGD(parameters, lr=options.rate)
    state = torch.full((HIDDEN,), model.initial_state)
    out = []
    for read, target in pairwise(class_sequence(model, sentence)):
        following = torch.sigmoid(U[read] + W @ state)
        log_prob = torch.log_softmax(V @ following, dim=0)[target]
        out.append(share_of(model, target, float(log_prob.detach())))
        optimiser.zero_grad()
        (-log_prob).backward()
        optimiser.step()
        state = following.detach()
    return np.array(out)


def class_sequence(model: ElmanLM, sentence: list[int]) -> list[int]:
    """A sentence as the network reads and predicts it, between two boundaries."""
    return [EOS_CLASS, *(int(model.classes.of_event[word]) for word in sentence), EOS_CLASS]


def share_of(model: ElmanLM, target: int, log_prob: float) -> float:
    """Ln P of an event, given that of its class."""
    return log_prob - (np.log(model.classes.rare_members) if target == RARE_CLASS else 0.0)


def loop_by_hand(model: ElmanLM, sentence: list[int], options: LearningOptions) -> FloatArray:
    """The same with updates in place: (T + 1,) ln P."""
    U, W, V = (matrix.clone() for matrix in (model.weights.U, model.weights.W, model.weights.V))
    state = torch.full((HIDDEN,), model.initial_state)
    out = []
    for read, target in pairwise(class_sequence(model, sentence)):
        previous, state = state, torch.sigmoid(U[read] + W @ state)
        log_probs = torch.log_softmax(V @ state, dim=0)
        out.append(share_of(model, target, float(log_probs[target])))
        error = log_probs.exp()
        error[target] -= 1
        hidden = (V.T @ error) * state * (1 - state)
        V.addr_(error, state, alpha=-options.rate)
        U[read] -= options.rate * hidden
        W.addr_(hidden, previous, alpha=-options.rate)
    return np.array(out)


def seconds(work: Callable[[], object]) -> float:
    """How long it takes, once."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def speeds(model: ElmanLM, lists: list[list[list[int]]], rounds: int) -> list[Figure]:
    """Words a second of the loop, of frozen weights and of dynamic evaluation, in turns."""
    options = LearningOptions()
    dynamic = DynamicElman(model, options)
    start = Start.fresh(model)
    trees = [tree_of(lists[first : first + LISTS_A_BATCH]) for first in range(0, len(lists), LISTS_A_BATCH)]
    words = sum(len(sentence) for sentences in lists for sentence in sentences)
    few: list[list[int]] = []
    while sum(map(len, few)) < WORDS_OF_THE_LOOP:
        few.append(lists[0][len(few)])
    tree = PrefixTree.build(few)
    batched = np.concatenate([dynamic.score(tree, [start])[row] for row in tree.sentences])
    deviation = max(
        float(np.abs(np.concatenate([loop(model, sentence, options) for sentence in few]) - batched).max())
        for loop in (plain_loop, loop_by_hand)
    )
    rates: dict[str, list[float]] = {"plain loop": [], "loop by hand": [], "static": [], "dynamic": []}
    for number in range(1 + rounds):
        for name, work, count in (
            ("plain loop", lambda: [plain_loop(model, s, options) for s in few], sum(map(len, few))),
            ("loop by hand", lambda: [loop_by_hand(model, s, options) for s in few], sum(map(len, few))),
            ("static", lambda: [model.score(tree) for tree in trees], words),
            ("dynamic", lambda: [dynamic.score(tree, [start] * tree.roots) for tree in trees], words),
        ):
            rate = count / seconds(work)
            if number:
                rates[name].append(rate)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    threads = torch.get_num_threads()
    label = f"hidden {HIDDEN}, {CLASSES} classes, {LISTS_A_BATCH} 100-best lists at once, {threads} threads"
    return [
        *(Figure(f"{name}, {label}", value, "words/s") for name, value in medians.items()),
        Figure("dynamic / plain loop", medians["dynamic"] / medians["plain loop"], "x", f">= {FASTER_THAN_LOOP}"),
        Figure("dynamic / loop by hand", medians["dynamic"] / medians["loop by hand"], "x"),
        Figure("static / dynamic", medians["static"] / medians["dynamic"], "x", f"<= {SLOWER_THAN_STATIC}"),
        Figure("largest difference to the loops, float32", deviation, "nats a word", "<= 1e-4"),
    ]


def tree_of(lists: list[list[list[int]]]) -> PrefixTree:
    """The lists of a batch, each from a session of its own, as the service scores them."""
    roots = [number for number, sentences in enumerate(lists) for _ in sentences]
    return PrefixTree.build([sentence for sentences in lists for sentence in sentences], roots)


def memory(model: ElmanLM, text: list[list[int]]) -> list[Figure]:
    """What a session holds after so many words of running text, and how fast it learns them."""
    out = []
    start, learnt, begun = Start.fresh(model), 0, time.perf_counter()
    dynamic = DynamicElman(model, LearningOptions())
    waiting = list(SESSION_WORDS)
    for sentence in text:
        _, start = dynamic.learn(sentence, start)
        learnt += len(sentence) + 1
        if learnt >= waiting[0]:
            label = f"a session after {learnt:,} words: rank {start.delta.rank}"
            out.append(Figure(label, start.bytes / 2**20, "MiB"))
            waiting.pop(0)
            if not waiting:
                break
    out.append(Figure("learning accepted text", learnt / (time.perf_counter() - begun), "words/s"))
    bound = HIDDEN * (CLASSES + 2 * HIDDEN) * 4 / 2**20
    return [*out, Figure("bound on a session's output and recurrent factors", bound, "MiB")]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lists", type=int, default=24, help="how many N-best lists are rescored")
    parser.add_argument("--rounds", type=int, default=5, help="rounds measured, after one that is not")
    parser.add_argument("--sessions", type=int, default=1000, help="live sessions on the server; 0 leaves it out")
    arguments = parser.parse_args()
    normaliser = Normaliser()
    text = list(sentences([EXAMPLE / "ljspeech_text.txt.xz"], normaliser))
    vocabulary, model = random_network(word_counts(text))
    lists: list[NBest] = read_nbest(EXAMPLE / "lj.test.nbest.jsonl.gz")[: arguments.lists]
    ids = [[vocabulary.ids(normaliser.words(h.text)) for h in nbest.hypotheses] for nbest in lists]
    figures = speeds(model, ids, arguments.rounds)
    figures += memory(model, [vocabulary.ids(sentence) for sentence in text])
    if arguments.sessions:
        figures += live_sessions(vocabulary, model, lists, arguments.sessions)
    print(f"written to {write('dynamic', figures, 'make bench-dynamic')}")


if __name__ == "__main__":
    main()
