import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models import output_layer
from models.base import FloatArray
from models.errors import InvalidOptionError
from models.output_layer import (
    FullSoftmax,
    Precision,
    check_precision,
    fast_log_normaliser,
    log_normaliser,
    wanted_logits,
)

Normaliser = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

DTYPES = {torch.float64: 1e-10, torch.float32: 1e-4}


def network(nodes: int, C: int, H: int = 5, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * nodes + C)
    states = torch.rand(nodes, H, generator=generator, dtype=dtype)
    return states, torch.randn(C, H, generator=generator, dtype=dtype)


def normaliser_by_hand(states: torch.Tensor, V: torch.Tensor) -> FloatArray:
    logits = states.double().numpy() @ V.double().numpy().T
    peak = logits.max(axis=1)
    total: FloatArray = peak + np.log(np.exp(logits - peak[:, None]).sum(axis=1))
    return total


@pytest.mark.parametrize("normaliser", [log_normaliser, fast_log_normaliser])
@pytest.mark.parametrize(("rows", "tile"), [(1, 1), (2, 3), (3, 21), (7, 77), (100, 1000)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_normaliser_does_not_depend_on_its_tiles(
    monkeypatch: pytest.MonkeyPatch, normaliser: Normaliser, rows: int, tile: int, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(output_layer, "_ROWS", rows)
    monkeypatch.setattr(output_layer, "_TILE", tile)
    states, V = network(7, 11, dtype=dtype)
    assert normaliser(states, V).numpy() == pytest.approx(normaliser_by_hand(states, V), abs=DTYPES[dtype])


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(1, 40), st.integers(1, 4), st.integers(1, 9), st.integers(1, 50))
def test_neither_does_it_depend_on_the_threads(nodes: int, C: int, threads: int, rows: int, tile: int) -> None:
    states, V = network(nodes, C)
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output_layer, "_ROWS", rows)
        patch.setattr(output_layer, "_TILE", tile)
        torch.set_num_threads(threads)
        try:
            found = fast_log_normaliser(states, V)
        finally:
            torch.set_num_threads(before)
    assert found.numpy() == pytest.approx(log_normaliser(states, V).numpy(), abs=1e-10)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", [-1e4, -800, -95, -80, 0, 80, 95, 800, 1e4])
def test_logits_far_from_0_are_no_trouble(shift: float, dtype: torch.dtype) -> None:
    # A state of one unit that is 1 and adds the same to every logit; its row is computed anew, the others are not.
    states, V = network(4, 9, dtype=dtype)
    states[:, 0], V[:, 0] = 0, shift
    states[2, 0] = 1
    expected = normaliser_by_hand(states, V)
    # float32 holds a logit of 10,000 to 5e-4.
    tolerance = DTYPES[dtype] * max(1, abs(shift) / 100)
    assert fast_log_normaliser(states, V).numpy() == pytest.approx(expected, abs=tolerance)


def test_two_classes_at_1000_and_999_by_hand() -> None:
    # ln(e^1000 + e^999 + e^-1000) = 1000 + ln(1 + e^-1)
    states, V = torch.ones(1, 1), torch.tensor([[1000.0], [999.0], [-1000.0]])
    for normaliser in (log_normaliser, fast_log_normaliser):
        assert normaliser(states, V).tolist() == pytest.approx([1000 + math.log1p(math.exp(-1))])


def test_a_sum_at_the_lower_end_of_the_floats_loses_no_term() -> None:
    # 1,000 classes of e^-100, each too small for float32: ln Z = ln 1000 - 100.
    states, V = torch.ones(1, 1), torch.full((1000, 1), -100.0)
    assert fast_log_normaliser(states, V).tolist() == pytest.approx([math.log(1000) - 100], abs=1e-4)


def test_logits_that_are_no_numbers_stay_so() -> None:
    states, V = torch.full((1, 2), 1.0), torch.tensor([[3e38, 3e38], [0.0, 0.0]])
    assert not torch.isfinite(fast_log_normaliser(states, V)).any()


def test_wanted_logits_are_scalar_products(monkeypatch: pytest.MonkeyPatch) -> None:
    states, V = network(4, 6)
    histories, classes = torch.tensor([0, 0, 1, 3, 2, 3, 3]), torch.tensor([5, 0, 2, 1, 3, 4, 5])
    expected = (states @ V.T)[histories, classes].numpy()
    for events in (1, 3, 100):
        monkeypatch.setattr(output_layer, "_EVENTS", events)
        assert wanted_logits(states, V, histories, classes).numpy() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_classes_of_a_history_sum_to_1(dtype: torch.dtype) -> None:
    states, V = network(3, 40, dtype=dtype)
    histories, classes = torch.arange(3).repeat_interleave(40), torch.arange(40).repeat(3)
    log_probs = FullSoftmax(V).log_probs(states, histories, classes)
    assert log_probs.view(3, 40).exp().sum(1).tolist() == pytest.approx([1] * 3, abs=1e-5)


def test_no_events_are_no_scores() -> None:
    states, V = network(1, 3)
    none = torch.zeros(0, dtype=torch.long)
    assert FullSoftmax(V).log_probs(states, none, none).shape == (0,)


def test_bfloat16_stays_near_float32_and_is_not_it() -> None:
    # A weight is rounded by at most 2^-9 of itself, a state too: a logit by at most |s||V| / 256.
    states, V = network(20, 300, 32, torch.float32)
    histories = torch.arange(20)
    classes = torch.arange(20) * 7
    exact, rounded = (FullSoftmax(V, p).log_probs(states, histories, classes) for p in ("float32", "bfloat16"))
    bound = float((states @ V.abs().T).max()) / 128
    assert 0 < float((exact - rounded).abs().max()) < min(bound, 0.05)


def test_the_precision_is_described() -> None:
    assert FullSoftmax(torch.zeros(2, 1), "bfloat16").describe()["precision"] == "bfloat16"


def test_scoring_leaves_torch_with_its_threads() -> None:
    states, V = network(3, 4)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        FullSoftmax(V).log_probs(states, torch.tensor([0]), torch.tensor([1]))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


class Factored:
    """What a layer with no precision to choose says of itself."""

    classes = 2

    def log_probs(self, *_: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def describe(self) -> dict[str, str]:
        return {"output": "class-factored"}


def softmax(precision: Precision) -> FullSoftmax:
    return FullSoftmax(torch.zeros(2, 1), precision)


def test_a_precision_that_no_network_takes_up_is_an_error() -> None:
    with pytest.raises(InvalidOptionError, match=r"precision 'bfloat16'.*no network here has: .*'rnn'.*class-factored"):
        check_precision({"rnn": Factored()}, "bfloat16")
    with pytest.raises(InvalidOptionError, match=r"precision 'bfloat16'.*no network here has$"):
        check_precision({}, "bfloat16")


def test_where_one_of_two_networks_takes_it_up_the_other_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    check_precision({"a": softmax("bfloat16"), "b": Factored()}, "bfloat16")
    (record,) = caplog.records
    assert "precision 'bfloat16'" in record.getMessage()
    assert record.getMessage().endswith(": the output of 'b' is 'class-factored'")


def test_what_is_taken_up_or_not_asked_for_is_not_spoken_of(caplog: pytest.LogCaptureFixture) -> None:
    check_precision({"a": softmax("bfloat16")}, "bfloat16")
    check_precision({"a": softmax("float32"), "b": Factored()}, "float32")
    check_precision({}, "float32")
    assert not caplog.records
