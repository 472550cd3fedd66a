from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from models.perplexity import text_log_probs
from models.recipe_fast import Fast, FastOptions
from models.rnnlm import ElmanLM, WordClasses
from models.training_text import ClassStream

C = 7
CPU = torch.device("cpu")
NO_DROPOUT = {"dropout": 0.0, "vector_dropout": 0.0, "input_dropout": 0.0}
SMALL = {"streams": 3, "tau": 5, "samples": 4, "epochs": 3, "rate": 0.05, **NO_DROPOUT}


def stream_of(tokens: int, seed: int = 1) -> ClassStream:
    return ClassStream(torch.randint(C, (tokens,), generator=torch.Generator().manual_seed(seed)))


def recipe_of(tokens: int = 100, hidden: int = 6, seed: int = 1, **options: Any) -> Fast:
    return Fast(stream_of(tokens), C, hidden, FastOptions(**{**SMALL, **options}), seed, CPU)


def trained(**options: Any) -> Fast:
    recipe = recipe_of(**options)
    list(recipe.epoch())
    return recipe


def test_the_network_in_its_own_coordinates_gives_the_probabilities_of_the_centred_one() -> None:
    # t = tanh(E x + R t'), t_0 = 0, y = softmax(O t + c), in NumPy
    recipe = trained(tokens=400)
    E, R, O, c = (recipe._parameters[name].double().numpy() for name in "EROc")  # noqa: E741 - as in the recipe
    sentence = [0, 3, 2, 6, 4, 5, 2]
    t, expected = np.zeros(R.shape[0]), []
    for read, wanted in zip([0, *sentence], [*sentence, 0], strict=True):
        t = np.tanh(E[read] + R @ t)
        logits = O @ t + c
        expected.append(logits[wanted] - np.log(np.exp(logits).sum()))
    # Event 0 is <unk>, class 1; event 1 is </s>, class 0; the others are their own class.
    classes = WordClasses(np.array([1, 0, 2, 3, 4, 5, 6]), 1)
    model = ElmanLM(recipe.weights(), classes, recipe.initial_state)
    event_of = {int(group): event for event, group in enumerate(classes.of_event)}
    parts = text_log_probs(model, [[], [event_of[i] for i in sentence[1:]]], carry_state=True)
    assert np.concatenate(parts) == pytest.approx(expected, abs=1e-5)


def test_the_last_unit_is_always_on() -> None:
    weights = trained().weights()
    assert torch.all(torch.sigmoid(weights.U[:, -1]) == 1)
    assert torch.all(weights.W[-1] == 0)
    assert torch.all(weights.W[:, -1] == 0)


def test_all_classes_drawn_need_no_correction() -> None:
    assert recipe_of(samples=100_000)._correction.abs().max() < 1e-6


def test_the_correction_is_the_logarithm_of_a_share() -> None:
    assert recipe_of(samples=2)._correction.max() <= 0


def test_the_correction_is_how_often_a_class_is_among_the_candidates() -> None:
    # Drawn at least once of K, or the target of at least one of B * T words drawn by their frequency.
    recipe = recipe_of(samples=5, streams=2, tau=3, tokens=300)
    unigram = torch.bincount(stream_of(300).targets, minlength=C).double() / 300
    generator = torch.Generator().manual_seed(5)
    trials, seen = 20_000, torch.zeros(C)
    drawn = torch.multinomial(recipe._proposal, 5 * trials, replacement=True, generator=generator).view(trials, 5)
    targets = torch.multinomial(unigram, 6 * trials, replacement=True, generator=generator).view(trials, 6)
    for group in range(C):
        seen[group] = ((drawn == group).any(1) | (targets == group).any(1)).double().mean()
    assert recipe._correction.exp().numpy() == pytest.approx(seen.numpy(), abs=0.02)


def test_a_step_with_every_class_drawn_is_a_step_of_the_full_softmax() -> None:
    full, sampled = (recipe_of(samples=samples, reset_share=0.0) for samples in (0, 100_000))
    next(full.epoch())
    next(sampled.epoch())
    for name in "EROc":
        assert sampled._parameters[name].numpy() == pytest.approx(full._parameters[name].numpy(), abs=1e-6)


def plain_steps(recipe: Fast, steps: int) -> dict[str, Tensor]:
    """The same steps of the full softmax, without dropout, as autograd and AdaGrad's formulas give them."""
    o = recipe._options
    p = {name: value.double() for name, value in recipe._parameters.items()}
    squares = {name: torch.zeros(len(p[name]) if name != "R" else 1, 1, dtype=torch.float64) for name in "ERO"}
    inputs, targets = (
        tokens.roll(recipe._offset)[: o.streams * recipe._stream_length].view(o.streams, -1).T
        for tokens in (recipe._inputs, recipe._targets)
    )
    state = torch.zeros(o.streams, len(p["R"]), dtype=torch.float64)
    for step in range(steps):
        rows = slice(step * o.tau, (step + 1) * o.tau)
        leaves = {name: value.clone().requires_grad_() for name, value in p.items()}
        states = []
        for words in inputs[rows]:
            state = torch.tanh(leaves["E"][words] + state @ leaves["R"].T)
            states.append(state)
        logits = torch.cat(states) @ leaves["O"].T + leaves["c"]
        functional.cross_entropy(logits, targets[rows].flatten()).backward()  # type: ignore[no-untyped-call] # torch leaves it untyped
        state = state.detach()
        gradients = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
        length = float(torch.cat([g.flatten() for g in gradients.values()]).norm())
        planned = recipe._steps_planned
        warm = min(1.0, (step + 1) / min(500, 1 + 0.05 * planned))
        rate = o.rate * (warm * (1 - step / planned) + 1e-3)
        for name, gradient in gradients.items():
            clipped = gradient * min(1.0, 1.0 / length)
            if name in squares:
                squares[name] += clipped.square().mean() if name == "R" else clipped.square().mean(1, keepdim=True)
                clipped /= squares[name].sqrt() + 1e-8
            p[name] -= rate * clipped
    return p


@pytest.mark.parametrize("samples", [0, 100_000])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_step_is_what_autograd_and_the_formulas_of_adagrad_give(samples: int, steps: int) -> None:
    recipe = recipe_of(samples=samples, reset_share=0.0)
    expected = plain_steps(recipe, steps)
    going = recipe.epoch()
    for _ in range(steps):
        next(going)
    for name in "EROc":
        assert recipe._parameters[name].numpy() == pytest.approx(expected[name].numpy(), abs=1e-5)


def test_a_step_with_few_classes_drawn_leaves_the_others_alone() -> None:
    recipe = Fast(ClassStream(torch.tensor([2, 3, 2, 3])), 1000, 4, FastOptions(streams=1, tau=4, samples=5), 1, CPU)
    before = recipe._parameters["O"].clone()
    next(recipe.epoch())
    assert (recipe._parameters["O"] != before).any(1).sum() <= 2 + 5


def test_an_epoch_reads_every_stream_to_its_end() -> None:
    # 100 words in 3 streams of 33, 5 words of each a step
    words = list(recipe_of(tokens=100).epoch())
    assert words == [15, 15, 15, 15, 15, 15, 9]


def test_a_text_shorter_than_the_streams_is_read_all_the_same() -> None:
    recipe = recipe_of(tokens=2, streams=20)
    assert sum(recipe.epoch()) == 2


def test_training_is_done_after_the_epochs_planned() -> None:
    recipe = recipe_of(epochs=2)
    done = []
    for _ in range(2):
        list(recipe.epoch())
        recipe.validated(5.0)
        done.append(recipe.done)
    assert done == [False, True]


def test_the_rate_falls_to_zero_over_the_epochs_planned() -> None:
    recipe, rates = recipe_of(epochs=2), []
    for _ in range(2):
        list(recipe.epoch())
        rates.append(recipe.report()["rate"])
        recipe.validated(5.0)
    assert rates == pytest.approx([0.025, 0.0])


def test_the_seed_decides_all() -> None:
    one, same, other = (trained(seed=seed, dropout=0.2, input_dropout=0.1).weights() for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.named().values(), same.named().values(), strict=True))
    assert not torch.equal(one.V, other.V)


def test_a_saved_state_is_not_moved_by_training_on() -> None:
    recipe = recipe_of()
    state = recipe.state()
    before = {name: tensor.clone() for name, tensor in state.tensors.items()}
    list(recipe.epoch())
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.tensors.items())


def test_sampling_few_classes_does_not_bend_the_distribution() -> None:
    # Words drawn by Zipf's law without any history: the output bias must stay at their frequencies.
    frequencies = 1 / torch.arange(1, 61, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    stream = ClassStream(torch.multinomial(frequencies, 4000, replacement=True, generator=generator))
    options = FastOptions(epochs=4, rate=1.0, streams=2, tau=5, samples=5, **NO_DROPOUT)
    recipe = Fast(stream, 60, 2, options, 1, CPU)
    for _ in range(2):
        list(recipe.epoch())
        recipe.validated(1.0)
    found = torch.log_softmax(recipe._parameters["c"].double(), 0)
    share = torch.bincount(stream.targets, minlength=60).double() / 4000
    divergence = float((share * (torch.log(share + 1e-12) - found)).sum())
    assert divergence < 0.02
