import pytest
import torch

from models.row_adagrad import RowGradient, clipping, row_step

ONE = torch.ones(())


def test_two_steps_of_one_row_by_hand() -> None:
    # g = (3, 1): the mean of squares is 5, a step g / sqrt(5); then g = (1, 1): 5 + 1 = 6, a step g / sqrt(6)
    parameter, accumulated = torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64)
    row = torch.tensor([1])
    for values in ([[3.0, 1.0]], [[1.0, 1.0]]):
        gradient = RowGradient.of(torch.tensor(values, dtype=torch.float64), row)
        row_step(parameter, accumulated, gradient, ONE.double(), 0.1)
    assert accumulated.flatten().tolist() == pytest.approx([0, 6])
    assert parameter[0].tolist() == [0, 0]
    assert parameter[1].tolist() == pytest.approx([-0.1 * (3 / 5**0.5 + 1 / 6**0.5), -0.1 * (1 / 5**0.5 + 1 / 6**0.5)])


def test_all_rows_are_what_every_row_named_is() -> None:
    values = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    found = []
    for rows in (None, torch.arange(5)):
        parameter, accumulated = torch.ones(5, 3), torch.ones(5, 1)
        row_step(parameter, accumulated, RowGradient.of(values, rows), ONE * 0.5, 0.1)
        found.append((parameter, accumulated))
    for one, other in zip(*found, strict=True):
        assert one.numpy() == pytest.approx(other.numpy(), abs=1e-6)


def test_gradients_longer_than_allowed_are_scaled_together() -> None:
    # of lengths 3 and 4, together 5
    squares = [torch.tensor([[9.0]]), torch.tensor([16.0])]
    assert float(clipping(squares, 1.0)) == pytest.approx(0.2)
    assert float(clipping(squares, 10.0)) == 1.0
