"""A confusion network built from an N-best list: the hypotheses aligned word by word, with a posterior for each word.

Outcomes are aligned one after another, the most probable first, to the network of those before it, so that the expected
number of word errors between the outcome and the network is least (the N-best form of Mangu, Brill and Stolcke 2000;
with votes in place of posteriors it is ROVER, Fiscus 1997). With the mass M of the outcomes aligned so far, of which
m_s(w) say w in slot s and m_s(-) nothing,

    word w in slot s     M - m_s(w)
    nothing in slot s    M - m_s(-)
    w in a new slot      M

Each cost is an exact whole number, so ties are exact. They go to a word in a slot, then to nothing in a slot, seen from
the end of the sentence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from models.outcomes import Outcomes
from models.prefix_tree import IntArray

NOTHING = -1


@dataclass(frozen=True, slots=True)
class Slot:
    """One place of a network: what may be said there. The posteriors and `deletion` sum to 1.

    words:    posterior of each word, the most probable first
    deletion: posterior of there being no word here
    best:     the most probable word, or None where that is no word; ties go to what the most probable outcome says
    """

    words: Mapping[str, float]
    deletion: float
    best: str | None


@dataclass(frozen=True, slots=True)
class ConfusionNetwork:
    """Slots in the order of speaking.

    pivot: the slots in which the words of the pivot stand, the outcome that was aligned first
    """

    slots: tuple[Slot, ...]
    pivot: tuple[int, ...]

    @classmethod
    def build(cls, outcomes: Outcomes, pivot: int = 0) -> "ConfusionNetwork":
        """Align the outcomes of a list. Outcomes of less than 2^-41 of the mass are left out.

        pivot: the outcome to begin with, for a network in which each of its words has a slot
        """
        growing = GrowingNetwork()
        # A pivot without mass must still be something to align to.
        growing.add(outcomes.codes[pivot], max(1, int(outcomes.mass[pivot])))
        for number, mass in enumerate(outcomes.mass.tolist()):
            if mass and number != pivot:
                growing.add(outcomes.codes[number], mass)
        # The slots of the first outcome are the first that were made.
        spine = len(outcomes.codes[pivot])
        return cls(
            tuple(_described(said, growing.mass, outcomes.spelling) for said in growing.slots()),
            tuple(place for place, slot in enumerate(growing.order) if slot < spine),
        )

    def consensus(self) -> list[tuple[str, float]]:
        """The best word of each slot that has one, with its posterior: the consensus hypothesis."""
        return [(slot.best, slot.words[slot.best]) for slot in self.slots if slot.best is not None]

    def pivot_posteriors(self, words: Sequence[str]) -> list[float]:
        """The posterior of each word of the pivot, whose words these are."""
        return [self.slots[place].words[word] for place, word in zip(self.pivot, words, strict=True)]


class GrowingNetwork:
    """A network that takes in one outcome after another.

    mass:  of the outcomes taken in
    order: the slots from first to last; slots are known by numbers in the order in which they were made
    """

    def __init__(self) -> None:
        self.mass = 0
        self.order: list[int] = []
        # What each word weighs in each slot that knows it: few slots know any one word.
        self._weight: dict[int, dict[int, int]] = {NOTHING: {}}
        # What is said in each slot, in the order of the outcomes that said it first.
        self._said: list[list[int]] = []

    def add(self, codes: Sequence[int], mass: int) -> int:
        """Align an outcome with the network and take it in. Returns the cost of the alignment."""
        cost, steps = self._alignment(codes)
        order: list[int] = []
        for code, there in steps:
            slot = there
            if slot is None:
                slot = len(self._said)
                self._said.append([])
                if self.mass:
                    self._say(NOTHING, slot, self.mass)
            self._say(code, slot, mass)
            order.append(slot)
        self.order = order
        self.mass += mass
        return cost

    def slots(self) -> list[dict[int, int]]:
        """What is said in each slot, from first to last: code -> mass, NOTHING among the codes."""
        return [{code: self._weight[code][slot] for code in self._said[slot]} for slot in self.order]

    def _say(self, code: int, slot: int, mass: int) -> None:
        weights = self._weight.setdefault(code, {})
        if slot not in weights:
            self._said[slot].append(code)
        weights[slot] = weights.get(slot, 0) + mass

    def _alignment(self, codes: Sequence[int]) -> tuple[int, list[tuple[int, int | None]]]:
        """The cheapest alignment, in order: what is said in which slot; None is a new one."""
        standing, skipping = self._costs(codes)
        T, S = standing.shape
        skipped = np.concatenate([[0], np.cumsum(skipping)])
        # (T + 1, S + 1): the least cost of the first t words in the first s slots.
        least = np.empty((T + 1, S + 1), np.int64)
        least[0] = skipped
        for t in range(T):
            entered = least[t] + self.mass
            np.minimum(entered[1:], least[t, :-1] + standing[t], out=entered[1:])
            # The least over all k <= s of what is entered at k and skips from there to s, in one pass.
            entered -= skipped
            np.minimum.accumulate(entered, out=entered)
            np.add(entered, skipped, out=least[t + 1])
        # Bytes are read one by one faster than arrays.
        stands = (least[1:, 1:] == least[:-1, :-1] + standing).tobytes()
        skips = (least[:, 1:] == least[:, :-1] + skipping).tobytes()
        steps: list[tuple[int, int | None]] = []
        t, s = T, S
        while t or s:
            if t and s and stands[(t - 1) * S + s - 1]:
                t, s = t - 1, s - 1
                steps.append((codes[t], self.order[s]))
            elif s and skips[t * S + s - 1]:
                s -= 1
                steps.append((NOTHING, self.order[s]))
            else:
                t -= 1
                steps.append((codes[t], None))
        return int(least[T, S]), steps[::-1]

    def _costs(self, codes: Sequence[int]) -> tuple[IntArray, IntArray]:
        """(T, S) the cost of each word in each slot, and (S,) of no word."""
        place = {slot: s for s, slot in enumerate(self.order)}
        rows: list[int] = []
        columns: list[int] = []
        weights: list[int] = []
        for t, code in enumerate(codes):
            known = self._weight.get(code)
            if known:
                rows += [t] * len(known)
                columns += [place[slot] for slot in known]
                weights += known.values()
        standing = np.full((len(codes), len(self.order)), self.mass, np.int64)
        if rows:
            standing[rows, columns] -= weights
        empty = self._weight[NOTHING]
        return standing, np.array([self.mass - empty.get(slot, 0) for slot in self.order], np.int64)


def _described(said: Mapping[int, int], mass: int, spelling: Sequence[str]) -> Slot:
    # On ties, sorting and max keep the order in which things were said first.
    best = max(said, key=said.__getitem__)
    ordered = sorted((code for code in said if code != NOTHING), key=lambda code: -said[code])
    return Slot(
        words={spelling[code]: said[code] / mass for code in ordered},
        deletion=said.get(NOTHING, 0) / mass,
        best=None if best == NOTHING else spelling[best],
    )
