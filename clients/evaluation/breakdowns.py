"""Error counts of groups of utterances."""

from collections.abc import Sequence

import numpy as np

from .bootstrap import IntArray
from .counts import ErrorCounts
from .groups import LENGTH_CLASSES, POSITION_CLASSES, Groups, Labels
from .kinds import By
from .result import Breakdown, Group
from .tally import view


def breakdowns(groups: Groups, counts: IntArray, words: IntArray) -> tuple[Breakdown, ...]:
    """Every breakdown that says something: by speaker and session only where an utterance has one.

    counts: (systems, 5, n) S, D, I, character errors, wrong
    words:  (n,) of the references
    """
    out = []
    for by, labels in ((By.SPEAKER, groups.speaker), (By.SESSION, groups.session)):
        if labels.labels != [None]:
            out.append(_by_label(by, labels, counts, words))
    for by, codes, classes in (
        (By.LENGTH, groups.length, LENGTH_CLASSES),
        (By.POSITION, groups.position, POSITION_CLASSES),
    ):
        places = view(codes)
        present = sorted(set(places.tolist()))
        names = [classes.label(place) for place in present]
        out.append(Breakdown(by, _groups(names, np.searchsorted(present, places), counts, words)))
    return tuple(out)


def _by_label(by: By, labels: Labels, counts: IntArray, words: IntArray) -> Breakdown:
    """Groups in the order of their names; the one without a name comes last."""
    groups = _groups(labels.labels, view(labels.codes), counts, words)
    return Breakdown(by, tuple(sorted(groups, key=lambda group: (group.name is None, group.name or ""))))


def _groups(names: Sequence[str | None], places: IntArray, counts: IntArray, words: IntArray) -> tuple[Group, ...]:
    """The sums of each group. places: (n,) of each utterance's group among the names."""
    G = len(names)

    def summed(numbers: IntArray) -> list[int]:
        # bincount adds in double precision: exact for sums below 2^53
        return [int(total) for total in np.bincount(places, weights=numbers, minlength=G)]

    words_of, utterances = summed(words), summed(np.ones_like(words))
    by_system = []
    for S, D, I, _, wrong in counts:  # noqa: E741 - the letters of the field
        columns = (words_of, summed(S), summed(D), summed(I), utterances, summed(wrong))
        by_system.append([ErrorCounts(*numbers) for numbers in zip(*columns, strict=True)])
    return tuple(Group(name, tuple(of[place] for of in by_system)) for place, name in enumerate(names))
