# ruff: noqa: ANN001 - a kernel's arguments are addresses and numbers, of which Triton makes its own types
"""The Triton kernel of the full softmax's normaliser. Imported only where Triton is, see models/cuda_logsumexp.py."""

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit  # type: ignore[untyped-decorator] # Triton says nothing of types
def partial_sums(  # type: ignore[no-untyped-def] # noqa: ANN201 - it gives nothing
    states,
    V,
    peaks,
    sums,
    nodes,
    classes,
    hidden,
    states_row,
    V_row,
    blocks,
    ROWS: tl.constexpr,
    CLASSES: tl.constexpr,
    UNITS: tl.constexpr,
    PRODUCTS: tl.constexpr,
):
    """For ROWS states and one share of the classes: the largest logit, and the sum of powers below it.

    The block of logits lives in registers. After each block the sum so far is brought to the new maximum:

        m' = max(m, max_c l_c);  s' = s 2^(m - m') + sum_c 2^(l_c - m')        l_c = log2(e) V_c . s

    (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018.) Edges are masked, so no size need be a
    multiple of a block's: units beyond the last count 0, classes beyond the last have a logit of minus infinity.

    states, V:        (nodes, hidden) and (classes, hidden), rows `states_row` and `V_row` numbers apart, float32 or
                      bfloat16; products are summed in float32
    peaks, sums:      (shares, nodes) float32, written: m and s of each share
    blocks:           how many blocks of CLASSES a share has
    ROWS, CLASSES, UNITS: sizes of a block: powers of two, 16 at least
    PRODUCTS:         how float32 is multiplied: "ieee" or "tf32"
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    share = tl.program_id(1)
    begin = share * blocks * CLASSES
    end = tl.minimum(begin + blocks * CLASSES, classes)
    known_row = row < nodes
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for first in range(begin, end, CLASSES):
        column = first + tl.arange(0, CLASSES)
        known_column = column < classes
        logits = tl.zeros((ROWS, CLASSES), tl.float32)
        for first_unit in range(0, hidden, UNITS):
            unit = first_unit + tl.arange(0, UNITS)
            known_unit = unit < hidden
            left = tl.load(
                states + row[:, None] * states_row + unit[None, :],
                mask=known_row[:, None] & known_unit[None, :],
                other=0.0,
            )
            right = tl.load(
                V + column[None, :].to(tl.int64) * V_row + unit[:, None],
                mask=known_column[None, :] & known_unit[:, None],
                other=0.0,
            )
            logits = tl.dot(left, right, logits, input_precision=PRODUCTS)
        logits = tl.where(known_column[None, :], logits * _LOG2_E, float("-inf"))
        higher = tl.maximum(peak, tl.max(logits, 1))
        total = total * tl.exp2(peak - higher) + tl.sum(tl.exp2(logits - higher[:, None]), 1)
        peak = higher
    place = share.to(tl.int64) * nodes + row
    tl.store(peaks + place, peak, mask=known_row)
    tl.store(sums + place, total, mask=known_row)
