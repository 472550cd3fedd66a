"""Holm's correction for several tests at once (Holm 1979)."""

from collections.abc import Sequence


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """p-values such that to reject those below a level errs at all with at most that probability.

    The i-th smallest of m, counted from 1, is multiplied by m + 1 - i, and is at least as large as the ones before it.
    None, where a test is not defined, stays None and does not count.
    """
    order = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    out: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        out[place] = largest
    return out
