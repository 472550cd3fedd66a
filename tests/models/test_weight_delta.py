from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor

from models import dynamic
from models.dynamic import DynamicElman
from models.errors import SessionError
from models.learning import HiddenState, LearningOptions, Start
from models.rnnlm import ElmanLM, ElmanWeights
from models.vocabulary import EOS_ID, UNK_ID, Vocabulary
from models.weight_delta import Steps, WeightDelta

CLASSES, HIDDEN = 6, 4
LESSONS = st.lists(st.tuples(st.integers(1, 5), st.floats(0.0, 1.0)), max_size=4)
SEEDS = st.integers(0, 999)
TEXT = np.random.default_rng(2).choice([UNK_ID, 2, 3, 4], 80).tolist()


def random_weights(dtype: torch.dtype = torch.float64) -> ElmanWeights:
    generator = torch.Generator().manual_seed(1)
    shapes = ((CLASSES, HIDDEN), (HIDDEN, HIDDEN), (CLASSES, HIDDEN))
    return ElmanWeights(*(torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes))


WEIGHTS = random_weights()


def random_steps(generator: torch.Generator, words: int) -> Steps:
    """Steps of words whose errors reach two steps back, each class below 4."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    classes = torch.randint(0, 4, (2 * words,), generator=generator)
    return Steps(draw(words, CLASSES), draw(words, HIDDEN), draw(2 * words, HIDDEN), draw(2 * words, HIDDEN), classes)


def drawn(seed: int, lessons: Sequence[tuple[int, float]]) -> list[tuple[Steps, float]]:
    generator = torch.Generator().manual_seed(seed)
    return [(random_steps(generator, words), kept) for words, kept in lessons]


def after(lessons: Sequence[tuple[Steps, float]]) -> WeightDelta:
    delta = WeightDelta.none(WEIGHTS)
    for steps, kept in lessons:
        delta = delta.learnt(steps, kept)
    return delta


def summed(lessons: Sequence[tuple[Steps, float]]) -> list[NDArray[np.float64]]:
    """What U, W and V become when every product is added to whole matrices, one by one."""
    U, W, V = (np.zeros_like(matrix.numpy()) for matrix in WEIGHTS.named().values())
    for steps, kept in lessons:
        U, W, V = U * kept, W * kept, V * kept
        for error, state in zip(steps.output_errors.numpy(), steps.states.numpy(), strict=True):
            V += np.outer(error, state)
        hidden = (steps.hidden_errors.numpy(), steps.previous.numpy(), steps.classes.tolist())
        for error, previous, read in zip(*hidden, strict=True):
            W += np.outer(error, previous)
            U[read] += error
    return [base.numpy() + added for base, added in zip(WEIGHTS.named().values(), (U, W, V), strict=True)]


def fresh(model: ElmanLM) -> Start:
    return Start(WeightDelta.none(model.weights), HiddenState.initial(model))


def tensors(start: Start) -> list[Tensor]:
    return [*start.delta.named().values(), start.state.states, start.state.inputs]


def assert_same_network(one: Start, other: Start, model: ElmanLM) -> None:
    pairs = [start.delta.applied(model.weights).named().values() for start in (one, other)]
    for left, right in zip(*pairs, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-10)
    assert np.abs(one.hidden - other.hidden).max() < 1e-10


@pytest.fixture(scope="module", params=[3, 30], ids=["recompressed", "not yet"])
def learner(make: Any, request: pytest.FixtureRequest) -> DynamicElman:
    network = make.elman(Vocabulary(("a", "b", "c")), rare=("c",), hidden=request.param, seed=4)
    return DynamicElman(network, LearningOptions(rate=0.2, tau=3, decay=0.1))


@given(SEEDS, LESSONS)
def test_a_difference_is_the_sum_of_its_products(seed: int, lessons: list[tuple[int, float]]) -> None:
    taught = drawn(seed, lessons)
    applied = after(taught).applied(WEIGHTS).named().values()
    for matrix, expected in zip(applied, summed(taught), strict=True):
        np.testing.assert_allclose(matrix.numpy(), expected, rtol=0, atol=1e-12)


@given(SEEDS, LESSONS)
def test_the_rank_is_the_number_of_words_up_to_the_hidden_size(seed: int, lessons: list[tuple[int, float]]) -> None:
    assert after(drawn(seed, lessons)).rank == min(sum(words for words, _ in lessons), HIDDEN)


@given(SEEDS, LESSONS)
def test_the_classes_kept_are_those_read_each_once_ascending(seed: int, lessons: list[tuple[int, float]]) -> None:
    taught = drawn(seed, lessons)
    read = {int(each) for steps, _ in taught for each in steps.classes}
    assert after(taught).classes.tolist() == sorted(read)


@given(SEEDS, LESSONS, st.lists(st.integers(0, CLASSES - 1), max_size=9))
def test_input_rows_are_what_is_added_to_the_rows_asked_for(
    seed: int, lessons: list[tuple[int, float]], asked: list[int]
) -> None:
    taught = drawn(seed, lessons)
    rows = after(taught).input_rows(torch.tensor(asked, dtype=torch.int64))
    np.testing.assert_allclose(rows.numpy(), (summed(taught)[0] - WEIGHTS.U.numpy())[asked], rtol=0, atol=1e-12)


def test_one_word_by_hand() -> None:
    # V += (1, 0)^T (3), W += (2)^T (5), U[1] += 2; then all of it is halved and the same is added again.
    weights = ElmanWeights(*(torch.zeros(shape) for shape in ((2, 1), (1, 1), (2, 1))))
    one = torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0]]), torch.tensor([[2.0]]), torch.tensor([[5.0]])
    steps = Steps(*one, torch.tensor([1]))
    delta = WeightDelta.none(weights).learnt(steps, 1.0).learnt(steps, 0.5)
    applied = delta.applied(weights)
    assert applied.V.tolist() == [[4.5], [0.0]]
    assert applied.W.tolist() == [[15.0]]
    assert applied.U.tolist() == [[0.0], [3.0]]


def test_learning_changes_neither_the_difference_nor_the_steps_nor_the_weights() -> None:
    first, second = drawn(3, [(3, 1.0), (9, 0.5)])
    delta, weights = after([first]), random_weights()
    before = deepcopy((delta, second[0], weights))
    applied = delta.learnt(*second).applied(weights)
    for matrix in applied.named().values():
        matrix.zero_()
    now = (*delta.named().values(), second[0].output_errors, second[0].hidden_errors, *weights.named().values())
    then = (*before[0].named().values(), before[1].output_errors, before[1].hidden_errors)
    assert all(torch.equal(*pair) for pair in zip(now, (*then, *before[2].named().values()), strict=True))


def test_no_difference_holds_nothing_and_changes_no_bit() -> None:
    none = WeightDelta.none(WEIGHTS)
    assert (none.empty, none.rank, none.bytes) == (True, 0, 0)
    assert all(torch.equal(M, WEIGHTS.named()[name]) for name, M in none.applied(WEIGHTS).named().items())
    assert not after(drawn(1, [(1, 1.0)])).empty


@pytest.mark.parametrize("field", ["output_errors", "hidden_errors", "previous"])
def test_a_number_that_is_not_finite_is_seen(field: str) -> None:
    ((steps, kept),) = drawn(1, [(2, 1.0)])
    assert WeightDelta.none(WEIGHTS).learnt(steps, kept).finite
    getattr(steps, field)[0, 0] = torch.inf
    assert not WeightDelta.none(WEIGHTS).learnt(steps, kept).finite


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("words", "tau"), [(10, 1), (25, 3), (100, 5)])
def test_memory_does_not_grow_with_the_words_learnt(make: Any, dtype: torch.dtype, words: int, tau: int) -> None:
    C, H = 40, 20
    model = make.elman(Vocabulary(tuple(f"w{i}" for i in range(C - 2))), hidden=H, spread=0.3, dtype=dtype)
    text = np.random.default_rng(1).integers(2, 12, words - 1).tolist()
    _, start = DynamicElman(model, LearningOptions(tau=tau)).learn(text, fresh(model))
    size, rank = dtype.itemsize, min(words, H)
    # Read were </s> and at most the 10 words of the text.
    read = 1 + len(set(text))
    assert start.delta.bytes == size * (rank * (C + H) + H * H + read * H) + 8 * read
    if words > H:
        assert start.delta.bytes - read * (size * H + 8) == size * H * (C + 2 * H)


def test_a_start_holds_the_memory_it_says_and_no_more_of_a_text_than_errors_can_reach(learner: DynamicElman) -> None:
    for _, start in (learner.learn(TEXT, fresh(learner.model)), learner.read(TEXT, fresh(learner.model))):
        assert start.state.states.shape == (learner.options.tau, learner.model.hidden_size)
        assert sum(tensor.untyped_storage().nbytes() for tensor in tensors(start)) == start.bytes


@pytest.mark.parametrize("pieces", [[TEXT[:1], TEXT[1:3], [], TEXT[3:24]], [TEXT[:50], TEXT[50:]]])
def test_texts_learnt_one_by_one_are_one_running_text(learner: DynamicElman, pieces: list[list[int]]) -> None:
    running = [word for text in pieces for word in (*text, EOS_ID)][:-1]
    log_probs, whole = learner.learn(running, fresh(learner.model))
    start, rows = fresh(learner.model), []
    for text in pieces:
        row, start = learner.learn(text, start)
        rows.append(row)
    np.testing.assert_allclose(np.concatenate(rows), log_probs, rtol=0, atol=1e-12)
    assert_same_network(start, whole, learner.model)


@pytest.mark.parametrize("words", [1, 2, 7, 1000])
def test_how_often_a_text_is_folded_in_does_not_matter(
    learner: DynamicElman, monkeypatch: pytest.MonkeyPatch, words: int
) -> None:
    expected, whole = learner.learn(TEXT, fresh(learner.model))
    monkeypatch.setattr(dynamic, "_WORDS_A_FOLD", words)
    log_probs, start = learner.learn(TEXT, fresh(learner.model))
    np.testing.assert_allclose(log_probs, expected, rtol=0, atol=1e-12)
    assert_same_network(start, whole, learner.model)


def test_the_same_lesson_from_the_same_start_gives_the_same_bits(learner: DynamicElman) -> None:
    _, start = learner.learn(TEXT[:9], fresh(learner.model))
    (log_probs, one), (log_probs_again, other) = learner.learn(TEXT, start), learner.learn(TEXT, start)
    assert np.array_equal(log_probs, log_probs_again)
    assert all(torch.equal(*pair) for pair in zip(tensors(one), tensors(other), strict=True))


@pytest.mark.parametrize("lessons", [[], [(2, 1.0)], [(2, 1.0), (9, 0.5)]], ids=["none", "low", "full"])
def test_a_difference_comes_back_from_its_tensors_bit_for_bit(lessons: list[tuple[int, float]]) -> None:
    delta = after(drawn(5, lessons))
    back = WeightDelta.from_named(load(save(delta.named())), WEIGHTS)
    assert (back.rank, back.empty, back.bytes) == (delta.rank, delta.empty, delta.bytes)
    assert all(torch.equal(tensor, back.named()[name]) for name, tensor in delta.named().items())


def floats(*shape: int, dtype: torch.dtype = torch.float64, value: float = 1.0) -> Tensor:
    return torch.full(shape, value, dtype=dtype)


# Rank 2, and rows for the classes 1 and 4.
GOOD = {"G": floats(2, 6), "S": floats(2, 4), "W": floats(4, 4), "classes": torch.tensor([1, 4]), "U": floats(2, 4)}
REFUSED: list[tuple[dict[str, Tensor], str]] = [
    ({"G": floats(2, 5)}, "tensor G has shape"),
    ({"G": floats(3, 6)}, "tensor G has shape"),
    ({"S": floats(2, 5)}, "tensor S has shape"),
    ({"S": floats()}, "tensor G has shape"),
    ({"W": floats(4, 5)}, "tensor W has shape"),
    ({"W": floats(0, 4)}, "tensor W has shape"),
    ({"U": floats(3, 4)}, "tensor U has shape"),
    ({"classes": torch.tensor([[1, 4]])}, "tensor classes has shape"),
    ({"classes": torch.tensor(1)}, "tensor classes has shape"),
    ({"G": floats(2, 6, dtype=torch.float32)}, "tensor G holds torch.float32"),
    ({"W": floats(4, 4, dtype=torch.float16)}, "tensor W holds torch.float16"),
    ({"classes": floats(2)}, "tensor classes holds torch.float64"),
    ({"classes": torch.tensor([4, 1])}, "no difference of this network"),
    ({"classes": torch.tensor([4, 4])}, "no difference of this network"),
    ({"classes": torch.tensor([-1, 4])}, "no difference of this network"),
    ({"classes": torch.tensor([1, 6])}, "no difference of this network"),
    ({"G": floats(5, 6), "S": floats(5, 4)}, "no difference of this network"),
    # At full rank learning has multiplied the factors out.
    ({"G": floats(4, 6), "S": floats(4, 4)}, "no difference of this network"),
    # Without a recurrent difference nothing was learnt, so there cannot be others.
    ({"W": floats(0, 0)}, "tensor W has shape"),
    *[({name: GOOD[name] * torch.nan}, "not finite") for name in ("G", "S", "W", "U")],
    *[({name: GOOD[name] * -torch.inf}, "not finite") for name in ("G", "S", "W", "U")],
]


def test_tensors_that_fit_are_taken() -> None:
    assert WeightDelta.from_named(GOOD, WEIGHTS).rank == 2


@pytest.mark.parametrize(("change", "complaint"), REFUSED)
def test_tensors_that_do_not_fit_are_refused(change: dict[str, Tensor], complaint: str) -> None:
    with pytest.raises(SessionError, match=complaint):
        WeightDelta.from_named({**GOOD, **change}, WEIGHTS)


@pytest.mark.parametrize("name", GOOD)
def test_a_tensor_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(SessionError, match=f"tensor '{name}' is missing"):
        WeightDelta.from_named({key: tensor for key, tensor in GOOD.items() if key != name}, WEIGHTS)
