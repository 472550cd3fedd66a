"""Proof by summation: after any history, the probabilities of V + {<unk>, </s>} sum to 1."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from models.base import FloatArray
from models.ngram import KenLMNgram
from models.score import interpolate
from models.vocabulary import EOS_ID, UNK_ID, Vocabulary

Corpus = list[tuple[str, ...]]


def histories(size: int, count: int) -> list[list[int]]:
    """Histories of known and unknown words, seen and unseen, from the empty one up."""
    draw = random.Random(7)
    events = [event for event in range(size) if event != EOS_ID]
    return [[], [UNK_ID], *([draw.choice(events) for _ in range(draw.randrange(1, 7))] for _ in range(count))]


def sums(model: Any, vocabulary: Vocabulary, every_event: Callable[..., FloatArray]) -> list[float]:
    return [
        float(np.exp(every_event(model, history, vocabulary.size)).sum()) for history in histories(vocabulary.size, 40)
    ]


def vocabulary_of(corpus: Sequence[Sequence[str]]) -> Vocabulary:
    return Vocabulary(tuple(sorted({word for sentence in corpus for word in sentence})))


@pytest.mark.parametrize("order", [2, 3, 5])
def test_kneser_ney_sums_to_1(train_kn: Callable[..., KenLMNgram], make: Any, order: int) -> None:
    corpus = make.grammar(200)
    assert sums(train_kn(corpus, order), vocabulary_of(corpus), make.every_event) == pytest.approx([1] * 42, abs=1e-5)


def test_kneser_ney_with_unknown_words_in_its_text_sums_to_1(
    kn: KenLMNgram, kn_vocabulary: Vocabulary, make: Any
) -> None:
    assert sums(kn, kn_vocabulary, make.every_event) == pytest.approx([1] * 42, abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rare", [(), ("the",), ("cat", "dog", "sat", "fell")])
def test_the_network_sums_to_1(kn_vocabulary: Vocabulary, make: Any, seed: int, rare: tuple[str, ...]) -> None:
    model = make.elman(kn_vocabulary, rare=rare, seed=seed, spread=3.0)
    assert sums(model, kn_vocabulary, make.every_event) == pytest.approx([1] * 42, abs=1e-12)


def test_the_network_sums_to_1_in_float32(kn_vocabulary: Vocabulary, make: Any) -> None:
    model = make.elman(kn_vocabulary, rare=("cat", "sat"), hidden=64, dtype=torch.float32)
    assert sums(model, kn_vocabulary, make.every_event) == pytest.approx([1] * 42, abs=1e-5)


def test_the_network_sums_to_1_whatever_state_it_starts_from(kn_vocabulary: Vocabulary, make: Any) -> None:
    model = make.elman(kn_vocabulary, rare=("cat", "sat"))
    start = np.random.default_rng(3).uniform(0, 1, (1, model.hidden_size))
    assert np.exp(make.every_event(model, [2, 0, 3], kn_vocabulary.size, start)).sum() == pytest.approx(1)


def test_a_mixture_of_an_n_gram_and_networks_of_other_shortlists_sums_to_1(
    kn: KenLMNgram, kn_vocabulary: Vocabulary, make: Any
) -> None:
    models = [
        kn,
        make.elman(kn_vocabulary, rare=("cat", "sat"), seed=1),
        make.elman(kn_vocabulary, rare=kn_vocabulary.words[1:], seed=2),
        make.elman(kn_vocabulary, seed=3),
    ]
    lambdas = np.array([0.4, 0.3, 0.2, 0.1])
    for history in histories(kn_vocabulary.size, 20):
        parts = np.stack([make.every_event(model, history, kn_vocabulary.size) for model in models])
        assert np.exp(interpolate(parts, lambdas)).sum() == pytest.approx(1, abs=1e-5)
