"""The normaliser of a full softmax on a GPU: logits live in registers and are never stored.

One launch of the kernel in models/cuda_kernels.py multiplies, takes powers and sums. Where there are few states the
classes are shared out as well, so that every multiprocessor has work; the shares are then brought together. In float32
the result is within 1e-4 of the exact one. Triton is wanted for this; torch's CUDA builds bring it.
"""

import logging
import math
import threading
from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

# Sizes of a block: states, classes, hidden units at a time. A block of logits takes 64 registers a thread, and what is
# read ahead fits into the shared memory of every GPU since Ampere. Reasoned, not measured.
_ROWS, _CLASSES = 64, 128
_UNITS = {torch.float32: 32, torch.bfloat16: 64}
# So many programs a multiprocessor hide one another's waiting.
_PROGRAMS = 2
# Ampere is the first to multiply bfloat16, and the first that today's Triton is made for.
_CAPABILITY = (8, 0)

_LOG = logging.getLogger(__name__)
_FAILED = threading.Event()


def has_kernel(states: Tensor, V: Tensor) -> bool:
    """Whether `fused_log_normaliser` takes these: on one CUDA device, states in float32, V in float32 or bfloat16."""
    return (
        states.device.type == "cuda"
        and states.device == V.device
        and states.dtype == torch.float32
        and V.dtype in _UNITS
        and _triton_is_there()
        and torch.cuda.get_device_capability(states.device) >= _CAPABILITY
    )


def fused_where_possible(states: Tensor, V: Tensor) -> Tensor | None:
    """What `fused_log_normaliser` gives, or None where there is no kernel for these.

    Triton compiles when it is first used, for which some of its releases want a C compiler. Where that fails it is said
    once, and the kernel is left alone from then on.
    """
    if _FAILED.is_set() or not has_kernel(states, V):
        return None
    try:
        return fused_log_normaliser(states, V)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # noqa: BLE001 - compilers fail in many ways, and there is another path
        _FAILED.set()
        _LOG.warning("Triton could not run the fused softmax; the slower path is taken instead", exc_info=True)
        return None


@cache
def _triton_is_there() -> bool:
    return find_spec("triton") is not None


def fused_log_normaliser(states: Tensor, V: Tensor, shares: int | None = None) -> Tensor:
    """Ln sum_c exp(V_c . s) for each state, whatever the size of the logits; waits for nothing.

    float32 is multiplied in TF32 only where torch was told to do so for matrix products of its own.

    states:  (nodes, H) float32
    V:       (C, H) float32 or bfloat16; in the latter case products are of bfloat16, and sums still of float32
    shares:  into how many parts the classes are divided; as many as keep the GPU busy when left out
    returns: (nodes,) float32; no finite number where a logit is none
    """
    from models.cuda_kernels import partial_sums  # noqa: PLC0415 - needs Triton, which few machines have

    nodes, C = len(states), len(V)
    if not nodes or not C:
        return states.new_full((nodes,), -torch.inf)
    multiplied = _with_rows_in_one_piece(states.to(V.dtype))
    V = _with_rows_in_one_piece(V)
    blocks, rows = _ceil(C, _CLASSES), _ceil(nodes, _ROWS)
    a_share = _ceil(blocks, min(shares or _shares(states.device, rows), blocks))
    count = _ceil(blocks, a_share)
    peaks, sums = states.new_empty(2, count, nodes).unbind()
    # Triton launches on the thread's current device, which need not be that of the tensors.
    with torch.cuda.device(states.device) if states.device.type == "cuda" else nullcontext():
        partial_sums[rows, count](
            multiplied,
            V,
            peaks,
            sums,
            nodes,
            C,
            V.shape[1],
            multiplied.stride(0),
            V.stride(0),
            a_share,
            ROWS=_ROWS,
            CLASSES=_CLASSES,
            UNITS=_UNITS[V.dtype],
            PRODUCTS="tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee",
        )
    # The kernel counts in powers of two.
    return torch.logsumexp(peaks.mul_(math.log(2)).add_(sums.log_()), dim=0)


def _shares(device: torch.device, rows: int) -> int:
    """So many that every multiprocessor has some programs, `rows` of which stand beside each other."""
    if device.type != "cuda":
        return 1
    return _ceil(_PROGRAMS * torch.cuda.get_device_properties(device).multi_processor_count, rows)


def _with_rows_in_one_piece(matrix: Tensor) -> Tensor:
    return matrix if matrix.stride(1) == 1 else matrix.contiguous()


def _ceil(number: int, size: int) -> int:
    return -(-number // size)
