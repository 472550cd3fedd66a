"""A small real bundle, and lists on which what a session has learnt makes a difference."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.bundle import Bundle, add_elman, add_kenlm, create_bundle, load_bundle
from models.nbest import Hypothesis, NBest
from models.normaliser import Normaliser
from models.rnnlm import RARE_CLASS, ElmanLM, ElmanWeights, WordClasses
from models.score import Weights
from models.session import SessionModel, SessionOptions, SessionState
from models.vocabulary import EOS_ID, Vocabulary

WORDS = ("good", "morning", "day")
ARPA = Path(__file__).parents[3] / "models" / "data" / "tiny.arpa"

# Matrices this small are multiplied fastest by one thread, and other work may share the machine.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def bundle_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An n-gram and a network with random weights over three words."""
    folder = tmp_path_factory.mktemp("sessions") / "bundle"
    vocabulary = Vocabulary(WORDS)
    manifest = create_bundle(folder, Normaliser(), vocabulary)
    (folder / "ngram.kenlm").write_bytes(ARPA.read_bytes())
    add_kenlm(folder, manifest, "ngram", {"order": 3})
    of_event = np.full(vocabulary.size, RARE_CLASS, np.int64)
    of_event[EOS_ID] = 0
    of_event[-len(WORDS) :] = np.arange(2, 2 + len(WORDS))
    classes = WordClasses(of_event, int((of_event == RARE_CLASS).sum()))
    generator = torch.Generator().manual_seed(4)
    U, W, V = (torch.randn(rows, 6, generator=generator) for rows in (classes.count, 6, classes.count))
    add_elman(folder, manifest, "rnn", ElmanLM(ElmanWeights(U, W, V), classes))
    manifest.weights = Weights({"ngram": 0.25, "rnn": 0.75}, lm_scale=2.0, word_bonus=0.5, oov_bonus=-1.0)
    manifest.write(folder)
    return folder


@pytest.fixture(scope="session")
def bundle(bundle_folder: Path) -> Bundle:
    return load_bundle(bundle_folder)


@pytest.fixture(scope="session")
def lists() -> list[dict[str, Any]]:
    """Twenty lists of three speakers, mixed; the acoustic scores say little."""
    draw = random.Random(3)
    out = []
    for number in range(20):
        texts = {" ".join(draw.choice((*WORDS, "evening")) for _ in range(draw.randint(1, 4))) for _ in range(6)}
        out.append(
            {
                "id": f"u{number}",
                "speaker": "abc"[draw.randrange(3)],
                "reference": " ".join(draw.choice(WORDS) for _ in range(3)),
                "hypotheses": [{"text": text, "acoustic_score": draw.uniform(-2, 0)} for text in sorted(texts)],
            }
        )
    return out


class ByHand:
    """Sessions kept by hand, one list at a time: label -> state."""

    def __init__(self, bundle: Bundle, options: SessionOptions) -> None:
        self.model = SessionModel(bundle.rescorer, bundle.weights, options)
        self.states: dict[str, SessionState] = {}

    def rescore(self, label: str, utterance: dict[str, Any], *, confirm: bool = False) -> list[tuple[int, float]]:
        """(index, total) of the ranking; then the winner, or the reference as a confirmed text, is accepted."""
        state = self.states.get(label) or self.model.fresh()
        hypotheses = tuple(Hypothesis(h["text"], h["acoustic_score"]) for h in utterance["hypotheses"])
        prepared = self.model.rescorer.prepare(NBest(utterance["id"], hypotheses))
        (result,) = self.model.rescore([prepared], [state])
        assert not isinstance(result, Exception)
        words = prepared.ids[result.best.index]
        confirm = confirm and "reference" in utterance
        if confirm:
            words = self.model.rescorer.vocabulary.ids(utterance["reference"].split())
        self.states[label] = self.model.accept(state, words, confirmed=confirm)
        return [(entry.index, entry.total) for entry in result.ranking]


@pytest.fixture
def by_hand(bundle: Bundle) -> Callable[[SessionOptions], ByHand]:
    return lambda options: ByHand(bundle, options)
