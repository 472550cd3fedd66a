"""The recurrent layer in padded stretches of levels, against the plain one: on a processor, and recorded on a GPU."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models import cuda_recurrence
from models.base import FloatArray
from models.cuda_recurrence import LEVELS, SIZES, BucketedRecurrence, fits, stretches
from models.perplexity import text_log_probs
from models.prefix_tree import PrefixTree
from models.rnnlm import ElmanLM
from models.vocabulary import Vocabulary

VOCABULARY = Vocabulary(("a", "b", "c", "d", "e"))
SENTENCES = st.lists(st.lists(st.sampled_from([0, 2, 3, 4, 5, 6]), max_size=30), min_size=1, max_size=12)
on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module")
def network(make: Any) -> ElmanLM:
    model: ElmanLM = make.elman(VOCABULARY, rare=("d", "e"), seed=3)
    return model


def word_by_word(model: ElmanLM, tree: PrefixTree, previous: torch.Tensor) -> FloatArray:
    """The paper's formula, a node at a time."""
    U, W = model.weights.U.double().cpu(), model.weights.W.double().cpu()
    states: list[torch.Tensor] = []
    for node in range(tree.nodes):
        before = previous[node] if node < tree.roots else states[tree.parents[node]]
        states.append(torch.sigmoid(U[int(model.classes.of_event[tree.node_words[node]])] + W @ before.double().cpu()))
    out: FloatArray = torch.stack(states).numpy()
    return out


def bucketed(model: ElmanLM, tree: PrefixTree, previous: torch.Tensor) -> FloatArray:
    recurrence = BucketedRecurrence(model.weights.U, model.weights.W)
    out: FloatArray = recurrence.states(tree, model.classes.of_event[tree.node_words], previous).double().cpu().numpy()
    return out


@settings(deadline=None)
@given(SENTENCES, st.integers(1, 3), st.integers(1, 12))
def test_padded_stretches_equal_the_papers_loop(
    network: ElmanLM, sentences: list[list[int]], roots: int, levels: int
) -> None:
    tree = PrefixTree.build(sentences, [number % roots for number in range(len(sentences))])
    previous = torch.rand(tree.roots, network.hidden_size, generator=torch.Generator().manual_seed(roots)).double()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_recurrence, "LEVELS", levels)
        patch.setattr(cuda_recurrence, "SIZES", (2, 5, 100))
        found = bucketed(network, tree, previous)
    assert found == pytest.approx(word_by_word(network, tree, previous), abs=1e-10)


def many_sentences(count: int, longest: int) -> list[list[int]]:
    draw = random.Random(count)
    return [[draw.choice([0, 2, 3, 4, 5, 6]) for _ in range(draw.randint(0, longest))] for _ in range(count)]


def test_buffers_that_earlier_trees_have_left_are_no_trouble(network: ElmanLM) -> None:
    recurrence = BucketedRecurrence(network.weights.U, network.weights.W)
    for count, longest in ((300, 40), (3, 2), (1, 0), (90, 25), (300, 40)):
        tree = PrefixTree.build(many_sentences(count, longest))
        previous = torch.full((1, network.hidden_size), 0.1, dtype=torch.float64)
        found = recurrence.states(tree, network.classes.of_event[tree.node_words], previous).numpy()
        assert found == pytest.approx(word_by_word(network, tree, previous), abs=1e-10)
    assert set(recurrence._buffers) <= set(SIZES)


def test_twenty_levels_are_three_stretches_each_of_the_size_of_its_largest_level() -> None:
    # One sentence of 19 words and, from the 10th word on, 100 more that differ there: levels of 1, then of 101 nodes.
    sentences = [[2] * 19] + [[2] * 9 + [3 + number] + [2] * 9 for number in range(100)]
    tree = PrefixTree.build(sentences)
    laid = stretches(tree, tree.node_words)
    assert LEVELS == 8
    assert [(s.size, len(s.bounds) - 1, len(s.places)) for s in laid] == [(64, 8, 8), (128, 8, 608), (128, 4, 404)]


def test_a_level_larger_than_all_sizes_goes_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = PrefixTree.build([[2], [3], [4]])
    assert fits(tree)
    monkeypatch.setattr(cuda_recurrence, "SIZES", (2,))
    assert not fits(tree)


@given(SENTENCES)
@settings(deadline=None)
def test_the_way_over_a_device_gives_the_scores_of_the_way_without(
    network: ElmanLM, sentences: list[list[int]]
) -> None:
    # On a processor nothing is moved, yet all else of what a GPU is given is done.
    tree = PrefixTree.build(sentences)
    start = np.full((1, network.hidden_size), 0.3)
    for begin in (None, start):
        expected, found = network.score(tree, begin), network._launched(tree, begin)()
        assert found[0] == pytest.approx(expected[0], abs=1e-10)
        assert found[1] == pytest.approx(expected[1], abs=1e-10)


class TestOnAGPU:
    """Where there is one."""

    pytestmark = on_gpu

    @pytest.fixture
    def pair(self, make: Any) -> tuple[ElmanLM, ElmanLM]:
        here: ElmanLM = make.elman(VOCABULARY, rare=("d", "e"), hidden=37, seed=5, dtype=torch.float32)
        return here, ElmanLM(here.weights.to(torch.device("cuda")), here.classes, here.initial_state)

    def test_scores_are_those_of_the_processor_before_and_after_recording(self, pair: tuple[ElmanLM, ElmanLM]) -> None:
        here, there = pair
        sentences = many_sentences(500, 30)
        expected = np.concatenate(text_log_probs(here, sentences))
        for _ in range(cuda_recurrence._USES + 2):
            found = np.concatenate(text_log_probs(there, sentences))
            assert found == pytest.approx(expected, abs=1e-4)
        assert any(buffer._replay for buffer in there._bucketed._buffers.values())

    def test_a_replayed_step_equals_the_same_step_launch_by_launch(
        self, pair: tuple[ElmanLM, ElmanLM], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, there = pair
        tree = PrefixTree.build(many_sentences(200, 30))
        monkeypatch.setattr(cuda_recurrence, "_USES", 10**9)
        eager = there.score(tree)[1]
        monkeypatch.setattr(cuda_recurrence, "_USES", 1)
        recorded = ElmanLM(there.weights, there.classes, there.initial_state)
        for _ in range(3):
            assert recorded.score(tree)[1] == pytest.approx(eager, abs=1e-6)

    def test_where_nothing_can_be_recorded_all_goes_on_launch_by_launch(
        self, pair: tuple[ElmanLM, ElmanLM], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here, there = pair

        def refuse(*_: Any, **__: Any) -> None:
            raise RuntimeError("no graphs here")

        monkeypatch.setattr(torch.cuda, "graph", refuse)
        monkeypatch.setattr(cuda_recurrence, "_USES", 1)
        tree = PrefixTree.build(many_sentences(20, 9))
        assert there.score(tree)[0] == pytest.approx(here.score(tree)[0], abs=1e-4)

    def test_trees_begun_together_do_not_disturb_one_another(self, pair: tuple[ElmanLM, ElmanLM]) -> None:
        here, there = pair
        trees = [PrefixTree.build(many_sentences(count, 25)) for count in (5, 300, 40, 300, 7)]
        pending = [there.begin(tree) for tree in trees]
        for tree, found in zip(trees, pending, strict=True):
            assert found.result()[0] == pytest.approx(here.score(tree)[0], abs=1e-4)

    def test_a_level_larger_than_all_sizes_is_scored_too(
        self, pair: tuple[ElmanLM, ElmanLM], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here, there = pair
        monkeypatch.setattr(cuda_recurrence, "SIZES", (2,))
        tree = PrefixTree.build(many_sentences(50, 9))
        assert there.score(tree)[0] == pytest.approx(here.score(tree)[0], abs=1e-4)
