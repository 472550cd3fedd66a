import pytest
import torch
from torch import Tensor
from torch.nn import functional

from models import softmax_gradients as module
from models.scratch import Scratch
from models.softmax_gradients import softmax_gradients

N, K, H = 7, 11, 5
FIRST = torch.tensor([0])


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def case(kind: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    wanted = torch.randint(K, (N,), generator=torch.Generator().manual_seed(4))
    return draw(N, H).to(kind), draw(K, H, seed=2).to(kind), draw(K, seed=3).to(kind), wanted


@pytest.mark.parametrize("block", [1, 4, 1000])
@pytest.mark.parametrize("powers", [1, 2 * K, 3 * K + 1, 1000])
def test_loss_and_gradients_are_those_of_autograd_however_few_logits_are_held(
    powers: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POWERS", powers)
    monkeypatch.setattr(module, "_BLOCK", block)
    hidden, O, c, wanted = case()  # noqa: E741 - the output matrix
    found = softmax_gradients(hidden, O, c, wanted, 20)
    leaves = [leaf.clone().requires_grad_() for leaf in (hidden, O, c)]
    loss = functional.cross_entropy(torch.addmm(leaves[2], leaves[0], leaves[1].T), wanted, reduction="sum")
    expected = torch.autograd.grad(loss / 20, leaves)
    assert float(found.loss) == pytest.approx(float(loss.detach()), abs=1e-10)
    for one, other in zip((found.hidden, found.O, found.c), expected, strict=True):
        assert one.numpy() == pytest.approx(other.numpy(), abs=1e-10)


def test_memory_used_again_changes_nothing() -> None:
    scratch = Scratch()
    for classes in (K, 3, K):
        hidden, O, c, _ = case()  # noqa: E741 - the output matrix
        arguments = (hidden, O[:classes], c[:classes], torch.zeros(N, dtype=torch.int64), N)
        for one, other in zip(
            softmax_gradients(*arguments, scratch=scratch), softmax_gradients(*arguments), strict=True
        ):
            assert torch.equal(one, other)


def test_in_single_precision_the_gradients_are_near() -> None:
    exact, single = (softmax_gradients(*case(kind), N) for kind in (torch.float64, torch.float32))
    for one, other in zip(single, exact, strict=True):
        assert one.double().numpy() == pytest.approx(other.numpy(), abs=1e-6)


def test_in_bfloat16_the_gradients_are_of_its_precision_and_kept_in_single() -> None:
    exact, half = softmax_gradients(*case(), N), softmax_gradients(*case(torch.float32), N, bf16=True)
    assert {part.dtype for part in (half.hidden, half.O, half.c)} == {torch.float32}
    for one, other in zip(half, exact, strict=True):
        assert one.double().numpy() == pytest.approx(other.numpy(), rel=0.05, abs=0.02)


def test_two_classes_by_hand() -> None:
    # logits 0 and ln 3: y = (1/4, 3/4); wanted the first: loss ln 4, error (-3/4, 3/4)
    found = softmax_gradients(torch.ones(1, 1), torch.zeros(2, 1), torch.tensor([1.0, 3.0]).log(), FIRST, 1)
    assert float(found.loss) == pytest.approx(torch.tensor(4.0).log().item())
    assert found.c.tolist() == pytest.approx([-0.75, 0.75])
    assert found.O.flatten().tolist() == pytest.approx([-0.75, 0.75])


def test_a_class_whose_probability_underflows_has_a_finite_loss() -> None:
    found = softmax_gradients(torch.ones(1, 1), torch.tensor([[0.0], [1e4]]), torch.zeros(2), FIRST, 1)
    assert all(bool(torch.isfinite(part).all()) for part in found)
    assert found.c.tolist() == [-1.0, 1.0]


def test_what_is_not_finite_stays_so() -> None:
    found = softmax_gradients(torch.full((1, 1), torch.nan), torch.ones(2, 1), torch.zeros(2), FIRST, 1)
    assert torch.isnan(found.loss)
