"""From values to places on a drawing, with round numbers along the axis."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_STEPS = (1, 2, 5, 10)
# Labels nearer to each other than this would touch.
_APART = 26.0


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis.

    low, high:   the values at its ends; low < high, and above 0 on a logarithmic axis
    begin, end:  the places of its ends on the drawing
    ticks:       values that are marked, within the ends
    """

    low: float
    high: float
    begin: float
    end: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The place of a value, to a hundredth."""
        low, high, here = self.low, self.high, value
        if self.logarithmic:
            low, high, here = math.log(low), math.log(high), math.log(value)
        return round(self.begin + (here - low) / (high - low) * (self.end - self.begin), 2)

    def marks(self) -> list[tuple[float, str]]:
        """Place and text of each tick."""
        return [(self.at(tick), label(tick)) for tick in self.ticks]


def linear(values: Iterable[float], begin: float, end: float, *, most: int = 6) -> Axis:
    """An axis with some room around the values, and about `most` ticks."""
    found = list(values)
    low, high = min(found), max(found)
    room = (high - low) * 0.05 or max(abs(high) * 0.1, 1.0)
    # What is never below 0 shall not seem so.
    bottom = low - room if low < 0 else max(low - room, 0.0)
    top = high + room
    step = _step((top - bottom) / most)
    first = math.ceil(bottom / step - 1e-9)
    count = math.floor(top / step + 1e-9) - first + 1
    return Axis(bottom, top, begin, end, tuple((first + i) * step for i in range(count)))


def logarithmic(values: Iterable[float], begin: float, end: float, *, ticks: Sequence[float] = ()) -> Axis:
    """An axis for values above 0. ticks: those to mark, as far as they do not crowd; 1, 2, 5, 10 ... when left out."""
    found = list(values)
    low, high = min(found), max(found)
    if low == high:
        low, high = low / 1.5, high * 1.5
    room = (high / low) ** 0.03
    axis = Axis(low / room, high * room, begin, end, (), logarithmic=True)
    chosen = ticks or [
        m * 10.0**e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high))) for m in (1, 2, 5)
    ]
    kept: list[float] = []
    for tick in chosen:
        within = axis.low <= tick <= axis.high
        if within and (not kept or abs(axis.at(tick) - axis.at(kept[-1])) >= _APART):
            kept.append(tick)
    return Axis(axis.low, axis.high, begin, end, tuple(kept), logarithmic=True)


def _step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, ... times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in _STEPS if m * power >= least * (1 - 1e-9))


def label(tick: float) -> str:
    """A tick in few characters."""
    return f"{tick:.6g}"
