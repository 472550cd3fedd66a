import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.evaluation.holm import holm

P = st.floats(0, 1)


def test_by_hand() -> None:
    # 0.01, 0.02, 0.03, 0.2 times 4, 3, 2, 1, none smaller than one before it: 0.04, 0.06, 0.06, 0.2
    assert holm([0.03, 0.2, 0.01, 0.02]) == pytest.approx([0.06, 0.2, 0.04, 0.06])


def test_one_test_needs_no_correction() -> None:
    assert holm([0.03]) == [0.03]


def test_a_test_that_is_not_defined_stays_so_and_does_not_count() -> None:
    assert holm([None, 0.01, 0.5]) == [None, 0.02, 0.5]


@given(st.lists(P, min_size=1, max_size=8))
def test_corrected_values_lie_between_the_plain_ones_and_bonferronis(values: list[float]) -> None:
    for plain, corrected in zip(values, holm(values), strict=True):
        assert corrected is not None
        assert plain <= corrected <= min(1.0, len(values) * plain)


@given(st.lists(P, min_size=1, max_size=8), st.floats(0.001, 0.5))
def test_what_is_rejected_is_what_the_step_down_procedure_rejects(values: list[float], level: float) -> None:
    # Holm 1979: go from the smallest on; stop at the first p with p > level / (number of tests left)
    order = sorted(values)
    rejected = 0
    while rejected < len(order) and order[rejected] * (len(order) - rejected) <= level:
        rejected += 1
    assert sum(p is not None and p <= level for p in holm(values)) == rejected
