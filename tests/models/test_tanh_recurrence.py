from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from models.tanh_recurrence import TanhRecurrence

# torch leaves the type of apply open.
recurrence: Callable[..., Tensor] = TanhRecurrence.apply


@pytest.mark.parametrize("T", [1, 2, 6])
def test_the_gradient_through_time_is_that_of_finite_differences(T: int) -> None:
    generator = torch.Generator().manual_seed(1)
    B, H = 3, 4

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    embedded, R, start = draw(T, B, H).requires_grad_(), draw(H, H).requires_grad_(), draw(B, H)
    keep = (torch.rand(T, B, 1, generator=generator) < 0.6).double()
    assert torch.autograd.gradcheck(lambda e, r: recurrence(e, r, start, keep), (embedded, R))


def test_a_reset_forgets_what_was_before() -> None:
    R, embedded = torch.eye(2, dtype=torch.float64), torch.ones(3, 1, 2, dtype=torch.float64)
    keep = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64).view(3, 1, 1)
    one, two = (recurrence(embedded, R, torch.full((1, 2), s, dtype=torch.float64), keep) for s in (0.0, 0.9))
    assert not torch.equal(one[0], two[0])
    assert torch.equal(one[1:], two[1:])
