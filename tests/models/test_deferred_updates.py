import torch

from models.deferred_updates import OutputMatrix


def test_updates_kept_aside_count_as_applied_at_once() -> None:
    generator = torch.Generator().manual_seed(3)
    V = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    matrix, plain = OutputMatrix(V), V.clone()
    for _ in range(40):
        error = torch.randn(7, generator=generator, dtype=torch.float64)
        state = torch.randn(4, generator=generator, dtype=torch.float64)
        torch.testing.assert_close(matrix.logits(state), plain @ state, rtol=0, atol=1e-12)
        torch.testing.assert_close(matrix.back(error), plain.T @ error, rtol=0, atol=1e-12)
        matrix.add(error, state, 0.1)
        plain += 0.1 * torch.outer(error, state)
    torch.testing.assert_close(matrix.value(), plain, rtol=0, atol=1e-12)


def test_the_matrix_given_is_left_as_it_was() -> None:
    V = torch.ones(3, 2)
    matrix = OutputMatrix(V)
    matrix.add(torch.ones(3), torch.ones(2), 1.0)
    matrix.apply()
    assert torch.equal(V, torch.ones(3, 2))
