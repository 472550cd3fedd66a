"""The figure of an experiment as SVG: word error rate a cell, and how each differs from the plainest one.

Plain shapes and text with no style sheet, script, font or picture from elsewhere, so that it shows anywhere.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

_WIDTH = 960
_TOP = 150
_ROW = 30
_GAP = 34
_LABEL_LEFT, _VALUE_RIGHT, _DIFFERENCE_RIGHT = 24, 262, 936
_INK, _FAINT = "#222222", "#bbbbbb"
_COLOURS = {"static": "#33658a", "dynamic": "#c1501f"}
_MOST_TICKS = 7


@dataclass(frozen=True, slots=True)
class _Axis:
    """A horizontal scale: values from `low` to `high` stand from x = `left` to x = `right`."""

    low: float
    high: float
    left: float
    right: float

    @classmethod
    def around(cls, values: Sequence[float], left: float, right: float) -> "_Axis":
        """One that holds all values, with a margin."""
        low, high = min(values), max(values)
        margin = 0.05 * (high - low) or 0.5
        return cls(low - margin, high + margin, left, right)

    def x(self, value: float) -> float:
        """Where a value stands."""
        return self.left + (value - self.low) / (self.high - self.low) * (self.right - self.left)

    def ticks(self) -> list[float]:
        """Round values inside, at even distances."""
        least = (self.high - self.low) / _MOST_TICKS
        unit = 10.0 ** math.floor(math.log10(least))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= least)
        return [number * step for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


class _Drawing:
    """Shapes on a white page."""

    def __init__(self, width: float, height: float, title: str, description: str) -> None:
        size = {"width": f"{width:g}", "height": f"{height:g}", "viewBox": f"0 0 {width:g} {height:g}"}
        self._root = ET.Element(
            "svg", {"xmlns": "http://www.w3.org/2000/svg", **size, "role": "img", "font-family": "sans-serif"}
        )
        ET.SubElement(self._root, "title").text = _printable(title)
        ET.SubElement(self._root, "desc").text = _printable(description)
        self._add("rect", width=width, height=height, fill="#ffffff")

    def _add(self, shape: str, **attributes: float | str) -> ET.Element:
        values = {
            name.replace("_", "-"): value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
            for name, value in attributes.items()
        }
        return ET.SubElement(self._root, shape, values)

    def text(self, x: float, y: float, text: str, *, size: int = 13, anchor: str = "start", bold: bool = False) -> None:
        """A line of text whose baseline is at y."""
        weight = {"font_weight": "bold"} if bold else {}
        self._add("text", x=x, y=y, font_size=size, text_anchor=anchor, fill=_INK, **weight).text = _printable(text)

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1, dash: str = "") -> None:
        """A straight line."""
        dashed = {"stroke_dasharray": dash} if dash else {}
        self._add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, stroke_width=width, **dashed)

    def whisker(self, axis: _Axis, y: float, interval: Sequence[float], colour: str) -> None:
        """An interval with a cap at each end."""
        low, high = (axis.x(value) for value in interval)
        self.line(low, y, high, y, colour, 2)
        for end in (low, high):
            self.line(end, y - 4, end, y + 4, colour, 2)

    def marker(self, x: float, y: float, colour: str, *, filled: bool) -> None:
        """A value."""
        self._add("circle", cx=x, cy=y, r=5, fill=colour if filled else "#ffffff", stroke=colour, stroke_width=2)

    def dot(self, x: float, y: float, colour: str) -> None:
        """The value of one pass of several."""
        self._add("circle", cx=x, cy=y, r=1.8, fill=colour)

    def __str__(self) -> str:
        ET.indent(self._root)
        return ET.tostring(self._root, encoding="unicode") + "\n"


def _printable(text: str) -> str:
    """Without what XML cannot hold."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def draw(document: Mapping[str, Any]) -> str:
    """The figure, from what the JSON file of an experiment holds."""
    cells: Sequence[Mapping[str, Any]] = document["cells"]
    groups = {order: [cell for cell in cells if cell["order"] == order] for order in ("original", "shuffled")}
    rates = _Axis.around([v for cell in cells for v in _values(cell, "interval", "value")], 286, 566)
    differences = _Axis.around([0.0, *(v for cell in cells for v in _differences(cell))], 610, 876)
    height = _TOP + sum(_GAP + _ROW * len(group) for group in groups.values())
    about = document["set"]
    title = f"{about['name']}: word error rate by order, state and weights"
    drawing = _Drawing(_WIDTH, height + 64, title, "; ".join(map(_sentence, cells)))
    drawing.text(_LABEL_LEFT, 32, title, size=17, bold=True)
    drawing.text(_LABEL_LEFT, 54, _subtitle(document), size=12)
    _legend(drawing, 82, document["settings"]["shuffles"])
    drawing.text(_VALUE_RIGHT, 134, "WER, %", size=12, anchor="end", bold=True)
    drawing.text(_DIFFERENCE_RIGHT, 134, "points", size=12, anchor="end", bold=True)
    base = cells[0]["wer_percent"]["value"]
    _axis(drawing, rates, height, base, "word error rate, % (95 % interval)", "g")
    _axis(drawing, differences, height, 0.0, f"difference from {cells[0]['name']}, points", "+g")
    y = float(_TOP)
    headings = {"original": "utterances in their order", "shuffled": "utterances shuffled"}
    for order, group in groups.items():
        drawing.text(_LABEL_LEFT, y + 16, headings[order], size=12, bold=True)
        y += _GAP
        for cell in group:
            _row(drawing, cell, base, rates, differences, y + _ROW / 2 - 8)
            y += _ROW
    return str(drawing)


def _values(cell: Mapping[str, Any], interval: str, value: str) -> list[float]:
    wer = cell["wer_percent"]
    return [*wer[interval], wer[value], *wer["by_pass"]]


def _differences(cell: Mapping[str, Any]) -> list[float]:
    wer = cell["wer_percent"]
    base = wer["value"] - wer["difference"]
    return [*wer["difference_interval"], *(value - base for value in wer["by_pass"])]


def _row(drawing: _Drawing, cell: Mapping[str, Any], base: float, rates: _Axis, differences: _Axis, y: float) -> None:
    wer, colour, filled = cell["wer_percent"], _COLOURS[cell["weights"]], cell["state"] == "carried"
    drawing.text(_LABEL_LEFT, y + 4, cell["name"])
    drawing.text(_VALUE_RIGHT, y + 4, f"{wer['value']:.2f}", anchor="end")
    drawing.text(_DIFFERENCE_RIGHT, y + 4, f"{wer['difference']:+z.2f}", anchor="end")
    panels = ((rates, "interval", "value", 0.0), (differences, "difference_interval", "difference", base))
    for axis, interval, value, offset in panels:
        drawing.whisker(axis, y, wer[interval], colour)
        drawing.marker(axis.x(wer[value]), y, colour, filled=filled)
        if len(wer["by_pass"]) > 1:
            for rate in wer["by_pass"]:
                drawing.dot(axis.x(rate - offset), y + 10, colour)


def _axis(drawing: _Drawing, axis: _Axis, bottom: float, base: float, label: str, form: str) -> None:
    """Ticks and label below, a thin line up from each tick, and a dashed one where the base stands."""
    top = 142
    for tick in axis.ticks():
        drawing.line(axis.x(tick), top, axis.x(tick), bottom, "#eeeeee")
        drawing.text(axis.x(tick), bottom + 18, f"{tick:{form}}" if tick else "0", size=12, anchor="middle")
    drawing.line(axis.left, bottom, axis.right, bottom, _INK)
    drawing.line(axis.x(base), top, axis.x(base), bottom, _INK, 1, "4 3")
    drawing.text((axis.left + axis.right) / 2, bottom + 42, label, size=12, anchor="middle")


def _legend(drawing: _Drawing, y: float, shuffles: int) -> None:
    x = float(_LABEL_LEFT)
    for weights, colour in _COLOURS.items():
        drawing.line(x, y, x + 22, y, colour, 3)
        drawing.text(x + 28, y + 4, f"weights {weights}", size=12)
        x += 148
    for state, filled in (("reset", False), ("carried", True)):
        drawing.marker(x + 6, y, _INK, filled=filled)
        drawing.text(x + 18, y + 4, f"state {state}", size=12)
        x += 110
    if shuffles > 1:
        for number in range(3):
            drawing.dot(x + 4 + 7 * number, y, _INK)
        drawing.text(x + 28, y + 4, "each shuffle", size=12)
        x += 120
    drawing.line(x, y, x + 22, y, _INK, 1, "4 3")
    drawing.text(x + 28, y + 4, "original, reset, static", size=12)
    drawing.line(_LABEL_LEFT, y + 22, _WIDTH - _LABEL_LEFT, y + 22, _FAINT)


def _subtitle(document: Mapping[str, Any]) -> str:
    about, settings = document["set"], document["settings"]
    learning = settings["learning"]
    return (
        f"{about['utterances']} utterances, {about['reference_words']} words, a session per {settings['session_per']}; "
        f"{settings['accepted']} accepted; rate {learning['rate']:g}, tau {learning['tau']}; "
        f"shuffled: mean of {settings['shuffles']} orders; bootstrap over utterances"
    )


def _sentence(cell: Mapping[str, Any]) -> str:
    wer = cell["wer_percent"]
    low, high = wer["interval"]
    return f"{cell['name']}: {wer['value']:.2f} % ({low:.2f} to {high:.2f})"
