"""WER along the order of the utterances: where a system adapts, later blocks should gain more than earlier ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..tally import view
from .notes import Notes

_MOST_BLOCKS, _SMALLEST_BLOCK = 25, 8


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive utterances, from `first` to `last`, counted from 1.

    wer:     per system, of these utterances, in per cent; None where their references hold no word
    running: per system, of all utterances up to the last of these
    """

    first: int
    last: int
    wer: tuple[float | None, ...]
    running: tuple[float | None, ...]


def blocks(notes: Notes, systems: Sequence[str]) -> tuple[Block, ...]:
    """At most 25 blocks as equal as can be, of eight utterances or more; none where not two such blocks can be made."""
    n = len(notes.words)
    B = min(_MOST_BLOCKS, n // _SMALLEST_BLOCK)
    if B <= 1:
        return ()
    ends = np.arange(1, B + 1) * n // B
    begins = np.concatenate([[0], ends[:-1]])
    # (1 + systems, B) sums of words and errors over each block
    rows = [notes.words, *(notes.errors(system) for system in systems)]
    sums = np.stack([np.add.reduceat(view(row).astype(np.int64), begins) for row in rows])
    upto = sums.cumsum(axis=1)
    return tuple(
        Block(int(begins[b]) + 1, int(ends[b]), _rates(sums[:, b].tolist()), _rates(upto[:, b].tolist()))
        for b in range(B)
    )


def _rates(sums: Sequence[int]) -> tuple[float | None, ...]:
    words, *errors = sums
    return tuple(100 * count / words if words else None for count in errors)
