"""Utterances in groups: by speaker and session, and by classes of a number."""

from array import array
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from .utterance import Utterance

LENGTHS = (0, 5, 10, 20, 40)
POSITIONS = (10, 30, 100, 300, 1000)
RANKS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True, slots=True)
class Classes:
    """Classes of whole numbers.

    bounds: the largest number of each class, but for the last, which has none; ascending
    least:  the smallest number that there can be
    """

    bounds: tuple[int, ...]
    least: int

    def of(self, number: int) -> int:
        """The place of the class that a number belongs to."""
        return bisect_left(self.bounds, number)

    def label(self, place: int) -> str:
        """The name of a class, such as "6-10"."""
        low = self.bounds[place - 1] + 1 if place else self.least
        if place == len(self.bounds):
            return f"{low} or more"
        return str(low) if low == self.bounds[place] else f"{low}-{self.bounds[place]}"


LENGTH_CLASSES = Classes(LENGTHS, 0)
POSITION_CLASSES = Classes(POSITIONS, 1)
RANK_CLASSES = Classes(RANKS, 1)


@dataclass(slots=True)
class Labels:
    """Groups by label.

    labels: of each group; None for the utterances that have none
    codes:  per utterance, the place of its group's label
    """

    labels: list[str | None] = field(default_factory=list)
    codes: "array[int]" = field(default_factory=lambda: array("i"))
    _places: dict[str | None, int] = field(default_factory=dict)

    def add(self, label: str | None) -> None:
        """The next utterance has this label."""
        place = self._places.setdefault(label, len(self.labels))
        if place == len(self.labels):
            self.labels.append(label)
        self.codes.append(place)


@dataclass(slots=True)
class Groups:
    """The groups that every utterance belongs to, row by row.

    length:   class of its reference's length in words
    position: class of its place among the utterances of its session, or of all where it has none, from 1, as they came
    """

    speaker: Labels = field(default_factory=Labels)
    session: Labels = field(default_factory=Labels)
    length: "array[int]" = field(default_factory=lambda: array("i"))
    position: "array[int]" = field(default_factory=lambda: array("i"))
    _seen: Counter[str | None] = field(default_factory=Counter)

    def add(self, utterance: Utterance, words: int) -> None:
        """Note where the next utterance belongs; `words` is the length of its reference as it is evaluated."""
        self.speaker.add(utterance.speaker)
        self.session.add(utterance.session)
        self.length.append(LENGTH_CLASSES.of(words))
        self._seen[utterance.session] += 1
        self.position.append(POSITION_CLASSES.of(self._seen[utterance.session]))
