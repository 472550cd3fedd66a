"""Word errors of hypotheses against a reference, counted by jiwer."""

from collections.abc import Sequence

import numpy as np
from jiwer import process_words

from models.prefix_tree import IntArray


def word_errors(reference: Sequence[str], hypotheses: Sequence[Sequence[str]]) -> IntArray:
    """(N,) substitutions, insertions and deletions of each hypothesis, as words."""
    if not reference:
        return np.array([len(words) for words in hypotheses], np.int64)
    output = process_words([" ".join(reference)] * len(hypotheses), [" ".join(words) for words in hypotheses])
    return np.array(
        [
            sum(
                max(part.ref_end_idx - part.ref_start_idx, part.hyp_end_idx - part.hyp_start_idx)
                for part in alignment
                if part.type != "equal"
            )
            for alignment in output.alignments
        ],
        np.int64,
    )
