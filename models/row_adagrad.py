"""AdaGrad (Duchi et al. 2011) with one accumulator a matrix row, which touches only the rows that were used."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class RowGradient:
    """The gradient of some rows of a matrix.

    values:  (rows, H)
    rows:    (rows,) which ones, each once; None: all of them
    squares: (rows, 1) the sum of squares of each row of values
    """

    values: Tensor
    rows: Tensor | None
    squares: Tensor

    @classmethod
    def of(cls, values: Tensor, rows: Tensor | None) -> "RowGradient":
        """Of values and row numbers."""
        return cls(values, rows, torch.linalg.vector_norm(values, dim=1, keepdim=True).square_())


def clipping(squares: Sequence[Tensor], longest: float) -> Tensor:
    """What gradients are multiplied by so that, taken together, they are at most `longest` long.

    squares: sums of squares of each parameter's gradient, of any shape
    returns: () at most 1
    """
    norm = torch.stack([part.sum() for part in squares]).sum().sqrt()
    return torch.clamp(longest / (norm + 1e-9), max=1.0)


def row_step(parameter: Tensor, accumulated: Tensor, gradient: RowGradient, scale: Tensor, rate: float) -> None:
    """One step with the gradient times `scale`, in place: row -= rate * g / sqrt(sum of the mean of g^2 so far).

    parameter:   (C, H)
    accumulated: (C, 1)
    """
    new = gradient.squares * (scale.square() / parameter.shape[1])
    if gradient.rows is None:
        accumulated.add_(new)
        parameter.addcmul_(gradient.values, scale / (accumulated.sqrt() + EPSILON), value=-rate)
        return
    accumulated.index_add_(0, gradient.rows, new)
    length = scale / (accumulated[gradient.rows].sqrt() + EPSILON)
    parameter.index_add_(0, gradient.rows, gradient.values * length, alpha=-rate)
