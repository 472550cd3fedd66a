"""Weighted sums of a few rows of a large table each, and scalar products with such rows.

Far fewer rows take part in a sum than the table has, so neither is worth a matrix product; and gathering the rows first
would write out what need only be read. torch has both without a gather, as the embedding bag and as its derivative with
respect to the weights of its rows.
"""

import torch
from torch import Tensor
from torch.nn import functional

_SUM = 0


def row_sums(table: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    """Sums over d of weights[:, d] * table[places[:, d]].

    table:   (rows, W)
    places:  (m, d) rows of the table
    weights: (m, d)
    returns: (m, W)
    """
    if not places.shape[1]:
        return table.new_zeros(len(places), table.shape[1])
    return functional.embedding_bag(places, table, per_sample_weights=weights, mode="sum")


def row_dots(table: Tensor, places: Tensor, vectors: Tensor) -> Tensor:
    """The scalar products vectors[m] . table[places[m, d]].

    table:   (rows, W)
    places:  (m, d) rows of the table
    vectors: (m, W)
    returns: (m, d)
    """
    m, d = places.shape
    if not places.numel():
        return table.new_zeros(m, d)
    bags = torch.arange(m, device=table.device)
    dots: Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(  # noqa: SLF001 - no public name has it
        vectors, table, places.flatten().contiguous(), bags * d, bags.repeat_interleave(d), _SUM
    )
    return dots.view(m, d)
