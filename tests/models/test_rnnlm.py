import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models import rnnlm
from models.errors import BundleError, ModelFailedError, TrainingError
from models.perplexity import text_log_probs
from models.prefix_tree import PrefixTree
from models.rnnlm import ElmanLM, ElmanWeights, WordClasses
from models.vocabulary import Vocabulary

VOCABULARY = Vocabulary(("a", "b", "c", "d", "e"))
SENTENCES = st.lists(st.lists(st.sampled_from([0, 2, 3, 4, 5, 6]), max_size=6), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def network(make: Any) -> ElmanLM:
    model: ElmanLM = make.elman(VOCABULARY, rare=("d", "e"), seed=3)
    return model


def test_a_network_of_one_unit_by_hand() -> None:
    # s_1 = sigmoid(U[</s>] + W s_0) = sigmoid(0.2 + 0.5 * 0.1) and P(</s>) = 1 / (1 + exp(s_1 * (2 - 1)))
    weights = ElmanWeights(torch.tensor([[0.2], [0.7]]), torch.tensor([[0.5]]), torch.tensor([[1.0], [2.0]]))
    model = ElmanLM(weights, WordClasses(np.array([1, 0, 1]), 2), initial_state=0.1)
    state = 1 / (1 + math.exp(-0.25))
    (scores,) = text_log_probs(model, [[]])
    assert scores == pytest.approx([-math.log(1 + math.exp(state))], abs=1e-6)


@given(SENTENCES)
def test_a_batch_equals_the_papers_loop_word_by_word(network: ElmanLM, make: Any, sentences: list[list[int]]) -> None:
    for row, sentence in zip(text_log_probs(network, sentences), sentences, strict=True):
        assert row == pytest.approx(make.plain_elman(network, sentence)[0], abs=1e-10)


def test_float32_is_close_to_the_papers_loop(make: Any) -> None:
    model = make.elman(VOCABULARY, rare=("d", "e"), hidden=32, seed=5, dtype=torch.float32)
    draw = np.random.default_rng(1)
    for length in (0, 1, 5, 40):
        sentence = draw.choice([0, 2, 3, 4, 5, 6], length).tolist()
        (row,) = text_log_probs(model, [sentence])
        assert row == pytest.approx(make.plain_elman(model, sentence)[0], abs=1e-4)


@given(SENTENCES)
def test_a_score_does_not_depend_on_what_else_is_scored(network: ElmanLM, sentences: list[list[int]]) -> None:
    together = text_log_probs(network, sentences)
    for row, sentence in zip(together, sentences, strict=True):
        assert row == pytest.approx(text_log_probs(network, [sentence])[0], abs=1e-12)


def test_members_of_the_rare_class_share_its_probability_evenly(network: ElmanLM, make: Any) -> None:
    log_probs = make.every_event(network, [2, 3], VOCABULARY.size)
    assert log_probs[0] == log_probs[VOCABULARY.ids("d")[0]] == log_probs[VOCABULARY.ids("e")[0]]


def test_the_rare_class_has_three_times_the_probability_of_each_of_its_three(network: ElmanLM, make: Any) -> None:
    alone = ElmanLM(network.weights, WordClasses(np.array([1, 0, 2, 3, 4]), 1), network.initial_state)
    shared = make.every_event(network, [2], VOCABULARY.size)
    whole = make.every_event(alone, [2], 5)
    assert math.exp(whole[0]) == pytest.approx(3 * math.exp(shared[0]))


def test_carried_state_is_running_on(network: ElmanLM, make: Any) -> None:
    # Two sentences with the state carried are one text with a boundary between.
    first, second = text_log_probs(network, [[2, 3], [4, 2]], carry_state=True)
    expected, state = make.plain_elman(network, [2, 3])
    assert first == pytest.approx(expected, abs=1e-10)
    assert second == pytest.approx(make.plain_elman(network, [4, 2], state)[0], abs=1e-10)


def test_carried_state_is_not_the_initial_state(network: ElmanLM) -> None:
    carried, reset = (text_log_probs(network, [[2, 3], [2, 3]], carry_state=carry)[1] for carry in (True, False))
    assert carried[0] != reset[0]


def test_each_root_starts_from_its_own_state(network: ElmanLM, make: Any) -> None:
    states = np.random.default_rng(2).uniform(0, 1, (2, network.hidden_size))
    scores, _ = network.score(tree := PrefixTree.build([[2], [2]], [1, 0]), states)
    for events, root in zip(tree.sentences, (1, 0), strict=True):
        assert scores[events] == pytest.approx(make.plain_elman(network, [2], states[root])[0], abs=1e-10)


def test_the_states_returned_are_those_of_the_histories(network: ElmanLM, make: Any) -> None:
    tree = PrefixTree.build([[2, 3, 4], [2]])
    _, states = network.score(tree)
    for node, sentence in zip(tree.last_nodes(), ([2, 3, 4], [2]), strict=True):
        assert states[node] == pytest.approx(make.plain_elman(network, sentence)[1], abs=1e-12)


@pytest.mark.parametrize("at_once", [1, 100, 1000])
def test_the_states_do_not_depend_on_how_levels_are_shared_out(
    monkeypatch: pytest.MonkeyPatch, network: ElmanLM, at_once: int
) -> None:
    draw = np.random.default_rng(4)
    tree = PrefixTree.build([draw.integers(2, 7, length).tolist() for length in range(30)], [*range(15)] * 2)
    start = draw.uniform(0, 1, (tree.roots, network.hidden_size))
    expected = network.states(tree, start)
    monkeypatch.setattr(rnnlm, "_STEP", at_once)
    assert torch.allclose(network.states(tree, start), expected, rtol=0, atol=1e-12)


def test_scoring_leaves_the_weights_and_the_start_as_they_were(network: ElmanLM) -> None:
    start = np.full((1, network.hidden_size), 0.3)
    before = {name: matrix.clone() for name, matrix in network.weights.named().items()}
    network.score(PrefixTree.build([[2, 3]]), start)
    assert all(torch.equal(matrix, before[name]) for name, matrix in network.weights.named().items())
    assert np.all(start == 0.3)


def test_words_up_to_the_threshold_are_rare() -> None:
    counts = Counter({"a": 9, "b": 4, "c": 3, "d": 3, "e": 1})
    classes = WordClasses.from_counts(VOCABULARY, counts, rare_threshold=3)
    assert classes.of_event.tolist() == [1, 0, 2, 3, 1, 1, 1]
    assert (classes.count, classes.rare_members) == (4, 4)


def test_a_threshold_of_0_leaves_the_unknown_word_alone_in_the_rare_class() -> None:
    classes = WordClasses.from_counts(VOCABULARY, Counter("abcde"), rare_threshold=0)
    assert classes.of_event.tolist() == [1, 0, 2, 3, 4, 5, 6]
    assert classes.rare_members == 1


def test_a_threshold_that_leaves_no_word_is_an_error() -> None:
    with pytest.raises(TrainingError, match="every word occurs at most 1 times"):
        WordClasses.from_counts(VOCABULARY, Counter("abcde"), rare_threshold=1)


@pytest.mark.parametrize(
    ("of_event", "members"),
    [([0, 1, 2], 1), ([1, 0, 2], 2), ([1, 0, -1], 1), ([2, 0, 1], 1)],
    ids=["swapped", "members", "negative", "unk not rare"],
)
def test_classes_that_contradict_themselves_are_refused(of_event: list[int], members: int) -> None:
    with pytest.raises(BundleError):
        WordClasses(np.array(of_event), members)


def weights_of(**changed: torch.Tensor) -> ElmanWeights:
    return ElmanWeights(**{"U": torch.zeros(3, 2), "W": torch.zeros(2, 2), "V": torch.zeros(3, 2), **changed})


@pytest.mark.parametrize(
    ("name", "matrix"),
    [
        ("U", torch.zeros(4, 2)),
        ("W", torch.zeros(2, 3)),
        ("V", torch.zeros(3, 1)),
        ("W", torch.tensor(1.0)),
        ("U", torch.full((3, 2), math.nan)),
        ("V", torch.tensor([[1.0, 2.0], [3.0, math.inf], [0.0, 0.0]])),
        ("V", torch.zeros(3, 2, dtype=torch.float64)),
        ("U", torch.zeros(3, 2, dtype=torch.int64)),
    ],
    ids=["U rows", "W square", "V columns", "no matrix", "NaN", "infinite", "mixed kinds", "integers"],
)
def test_weights_that_are_none_are_refused_by_matrix(name: str, matrix: torch.Tensor) -> None:
    with pytest.raises(BundleError, match="matrix"):
        ElmanLM(weights_of(**{name: matrix}), WordClasses(np.array([1, 0, 2]), 1))


def test_an_initial_state_that_is_not_finite_is_refused() -> None:
    with pytest.raises(BundleError, match="initial state"):
        ElmanLM(weights_of(), WordClasses(np.array([1, 0, 2]), 1), math.nan)


def test_a_score_that_is_no_number_is_a_failure_of_the_model() -> None:
    # Finite weights whose product is not.
    enormous = weights_of(U=torch.full((3, 2), 30.0), V=torch.full((3, 2), 3e38))
    model = ElmanLM(enormous, WordClasses(np.array([1, 0, 2]), 1))
    with pytest.raises(ModelFailedError, match="no log probability"):
        text_log_probs(model, [[2]])


def test_describe_says_sizes_and_training(network: ElmanLM) -> None:
    said = ElmanLM(network.weights, network.classes, training={"seed": 7}).describe()
    sizes = {"hidden_size": 6, "shortlist": 3, "rare_members": 3}
    assert said == {"kind": "elman", **sizes, "output": "softmax", "precision": "float32", "seed": 7}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_cuda_scores_as_the_cpu_does(make: Any) -> None:
    model = make.elman(VOCABULARY, rare=("d", "e"), hidden=32, seed=5, dtype=torch.float32)
    moved = ElmanLM(model.weights.to(torch.device("cuda")), model.classes, model.initial_state)
    sentences = [[2, 3, 4], [0, 5, 6, 2], []]
    here, there = (np.concatenate(text_log_probs(m, sentences)) for m in (model, moved))
    assert there == pytest.approx(here, abs=1e-4)
