"""The cost of steps: learnt from simulated ones whose true cost is known."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.cost_model import CostModel, Costs, Load

Truth = Callable[[Load], float]


def cost(overhead: float, a_list: float, a_token: float) -> Truth:
    return lambda load: overhead + a_list * load.lists + a_token * load.tokens


def loads(draw: random.Random) -> Load:
    lists = draw.randint(1, 8)
    return Load(lists, sum(draw.randint(50, 2000) for _ in range(lists)))


def taught(truth: Truth, steps: int = 100, model: CostModel | None = None, seed: int = 1) -> CostModel:
    draw, model = random.Random(seed), model or CostModel()
    for _ in range(steps):
        load = loads(draw)
        model.observe(load, truth(load))
    return model


@pytest.mark.parametrize("truth", [cost(0.002, 0.001, 40e-6), cost(0.0, 0.0, 1e-6), cost(0.5, 0.0, 0.0)])
def test_the_true_cost_is_found(truth: Truth) -> None:
    model = taught(truth)
    for load in (Load(1, 20), Load(4, 6000), Load(30, 50_000)):
        assert model.seconds(load) == pytest.approx(truth(load), rel=0.05)


def test_noise_averages_out_and_single_outliers_hardly_count() -> None:
    draw, truth = random.Random(2), cost(0.002, 0.001, 40e-6)

    def disturbed(load: Load) -> float:
        return truth(load) * draw.lognormvariate(0, 0.1) * (100 if draw.random() < 0.03 else 1)

    model = taught(disturbed, 300)
    assert model.seconds(Load(4, 6000)) == pytest.approx(truth(Load(4, 6000)), rel=0.2)


@pytest.mark.parametrize("factor", [0.05, 0.3, 3.0, 20.0])
def test_a_lasting_change_is_followed_within_some_steps(factor: float) -> None:
    truth = cost(0.002, 0.001, 40e-6)
    model = taught(lambda load: factor * truth(load), 40, taught(truth), seed=3)
    assert model.seconds(Load(4, 6000)) == pytest.approx(factor * truth(Load(4, 6000)), rel=0.25)


def test_equal_steps_are_put_down_to_tokens() -> None:
    # 60 ms for 1500 tokens; nothing tells whether lists cost anything by themselves. Ten lists: ten times as much.
    model = CostModel()
    for _ in range(50):
        model.observe(Load(1, 1500), 0.06)
    assert model.seconds(Load(1, 1500)) == pytest.approx(0.06, rel=0.01)
    assert model.seconds(Load(10, 15_000)) == pytest.approx(0.6, rel=0.05)


def test_before_enough_steps_nothing_is_foretold() -> None:
    model = taught(cost(0.01, 0, 0), 7)
    assert (model.known, model.seconds(Load(1, 10))) == (False, 0.0)
    model.observe(Load(1, 10), 0.01)
    assert model.known


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0.0, -1.0])
def test_a_duration_that_is_none_teaches_nothing(seconds: float) -> None:
    model = taught(cost(0.002, 0.001, 40e-6))
    before = model.seconds(Load(3, 3000))
    for _ in range(20):
        model.observe(Load(3, 3000), seconds)
    assert model.seconds(Load(3, 3000)) == before


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.integers(1, 10**6), st.floats(1e-7, 1e4, allow_nan=False)),
        min_size=8,
        max_size=60,
    )
)
def test_whatever_was_seen_costs_are_finite_and_more_work_never_costs_less(steps: list[tuple[int, int, float]]) -> None:
    model = CostModel()
    for lists, tokens, seconds in steps:
        model.observe(Load(lists, tokens), seconds)
    less, more = model.seconds(Load(2, 100)), model.seconds(Load(3, 500))
    assert 0 <= less <= more < math.inf
    assert 0 <= model.overhead_s < math.inf


class TestCosts:
    """Several kinds of work side by side."""

    def costs(self, **truths: Truth) -> Costs:
        costs, draw = Costs(), random.Random(1)
        for _ in range(60):
            for kind, truth in truths.items():
                load = loads(draw)
                costs.observe(kind, load, truth(load))
        return costs

    def test_each_kind_has_its_own(self) -> None:
        costs = self.costs(static=cost(0, 0, 40e-6), dynamic=cost(0, 0, 250e-6))
        assert costs.seconds("static", Load(1, 1000)) == pytest.approx(0.04, rel=0.05)
        assert costs.seconds("dynamic", Load(1, 1000)) == pytest.approx(0.25, rel=0.05)
        assert costs.seconds("never seen", Load(1, 1000)) == 0

    def test_a_backlog_is_the_sum_of_its_steps(self) -> None:
        # 10 ms a step and 100 us a token; steps of at most 110 ms hold 1000 tokens. 8000 tokens of 8 lists: 0.8 s and
        # eight times the 10 ms.
        costs = self.costs(static=cost(0.01, 0, 100e-6))
        assert costs.backlog_s([("static", Load(8, 8000))], 0.11) == pytest.approx(0.88, rel=0.05)
        assert costs.backlog_s([("static", Load(8, 8000))] * 2, 0.11) == pytest.approx(1.76, rel=0.05)
        assert costs.backlog_s([], 0.11) == 0

    def test_steps_are_not_kept_so_short_that_their_fixed_part_prevails(self) -> None:
        costs = self.costs(slow=cost(0.1, 0, 1e-6), quick=cost(1e-4, 0, 1e-6))
        assert costs.step_limit_s("slow", 0.1) == pytest.approx(0.8, rel=0.05)
        assert costs.step_limit_s("quick", 0.1) == 0.1
        assert costs.step_limit_s("never seen", 0.1) == math.inf

    def test_only_so_many_kinds_are_remembered(self) -> None:
        costs = self.costs(**{f"kind {number}": cost(0.01, 0, 0) for number in range(40)})
        assert sum(costs.seconds(f"kind {number}", Load(1, 1)) > 0 for number in range(40)) <= 32
