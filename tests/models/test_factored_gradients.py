import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.class_factored import ClassFactored, ClassGroups
from models.errors import TrainingError
from models.factored_gradients import FactoredGradients
from models.perplexity import text_log_probs
from models.recipe_fast import Fast, FastOptions
from models.rnn_training import TrainingText, train_elman
from models.rnnlm import ElmanLM, WordClasses
from models.self_normalised import SelfNormalised
from models.softmax_gradients import softmax_gradients
from models.training_text import ClassStream

N, H = 9, 4
CPU = torch.device("cpu")
GROUPS = ClassGroups(np.array([2, 0, 1, 1, 0, 2, 1]))
C = len(GROUPS.of_class)


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def formula(hidden: Tensor, V: Tensor, c: Tensor, wanted: Tensor) -> Tensor:
    """The summed cross-entropy as the paper writes it; classes in their own order, groups below."""
    logits = torch.exp(hidden @ V.T + c)
    loss = torch.zeros((), dtype=hidden.dtype)
    for row, target in zip(logits, wanted.tolist(), strict=True):
        group = int(GROUPS.of_class[target])
        members = torch.from_numpy(np.flatnonzero(GROUPS.of_class == group))
        loss = loss - torch.log(row[C + group] / row[C:].sum()) - torch.log(row[target] / row[members].sum())
    return loss


@pytest.mark.parametrize("targets", [[*list(range(7)), 3, 3], [1, 4, 4, 1, 1, 4, 1, 4, 1]])
def test_loss_and_gradients_are_those_of_the_formula(targets: list[int]) -> None:
    layer = FactoredGradients(GROUPS, CPU)
    hidden, O, c, wanted = draw(N, H), draw(C + 3, H, seed=2), draw(C + 3, seed=3), torch.tensor(targets)  # noqa: E741 - the output matrix
    leaves = [leaf.requires_grad_() for leaf in (hidden.clone(), layer.by_class(O), layer.by_class(c))]
    loss = formula(*leaves, wanted)
    expected = torch.autograd.grad(loss / 20, leaves)
    found = layer(hidden, O, c, wanted, 20)
    assert float(found.loss) == pytest.approx(float(loss.detach()), abs=1e-10)
    for one, other in zip((found.hidden, layer.by_class(found.O), layer.by_class(found.c)), expected, strict=True):
        assert one.numpy() == pytest.approx(other.numpy(), abs=1e-10)


def test_the_gradient_is_that_of_finite_differences() -> None:
    layer = FactoredGradients(GROUPS, CPU)
    hidden, O, c, wanted = draw(N, H), draw(C + 3, H, seed=2), draw(C + 3, seed=3), torch.arange(N) % C  # noqa: E741 - the output matrix
    found = layer(hidden, O, c, wanted, 1)
    for row in range(C + 3):
        moved = O.clone()
        moved[row, 1] += 1e-6
        slope = (layer(hidden, moved, c, wanted, 1).loss - found.loss) / 1e-6
        assert float(found.O[row, 1]) == pytest.approx(float(slope), abs=1e-4)


def test_it_begins_at_the_words_own_frequencies() -> None:
    layer = FactoredGradients(GROUPS, CPU)
    unigram = torch.tensor([0.3, 0.2, 0.1, 0.1, 0.1, 0.15, 0.05], dtype=torch.float64)
    zeros = torch.zeros(C + 3, H, dtype=torch.float64)
    for target in range(C):
        found = layer(draw(1, H), zeros, layer.begun(unigram.log()), torch.tensor([target]), 1)
        assert float(found.loss) == pytest.approx(-math.log(unigram[target]))


@pytest.mark.parametrize("penalty", [0.1, 1.0])
def test_the_penalty_has_the_gradient_that_autograd_gives(penalty: float) -> None:
    hidden, O, c, wanted = draw(N, H), draw(C, H, seed=2), draw(C, seed=3), torch.arange(N) % C  # noqa: E741 - the output matrix
    leaves = [leaf.clone().requires_grad_() for leaf in (hidden, O, c)]
    logits = leaves[0] @ leaves[1].T + leaves[2]
    log_z = torch.logsumexp(logits, 1)
    entropy = (log_z - logits.gather(1, wanted[:, None])[:, 0]).sum()
    expected = torch.autograd.grad((entropy + penalty * log_z.square().sum()) / 20, leaves)
    found = softmax_gradients(hidden, O, c, wanted, 20, penalty=penalty)
    assert float(found.loss) == pytest.approx(float(entropy.detach()), abs=1e-10)
    for one, other in zip((found.hidden, found.O, found.c), expected, strict=True):
        assert one.numpy() == pytest.approx(other.numpy(), abs=1e-10)


CLASSES = WordClasses(np.array([1, 0, 2, 3, 4, 5, 6]), 1)
SMALL: dict[str, Any] = {"streams": 3, "tau": 5, "epochs": 2, "rate": 0.05, "reset_share": 0.0}


def stream_of(tokens: int) -> ClassStream:
    return ClassStream(torch.randint(C, (tokens,), generator=torch.Generator().manual_seed(1)))


def test_the_network_in_its_own_coordinates_gives_the_probabilities_of_the_centred_one() -> None:
    # t = tanh(E x + R t'), t_0 = 0, and the formula of the output
    options = FastOptions(output="class-factored", groups=3, **SMALL)
    recipe = Fast(stream_of(400), C, 6, options, 1, CPU)
    list(recipe.epoch())
    assert recipe.groups is not None
    weights = recipe.weights()
    model = ElmanLM(weights, CLASSES, recipe.initial_state, output=ClassFactored(weights.V, recipe.groups))
    E, R = (recipe._parameters[name].double() for name in "ER")
    O, c = (recipe._factored.by_class(recipe._parameters[name].double()) for name in "Oc")  # type: ignore[union-attr] # noqa: E741 - the output matrix
    sentence, t, expected = [3, 2, 6, 4, 5, 2], torch.zeros(5, dtype=torch.float64), []
    of_class = recipe.groups.of_class
    for read, wanted in zip([0, *sentence], [*sentence, 0], strict=True):
        t = torch.tanh(E[read] + R @ t)
        logits = O @ t + c
        members = torch.from_numpy(np.flatnonzero(of_class == of_class[wanted]))
        group = logits[C + int(of_class[wanted])] - torch.logsumexp(logits[C:], 0)
        expected.append(float(group + logits[wanted] - torch.logsumexp(logits[members], 0)))
    (found,) = text_log_probs(model, [[int(np.flatnonzero(CLASSES.of_event == i)[0]) for i in sentence]])
    assert found == pytest.approx(expected, abs=1e-5)


def repeated() -> TrainingText:
    """A text whose every word says what the next one is."""
    stream = ClassStream(torch.tensor([0, 2, 3, 4, 5, 6] * 300))
    return TrainingText(stream, stream, CLASSES, "vocabulary")


@pytest.mark.slow
def test_a_factored_network_learns_and_says_its_perplexity(tmp_path: Path) -> None:
    options = FastOptions(
        output="class-factored", epochs=4, rate=0.3, streams=4, tau=10, dropout=0.0, input_dropout=0.0
    )
    model = train_elman(repeated(), options, tmp_path, hidden_size=12, seed=1, device=CPU)
    assert isinstance(model.output, ClassFactored)
    found = np.concatenate(text_log_probs(model, [[2, 3, 4, 5, 6]] * 50, carry_state=True))
    assert model.training["valid_perplexity"] < 1.3
    assert math.exp(-found.mean()) == pytest.approx(model.training["valid_perplexity"], rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("samples", [0, 4])
def test_a_penalty_draws_the_normaliser_to_1(tmp_path: Path, samples: int) -> None:
    found = []
    for penalty in (1e-6, 1.0):
        options = FastOptions(
            normaliser_penalty=penalty, samples=samples, epochs=4, rate=0.3, streams=4, tau=10, dropout=0.0
        )
        folder = tmp_path / str(penalty)
        model = train_elman(repeated(), options, folder, hidden_size=12, seed=1, device=CPU)
        assert isinstance(model.output, SelfNormalised)
        found.append(model.output.measured)
    assert abs(found[1].log_normaliser) < abs(found[0].log_normaliser)
    assert found[1].deviation < found[0].deviation


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"output": "class-factored", "normaliser_penalty": 0.1}, "neither bf16 nor a penalty"),
        ({"output": "class-factored", "bf16": True}, "neither bf16 nor a penalty"),
        ({"groups": 5}, "class-factored"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        FastOptions(**options)


@pytest.mark.parametrize("option", ["--output=class-factored", "--normaliser-penalty=0.1", "--groups=3"])
def test_the_papers_recipe_refuses_them(run: Any, trained: Path, option: str) -> None:
    text = trained.parent / "text.txt"
    text.write_text("the cat sat\n")
    answer = run("train", "rnn", trained, "--text", text, "--valid", text, "--recipe", "mikolov2010", option)
    assert answer.code != 0
    assert f"no option {option.split('=', maxsplit=1)[0]}" in answer.complaint


@pytest.mark.slow
def test_both_are_trained_and_loaded_by_the_commands(run: Any, trained: Path) -> None:
    text = trained.parent / "text.txt"
    text.write_text("the cat sat\nthe dog ran and fell\nthe bird sang\n" * 20)
    common = ["--text", text, "--valid", text, "--hidden=8", "--rare=0", "--epochs=1", "--streams=2", "--tau=5"]
    assert run("train", "rnn", trained, *common, "--name=f", "--output=class-factored").code == 0
    assert run("train", "rnn", trained, *common, "--name=s", "--normaliser-penalty=0.1").code == 0
    answer = run("perplexity", trained, "--text", text)
    assert answer.code == 0
    assert all(f"{name}: perplexity" in answer.out for name in "fs")
