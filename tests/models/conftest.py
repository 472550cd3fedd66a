"""Small honest models and corpora, made the same way every time."""

import math
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from numpy.typing import NDArray

from clients.cli import main
from models.base import FloatArray
from models.bundle import Manifest, add_elman, add_kenlm, create_bundle
from models.kn_training import KneserNeyOptions, train_kneser_ney
from models.nbest import Hypothesis, NBest
from models.ngram import KenLMNgram
from models.normaliser import Normaliser
from models.prefix_tree import PrefixTree
from models.rescoring import Rescorer
from models.rnnlm import RARE_CLASS, ElmanLM, ElmanWeights, WordClasses
from models.score import Weights
from models.vocabulary import EOS_ID, FIRST_WORD_ID, UNK, Vocabulary

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None, max_examples=25)
settings.load_profile("repeatable")

# Matrices this small are multiplied fastest by one thread, and other work may share the machine.
torch.set_num_threads(1)

DATA = Path(__file__).parent / "data"
TINY_WORDS = ("good", "morning", "day")


def grammar_sentences(count: int, seed: int = 1) -> list[tuple[str, ...]]:
    """Sentences of a grammar with a known entropy: every choice is even."""
    draw = random.Random(seed)
    nouns = {"cat": ("sat", "ran"), "dog": ("ran", "barked"), "bird": ("sang", "sat"), "child": ("sang", "barked")}
    out = []
    for _ in range(count):
        noun = draw.choice(list(nouns))
        sentence = ["the", noun, draw.choice(nouns[noun])]
        if draw.random() < 0.5:
            sentence += ["and", draw.choice(("fell", "slept"))]
        out.append(tuple(sentence))
    return out


def classes_of(vocabulary: Vocabulary, rare: Sequence[str]) -> WordClasses:
    """Classes in which the words named are rare, as <unk> always is."""
    of_event = np.full(vocabulary.size, RARE_CLASS, np.int64)
    of_event[EOS_ID] = 0
    following = 2
    for event, word in enumerate(vocabulary.words, FIRST_WORD_ID):
        if word not in rare:
            of_event[event] = following
            following += 1
    return WordClasses(of_event, int((of_event == RARE_CLASS).sum()))


def random_elman(
    vocabulary: Vocabulary,
    *,
    rare: Sequence[str] = (),
    hidden: int = 6,
    seed: int = 1,
    spread: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> ElmanLM:
    """A network with random weights over the vocabulary."""
    classes = classes_of(vocabulary, rare)
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int) -> torch.Tensor:
        return (torch.randn(rows, hidden, generator=generator, dtype=torch.float64) * spread).to(dtype)

    return ElmanLM(ElmanWeights(matrix(classes.count), matrix(hidden), matrix(classes.count)), classes)


def plain_elman(
    model: ElmanLM, ids: Sequence[int], state: NDArray[np.float64] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The network as the paper writes it, word by word in float64: ln P of each event and the last hidden state."""
    U, W, V = (matrix.double().numpy() for matrix in (model.weights.U, model.weights.W, model.weights.V))
    s = np.full(W.shape[0], model.initial_state) if state is None else state
    read, out = 0, []
    for event in (*ids, EOS_ID):
        s = 1 / (1 + np.exp(-(U[read] + W @ s)))
        z = V @ s
        wanted = int(model.classes.of_event[event])
        log_prob = z[wanted] - z.max() - math.log(np.exp(z - z.max()).sum())
        out.append(log_prob - (math.log(model.classes.rare_members) if wanted == RARE_CLASS else 0.0))
        read = wanted
    return np.array(out), s


class Unigram:
    """A model without history: ln P of each event of the vocabulary, as told."""

    kind = "unigram"

    def __init__(self, log_probs: Sequence[float] | FloatArray) -> None:
        self.log_probs = np.asarray(log_probs, np.float64)

    @classmethod
    def drawn(cls, size: int, seed: int) -> "Unigram":
        shares = np.random.default_rng(seed).dirichlet(np.ones(size))
        return cls(np.log(shares))

    def score(self, tree: PrefixTree, start: FloatArray | None = None) -> tuple[FloatArray, None]:
        del start
        return self.log_probs[tree.event_words], None

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind}


class Broken(Unigram):
    """A model that fails as a program fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__([0.0])
        self.error = error

    def score(self, tree: PrefixTree, start: FloatArray | None = None) -> tuple[FloatArray, None]:
        del tree, start
        raise self.error


def nbest_of(name: str, *hypotheses: Sequence[Any], **more: Any) -> NBest:
    """An N-best list of (text, acoustic) or (text, acoustic, first_pass)."""
    return NBest(name, tuple(Hypothesis(*hypothesis) for hypothesis in hypotheses), **more)


def every_event(model: Any, history: Sequence[int], size: int, start: FloatArray | None = None) -> FloatArray:
    """(size,) ln P of every event of the vocabulary after one history."""
    sentences = [[*history, event] for event in range(size) if event != EOS_ID]
    tree = PrefixTree.build([list(history), *sentences])
    log_probs, _ = model.score(tree, start)
    out = np.empty(size)
    out[EOS_ID] = log_probs[tree.sentences[0][-1]]
    for sentence, events in zip(sentences, tree.sentences[1:], strict=True):
        out[sentence[-1]] = log_probs[events[-2]]
    return out


class Answer:
    """What a command answered."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def complaint(self) -> str:
        """The one line that a command which fails ends with."""
        line = self.err.strip().splitlines()[-1]
        assert line.startswith("nbest: error: ")
        assert "Traceback" not in self.err
        return line


@pytest.fixture(scope="session")
def make() -> Any:
    """What this file makes, for tests that cannot import it: test folders are no packages."""

    class Make:
        data = DATA
        tiny_words = TINY_WORDS
        grammar = staticmethod(grammar_sentences)
        classes = staticmethod(classes_of)
        elman = staticmethod(random_elman)
        plain_elman = staticmethod(plain_elman)
        nbest = staticmethod(nbest_of)
        every_event = staticmethod(every_event)
        Unigram = Unigram
        Broken = Broken

    return Make


@pytest.fixture(scope="session")
def tiny_vocabulary() -> Vocabulary:
    return Vocabulary(TINY_WORDS)


@pytest.fixture(scope="session")
def tiny(tiny_vocabulary: Vocabulary) -> KenLMNgram:
    return KenLMNgram(DATA / "tiny.arpa", tiny_vocabulary)


@pytest.fixture(scope="session")
def corpus_with_unknowns() -> list[tuple[str, ...]]:
    """Sentences in which some words are literal <unk>, as benchmark texts have them."""
    draw = random.Random(5)
    return [
        tuple(UNK if draw.random() < 0.1 else word for word in sentence) for sentence in grammar_sentences(300, seed=2)
    ]


@pytest.fixture(scope="session")
def train_kn(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., KenLMNgram]:
    """Train with KenLM's own programs over the vocabulary of the text."""

    def train(corpus: Sequence[Sequence[str]], order: int = 3) -> KenLMNgram:
        vocabulary = Vocabulary(tuple(sorted({word for sentence in corpus for word in sentence} - {UNK})))
        path = tmp_path_factory.mktemp("kn") / "kn.kenlm"
        options = KneserNeyOptions(order=order, discount_fallback=True, memory="50M")
        train_kneser_ney(corpus, vocabulary, path, options)
        return KenLMNgram(path, vocabulary)

    return train


@pytest.fixture(scope="session")
def kn(train_kn: Callable[..., KenLMNgram], corpus_with_unknowns: list[tuple[str, ...]]) -> KenLMNgram:
    """A trigram of a text with literal <unk>."""
    return train_kn(corpus_with_unknowns)


@pytest.fixture(scope="session")
def kn_vocabulary(corpus_with_unknowns: list[tuple[str, ...]]) -> Vocabulary:
    return Vocabulary(tuple(sorted({word for sentence in corpus_with_unknowns for word in sentence} - {UNK})))


@pytest.fixture(scope="session")
def rescorer(tiny_vocabulary: Vocabulary, tiny: KenLMNgram) -> Rescorer:
    """An n-gram and a network over three words."""
    network = random_elman(tiny_vocabulary, rare=("day",), seed=4, dtype=torch.float32)
    return Rescorer(tiny_vocabulary, Normaliser(), {"ngram": tiny, "rnn": network})


@pytest.fixture
def bundle_folder(tmp_path: Path, tiny_vocabulary: Vocabulary) -> Path:
    """A bundle of an n-gram and a network, its own copy for each test."""
    folder = tmp_path / "bundle"
    manifest: Manifest = create_bundle(folder, Normaliser(), tiny_vocabulary)
    (folder / "ngram.kenlm").write_bytes((DATA / "tiny.arpa").read_bytes())
    add_kenlm(folder, manifest, "ngram", {"order": 3})
    network = random_elman(tiny_vocabulary, rare=("day",), seed=4, dtype=torch.float32)
    add_elman(folder, manifest, "rnn", network)
    manifest.weights = Weights({"ngram": 0.25, "rnn": 0.75}, lm_scale=2.0, word_bonus=0.5, oov_bonus=-1.0)
    manifest.write(folder)
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Run a command as a user types it."""

    def command(*arguments: object) -> Answer:
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return command


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with an n-gram and a network, made by the commands."""
    folder = tmp_path_factory.mktemp("trained")
    for name, count, seed in (("train.txt", 120, 1), ("valid.txt", 30, 2)):
        (folder / name).write_text("".join(" ".join(words) + "\n" for words in grammar_sentences(count, seed)))
    bundle, text, valid = (str(folder / name) for name in ("bundle", "train.txt", "valid.txt"))
    assert main(["train", "kn", bundle, "--text", text, "--discount-fallback", "--memory", "50M"]) == 0
    sizes = ["--hidden=8", "--rare=0", "--epochs=2", "--streams=2", "--tau=5", "--samples=5", "--device=cpu"]
    assert main(["train", "rnn", bundle, "--text", text, "--valid", valid, *sizes]) == 0
    return Path(bundle)


@pytest.fixture
def trained(tmp_path: Path, trained_once: Path) -> Path:
    """A copy of it for each test."""
    return Path(shutil.copytree(trained_once, tmp_path / "bundle"))
