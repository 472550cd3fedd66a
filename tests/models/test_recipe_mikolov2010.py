from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from models.recipe_mikolov2010 import Mikolov2010, Mikolov2010Options
from models.rnnlm import ElmanWeights
from models.training_text import ClassStream

Array = NDArray[np.float64]
C, H = 9, 5


def stream_of(tokens: int, classes: int = C, seed: int = 1) -> ClassStream:
    return ClassStream(torch.randint(classes, (tokens,), generator=torch.Generator().manual_seed(seed)))


def start_weights(seed: int = 2, spread: float = 0.5) -> ElmanWeights:
    generator = torch.Generator().manual_seed(seed)
    sizes = ((C, H), (H, H), (C, H))
    return ElmanWeights(*(torch.randn(size, generator=generator, dtype=torch.float64) * spread for size in sizes))


def papers_loop(start: ElmanWeights, stream: ClassStream, rate: float, tau: int) -> tuple[Array, Array, Array]:
    """Online training as the paper has it: forward, error = desired - actual, back tau steps, one update a word."""
    U, W, V = (matrix.numpy().copy() for matrix in (start.U, start.W, start.V))
    states, read = [np.full(H, 0.1)], []
    for word, target in zip(stream.inputs.tolist(), stream.targets.tolist(), strict=True):
        s = 1 / (1 + np.exp(-(U[word] + W @ states[-1])))
        y = np.exp(V @ s) / np.exp(V @ s).sum()
        states.append(s)
        read.append(word)
        output_error = np.eye(C)[target] - y
        dU, dW, dV = np.zeros_like(U), np.zeros_like(W), np.outer(output_error, s)
        hidden_error = V.T @ output_error * s * (1 - s)
        for back in range(min(tau, len(read))):
            before = states[-2 - back]
            dU[read[-1 - back]] += hidden_error
            dW += np.outer(hidden_error, before)
            hidden_error = W.T @ hidden_error * before * (1 - before)
        U, W, V = U + rate * dU, W + rate * dW, V + rate * dV
    return U, W, V


@pytest.mark.parametrize("tau", [1, 2, 3, 5])
def test_the_first_200_updates_are_those_of_the_papers_formulas(tau: int) -> None:
    stream = stream_of(200)
    recipe = Mikolov2010(stream, start_weights(), Mikolov2010Options(rate=0.1, tau=tau))
    assert sum(recipe.epoch()) == 200
    expected = papers_loop(start_weights(), stream, 0.1, tau)
    for ours, theirs in zip(recipe.weights().named().values(), expected, strict=True):
        assert ours.numpy() == pytest.approx(theirs, abs=1e-12)


def test_the_reach_of_the_gradient_makes_a_difference() -> None:
    one, three = (papers_loop(start_weights(), stream_of(50), 0.1, tau)[1] for tau in (1, 3))
    assert np.abs(one - three).max() > 1e-4


@pytest.mark.parametrize("length", [1, 2, 4])
def test_an_update_that_reaches_all_the_way_back_is_the_gradient_of_the_log_likelihood(length: int) -> None:
    stream, start = stream_of(length, seed=3), start_weights()
    recipe = Mikolov2010(stream, start, Mikolov2010Options(tau=length))
    words = list(zip(stream.inputs.tolist(), stream.targets.tolist(), strict=True))
    recipe._rate = 0.0
    for word, target in words[:-1]:
        recipe.learn(word, target)
    recipe._rate = 0.01
    recipe.learn(*words[-1])
    U, W, V = (matrix.clone().requires_grad_() for matrix in (start.U, start.W, start.V))
    s = torch.full((H,), 0.1, dtype=torch.float64)
    for word, _ in words:
        s = torch.sigmoid(U[word] + W @ s)
    gradients = torch.autograd.grad(torch.log_softmax(V @ s, 0)[words[-1][1]], [U, W, V])
    moved = [new - old for new, old in zip(recipe.weights().named().values(), start.named().values(), strict=True)]
    for ours, theirs in zip(moved, gradients, strict=True):
        assert ours.numpy() == pytest.approx(0.01 * theirs.numpy(), abs=1e-14)


def test_a_word_is_scored_before_it_is_learnt_from() -> None:
    start = start_weights()
    s = torch.sigmoid(start.U[3] + start.W @ torch.full((H,), 0.1, dtype=torch.float64))
    expected = float(torch.log_softmax(start.V @ s, 0)[4])
    assert Mikolov2010(stream_of(1), start, Mikolov2010Options()).learn(3, 4) == pytest.approx(expected)


def test_the_weights_given_are_copied() -> None:
    start = start_weights()
    list(Mikolov2010(stream_of(20), start, Mikolov2010Options()).epoch())
    assert all(torch.equal(a, b) for a, b in zip(start.named().values(), start_weights().named().values(), strict=True))


def test_each_epoch_begins_from_the_initial_state() -> None:
    stream = stream_of(40)
    recipe = Mikolov2010(stream, start_weights(), Mikolov2010Options(rate=0.1, tau=3))
    for _ in range(2):
        list(recipe.epoch())
        recipe.validated(1e9)
    U, W, V = (torch.from_numpy(matrix) for matrix in papers_loop(start_weights(), stream, 0.1, 3))
    # The second validation did not help, but the rate is halved for the epoch after it only.
    expected = papers_loop(ElmanWeights(U, W, V), stream, 0.1, 3)
    for ours, theirs in zip(recipe.weights().named().values(), expected, strict=True):
        assert ours.numpy() == pytest.approx(theirs, abs=1e-12)


def schedule(perplexities: list[float], **options: Any) -> list[tuple[float, bool]]:
    """After each validation: the rate of the next epoch, and whether training is done."""
    recipe = Mikolov2010(stream_of(1), start_weights(), Mikolov2010Options(**options))
    out = []
    for perplexity in perplexities:
        list(recipe.epoch())
        recipe.validated(perplexity)
        done = recipe.done
        out.append((recipe.report()["rate"], done))
    return out


def test_the_rate_stays_while_each_epoch_helps() -> None:
    assert schedule([300, 200, 150, 120]) == [(0.1, False)] * 4


def test_the_rate_is_halved_from_the_first_epoch_that_does_not_help_until_the_second() -> None:
    # ln 90 / ln 89.9 = 1.0002 is less than 1.003; ln 89.9 / ln 80 is more, yet halving goes on; then the second stops.
    assert schedule([100, 90, 89.9, 80, 79.9]) == [
        (0.1, False),
        (0.1, False),
        (0.05, False),
        (0.025, False),
        (0.0125, True),
    ]


def test_an_epoch_that_makes_it_worse_does_not_help() -> None:
    assert [done for _, done in schedule([100, 120, 110])] == [False, False, True]


def test_the_number_of_epochs_is_bounded() -> None:
    assert [done for _, done in schedule([300, 200, 100], max_epochs=3)] == [False, False, True]


def test_initial_weights_are_drawn_with_the_seed() -> None:
    one, same, other = (Mikolov2010.initial_weights(C, H, Mikolov2010Options(), seed) for seed in (1, 1, 2))
    assert torch.equal(one.U, same.U)
    assert not torch.equal(one.U, other.U)


def test_initial_weights_are_small_and_of_mean_0() -> None:
    start = Mikolov2010.initial_weights(300, 100, Mikolov2010Options(weight_spread=0.1), seed=1)
    for matrix in start.named().values():
        assert float(matrix.mean()) == pytest.approx(0, abs=0.005)
        assert float(matrix.std()) == pytest.approx(0.1, rel=0.05)


def test_a_saved_state_is_not_moved_by_training_on() -> None:
    recipe = Mikolov2010(stream_of(40), start_weights(), Mikolov2010Options())
    state = recipe.state()
    before = {name: tensor.clone() for name, tensor in state.tensors.items()}
    list(recipe.epoch())
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.tensors.items())
    assert state.values["position"] == 0
