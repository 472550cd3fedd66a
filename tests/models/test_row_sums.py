import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.row_sums import row_dots, row_sums


def test_by_hand() -> None:
    table = torch.tensor([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
    places = torch.tensor([[2, 0], [1, 1]])
    assert row_sums(table, places, torch.tensor([[3.0, -1.0], [0.5, 0.25]])).tolist() == [[299.0, 598.0], [7.5, 15.0]]
    assert row_dots(table, places, torch.tensor([[1.0, 0.0], [1.0, 1.0]])).tolist() == [[100.0, 1.0], [30.0, 30.0]]


@given(st.integers(0, 5), st.integers(0, 4), st.integers(1, 6), st.integers(1, 5), st.integers(0, 99))
def test_both_are_what_gathered_rows_give(m: int, d: int, rows: int, width: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    table, weights, vectors = (draw.normal(size=shape) for shape in ((rows, width), (m, d), (m, width)))
    places = draw.integers(0, rows, (m, d))
    # Indices that are a view, as of a part of every path.
    seen = torch.from_numpy(np.pad(places, ((0, 0), (0, 2))))[:, :d]
    summed = row_sums(torch.from_numpy(table), seen, torch.from_numpy(weights))
    np.testing.assert_allclose(summed.numpy(), np.einsum("md,mdw->mw", weights, table[places]), atol=1e-12)
    dots = row_dots(torch.from_numpy(table), seen, torch.from_numpy(vectors))
    np.testing.assert_allclose(dots.numpy(), np.einsum("mw,mdw->md", vectors, table[places]), atol=1e-12)
