"""The fused normaliser against NumPy. Its kernel runs on a processor too, in Triton's interpreter, where Triton is."""

import os
import subprocess
import sys
import threading
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from models import cuda_logsumexp
from models.base import FloatArray
from models.cuda_logsumexp import fused_log_normaliser, has_kernel
from models.output_layer import FullSoftmax, fast_log_normaliser, log_normaliser

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    # What the installed Triton has to say about its own future is no failure of the kernel.
    pytest.mark.filterwarnings("default"),
]
interpreted = pytest.mark.skipif(
    find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs Triton and TRITON_INTERPRET=1, which must be set before Triton is imported",
)
DEVICES = [pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=on_gpu)]
# Nodes, classes, hidden units: none, one and several blocks, and no multiples of a block's 64, 128 and 32.
SIZES = [(0, 5, 3), (1, 1, 1), (3, 7, 5), (64, 128, 32), (65, 129, 33), (70, 1000, 200), (130, 300, 17)]


def network(nodes: int, C: int, H: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(nodes + C + H)
    states = torch.rand(nodes, H, generator=generator)
    return states.to(device), torch.randn(C, H, generator=generator).to(device)


def by_hand(states: torch.Tensor, V: torch.Tensor) -> FloatArray:
    logits = torch.einsum("nh,ch->nc", states.cpu().double(), V.cpu().double())
    exact: FloatArray = logits.logsumexp(1).numpy()
    return exact


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device runs these tests itself")
@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="these tests run in the interpreter already")
@pytest.mark.slow
def test_the_kernel_holds_in_tritons_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-rs", __file__]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("nodes", "C", "H"), SIZES)
def test_any_size_gives_the_normaliser_to_1e_4(nodes: int, C: int, H: int, device: str) -> None:
    states, V = network(nodes, C, H, device)
    found = fused_log_normaliser(states, V)
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(by_hand(states, V).tolist(), abs=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shares", [1, 2, 3, 7, 8, 1000])
def test_it_does_not_depend_on_how_the_classes_are_shared_out(shares: int, device: str) -> None:
    # 1,000 classes are eight blocks; three shares have three, three and two of them.
    states, V = network(70, 1000, 40, device)
    found = fused_log_normaliser(states, V, shares)
    assert found.tolist() == pytest.approx(by_hand(states, V).tolist(), abs=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shift", [-1e4, -800, -95, 0, 95, 800, 1e4])
def test_logits_far_from_0_are_no_trouble(shift: float, device: str) -> None:
    # A state of one unit that is 1 and adds the same to every logit.
    states, V = network(4, 200, 5, device)
    states[:, 0], V[:, 0] = 0, shift
    states[2, 0] = 1
    # float32 holds a logit of 10,000 to 5e-4, its multiple by log2(e) to 1e-3.
    tolerance = 1e-4 * max(1, abs(shift) / 100)
    assert fused_log_normaliser(states, V).tolist() == pytest.approx(by_hand(states, V).tolist(), abs=tolerance)


@pytest.mark.parametrize("device", DEVICES)
def test_a_larger_logit_in_every_further_block_is_followed(device: str) -> None:
    # One unit, logits 0, 1, 2, ...: the maximum rises with each block, and the first blocks count nearly nothing.
    states, V = torch.ones(1, 1, device=device), torch.arange(600.0, device=device)[:, None]
    expected = 599 + torch.tensor(1.0).exp().div(torch.tensor(1.0).exp() - 1).log()
    assert fused_log_normaliser(states, V, 2).tolist() == pytest.approx([float(expected)], abs=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_need_not_stand_end_to_end(device: str) -> None:
    states, V = network(20, 30, 12, device)
    expected = by_hand(states[:, :6], V[::2, :6]).tolist()
    assert fused_log_normaliser(states[:, :6], V[::2, :6]).tolist() == pytest.approx(expected, abs=1e-4)
    turned = fused_log_normaliser(states.T.contiguous().T, V.T.contiguous().T)
    assert turned.tolist() == pytest.approx(by_hand(states, V).tolist(), abs=1e-4)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("device", DEVICES)
def test_logits_that_are_no_numbers_stay_so_and_touch_no_other_state(device: str) -> None:
    states = torch.tensor([[1.0, 1.0], [0.0, 0.0], [torch.nan, 0.0]], device=device)
    V = torch.tensor([[3e38, 3e38], [0.0, 0.0]], device=device)
    found = fused_log_normaliser(states, V)
    assert torch.isfinite(found).tolist() == [False, True, False]
    assert float(found[1]) == pytest.approx(float(torch.tensor(2.0).log()), abs=1e-6)


# The interpreter multiplies the bits of bfloat16 as if they were integers.
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_gpu)])
def test_bfloat16_rounds_the_factors_and_nothing_else(device: str) -> None:
    states, V = network(40, 300, 70, device)
    found = fused_log_normaliser(states, V.bfloat16()).tolist()
    assert found == pytest.approx(by_hand(states.bfloat16(), V.bfloat16()).tolist(), abs=1e-4)
    # A factor is rounded by at most 2^-9 of itself: a logit by at most |s||V| / 256, and the normaliser by no more.
    bound = float((states @ V.abs().T).max()) / 256
    assert 0 < abs(torch.tensor(found) - torch.from_numpy(by_hand(states, V))).max() < bound


def test_the_processor_keeps_its_own_path() -> None:
    states, V = network(3, 4, 5, "cpu")
    assert not has_kernel(states, V)
    assert fast_log_normaliser(states, V).tolist() == pytest.approx(log_normaliser(states, V).tolist(), abs=1e-5)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were a kernel for everything, which has not failed yet."""
    monkeypatch.setattr(cuda_logsumexp, "has_kernel", lambda *_: True)
    monkeypatch.setattr(cuda_logsumexp, "_FAILED", threading.Event())


@pytest.mark.usefixtures("fresh")
def test_where_there_is_a_kernel_its_result_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    states, V = network(3, 4, 5, "cpu")
    monkeypatch.setattr(cuda_logsumexp, "fused_log_normaliser", lambda *_: torch.tensor([7.0, 8.0, 9.0]))
    assert fast_log_normaliser(states, V).tolist() == [7.0, 8.0, 9.0]


@pytest.mark.usefixtures("fresh")
def test_a_kernel_that_cannot_be_compiled_is_tried_once_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[str] = []

    def fail(*_: torch.Tensor) -> torch.Tensor:
        tries.append("tried")
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(cuda_logsumexp, "fused_log_normaliser", fail)
    states, V = network(3, 4, 5, "cpu")
    for _ in range(3):
        assert fast_log_normaliser(states, V).tolist() == pytest.approx(by_hand(states, V).tolist(), abs=1e-5)
    assert tries == ["tried"]
    assert len(caplog.records) == 1


@pytest.mark.usefixtures("fresh")
def test_a_gpu_that_is_full_is_no_reason_to_leave_the_kernel_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(cuda_logsumexp, "fused_log_normaliser", fail)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            fast_log_normaliser(*network(3, 4, 5, "cpu"))


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_gpu)])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_gpus_output_layer_is_that_of_the_processor(precision: str, device: str) -> None:
    states, V = network(300, 10_000, 200, "cpu")
    V *= 0.1
    histories, classes = torch.arange(300), torch.arange(300) * 31
    here = FullSoftmax(V).log_probs(states, histories, classes)
    moved = (tensor.to(device) for tensor in (states, histories, classes))
    there = FullSoftmax(V.to(device), precision).log_probs(*moved).cpu()  # type: ignore[arg-type]
    assert float((there - here).abs().max()) < {"float32": 1e-4, "bfloat16": 0.02}[precision]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize(("kind", "products"), [("fp32", "ieee"), ("fp32", "tf32"), ("bf16", "ieee")])
def test_the_kernel_compiles_for_gpus_that_are_not_there(
    capability: int, kind: str, products: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler, backends = import_module("triton.compiler"), import_module("triton.backends.compiler")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = import_module("models.cuda_kernels").partial_sums
    dtype = torch.float32 if kind == "fp32" else torch.bfloat16
    sizes = {"ROWS": 64, "CLASSES": 128, "UNITS": cuda_logsumexp._UNITS[dtype], "PRODUCTS": products}
    types = {"states": f"*{kind}", "V": f"*{kind}", "peaks": "*fp32", "sums": "*fp32"}
    signature = {name: "constexpr" if name in sizes else types.get(name, "i32") for name in kernel.arg_names}
    source = compiler.ASTSource(fn=kernel, signature=signature, constexprs=sizes, attrs={})
    made = compiler.compile(source, target=backends.GPUTarget("cuda", capability, 32))
    # Exact products are fused multiplications and additions; the others are matrix instructions.
    assert ("mma" in made.asm["ptx"]) == ((kind, products) != ("fp32", "ieee"))
    # The least shared memory a block may have on these: 99 KiB.
    assert made.metadata.shared <= 99 * 1024
