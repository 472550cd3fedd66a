import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from models.recipe import RecipeState
from models.rnn_training import Trainer, TrainingText
from models.rnnlm import ElmanWeights, WordClasses
from models.training_text import ClassStream
from models.validation import stream_perplexity
from models.vocabulary import Vocabulary


class Scripted:
    """A recipe that learns nothing: epoch n ends with the n-th of the networks given."""

    initial_state = 0.1
    groups = None

    def __init__(self, networks: list[ElmanWeights]) -> None:
        self._networks = networks
        self._epoch = 0

    def epoch(self) -> Iterator[int]:
        yield 1
        self._epoch += 1

    @property
    def done(self) -> bool:
        return self._epoch == len(self._networks)

    def validated(self, perplexity: float) -> None:
        del perplexity

    def progress(self) -> tuple[int, int | None]:
        return 1, None

    def report(self) -> dict[str, float]:
        return {}

    def weights(self) -> ElmanWeights:
        return self._networks[max(0, self._epoch - 1)]

    def state(self) -> RecipeState:
        return RecipeState({}, {"epoch": self._epoch})

    def restore(self, state: RecipeState) -> None:
        self._epoch = state.values["epoch"]


def test_the_network_that_validated_best_is_kept_not_the_last(tmp_path: Path) -> None:
    # Classes </s> and rare; the text is rare throughout, so the larger V[1], the better.
    stream = ClassStream(torch.ones(20, dtype=torch.int64))
    text = TrainingText(stream, stream, WordClasses(np.array([1, 0]), 1), "")

    def network(preference: float) -> ElmanWeights:
        V = torch.tensor([[0.0], [preference]])
        return ElmanWeights(torch.zeros(2, 1), torch.zeros(1, 1), V)

    networks = [network(1.0), network(9.0), network(2.0)]
    best, found = Trainer(Scripted(networks), text, tmp_path, {}).run()
    assert best is networks[1]
    # s = sigmoid(0) = 1/2
    assert found == pytest.approx(1 + math.exp(-9 / 2))


@pytest.mark.parametrize("tokens", [1, 999, 2501, 40_001])
def test_every_word_of_the_validation_text_counts_once(tokens: int) -> None:
    # A network of zeros gives each of 3 classes 1/3, and the rare class has 4 members.
    weights = ElmanWeights(torch.zeros(3, 2), torch.zeros(2, 2), torch.zeros(3, 2))
    classes = WordClasses(np.array([1, 0, 2, 1, 1, 1]), 4)
    targets = torch.randint(3, (tokens,), generator=torch.Generator().manual_seed(1))
    rare = int((targets == 1).sum())
    expected = math.exp(math.log(3) + rare / tokens * math.log(4))
    assert stream_perplexity(weights, ClassStream(targets), classes, 0.1) == pytest.approx(expected)


def test_a_stream_is_sentences_end_to_end_with_a_boundary_after_each() -> None:
    vocabulary = Vocabulary(("a", "b", "c"))
    classes = WordClasses(np.array([1, 0, 2, 3, 1]), 2)
    stream = ClassStream.from_sentences([("a", "zebra"), ("c", "b")], vocabulary, classes)
    assert stream.targets.tolist() == [2, 1, 0, 1, 3, 0]
    assert stream.inputs.tolist() == [0, 2, 1, 0, 1, 3]
