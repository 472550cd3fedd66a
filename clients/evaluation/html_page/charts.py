"""Drawings as places of lines, marks and words, which the template writes down as SVG.

All sizes are in the drawing's own units; it is scaled to the width that the page has for it. Systems are told apart by
colour, by the shape of their marks and by the legend's words, never by colour alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .axes import Axis, linear, logarithmic
from .tables import Table

WIDTH = 460
_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 290, 44, 18, 28, 46
_ROW, _ROWS_TOP, _ROWS_LEFT, _ROWS_RIGHT = 44, 8, 14, 64
_MOST_MARKED = 40
_NAME = 44


@dataclass(frozen=True, slots=True)
class Series:
    """One line.

    style:  the number of the system, which gives colour and shape; -1 for the oracle
    points: x and y; y None where there is no value and the line breaks off
    large:  points that are to stand out, such as the weight that was used
    joined: whether points are joined by a line
    """

    name: str
    style: int
    points: tuple[tuple[float, float | None], ...]
    large: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A value with its interval."""

    name: str
    style: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Mark:
    """A point on the drawing. shape: the path of its outline."""

    style: int
    shape: str
    label: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line on the drawing, as an SVG path."""

    style: int
    path: str


@dataclass(frozen=True, slots=True)
class Word:
    """Words on the drawing. anchor: start, middle or end."""

    x: float
    y: float
    anchor: str
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing with what stands around it.

    name:        unique on the page, for links and labels
    description: what it shows, in words, for those who do not see it
    legend:      name and style of each series
    numbers:     the same as a table
    grid, zero:  paths of thin lines, and of a line that means something
    """

    name: str
    title: str
    description: str
    legend: tuple[tuple[str, int], ...]
    numbers: Table
    height: float
    grid: str
    zero: str
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...]
    words: tuple[Word, ...]


def line_chart(
    name: str,
    title: str,
    description: str,
    series: Sequence[Series],
    numbers: Table,
    *,
    x_label: str,
    log_x: bool = False,
    x_ticks: Sequence[float] = (),
) -> Chart:
    """Lines over a horizontal axis; the vertical one is WER in per cent. There is at least one point."""
    every = [(x, y) for one in series for x, y in (*one.points, *one.large) if y is not None]
    xs, left, right = [x for x, _ in every], _LEFT, WIDTH - _RIGHT
    across = logarithmic(xs, left, right, ticks=x_ticks) if log_x else linear(xs, left, right)
    up = linear([y for _, y in every], _HEIGHT - _BOTTOM, _TOP)
    grid = "".join(f"M{left} {place}H{right}" for place, _ in up.marks())
    words = [Word(left - 6, place + 4, "end", text) for place, text in up.marks()]
    words += [Word(place, _HEIGHT - _BOTTOM + 18, "middle", text) for place, text in across.marks()]
    words += [Word(4, 14, "start", "WER, %"), Word((left + right) / 2, _HEIGHT - 8, "middle", x_label)]
    marks = []
    for one in series:
        small = one.points if len(one.points) <= _MOST_MARKED else ()
        for size, points in ((3.2, small), (6.0, one.large)):
            for x, y in points:
                if y is not None:
                    outline = shape(one.style, across.at(x), up.at(y), size)
                    marks.append(Mark(one.style, outline, f"{one.name}: {x:.4g}, {y:.2f} %"))
    return Chart(
        name,
        title,
        description,
        tuple((one.name, one.style) for one in series),
        numbers,
        _HEIGHT,
        grid,
        f"M{left} {_HEIGHT - _BOTTOM}H{right}",
        tuple(Line(one.style, _path(one.points, across, up)) for one in series),
        tuple(marks),
        tuple(words),
    )


def interval_chart(
    name: str, title: str, description: str, rows: Sequence[Row], numbers: Table, *, x_label: str, signed: bool = False
) -> Chart:
    """A value with its interval in each row. signed: differences, so that 0 is marked. There is at least one row."""
    values = [number for row in rows for number in (row.low, row.value, row.high)]
    left, right, bottom = _ROWS_LEFT, WIDTH - _ROWS_RIGHT, _ROWS_TOP + _ROW * len(rows)
    across = linear([*values, 0.0] if signed else values, left, right)
    lines, marks, words = [], [], []
    for place, row in enumerate(rows):
        y = _ROWS_TOP + _ROW * place + 32
        figure = f"{row.value:+.2f}" if signed else f"{row.value:.2f}"
        figure = figure.replace("-", "\u2212")
        low, high = across.at(row.low), across.at(row.high)
        lines.append(Line(row.style, f"M{low} {y}H{high}M{low} {y - 4}V{y + 4}M{high} {y - 4}V{y + 4}"))
        marks.append(Mark(row.style, shape(row.style, across.at(row.value), y, 5.0), f"{row.name}: {figure}"))
        words += [Word(left, y - 14, "start", _clipped(row.name)), Word(WIDTH - _ROWS_LEFT, y + 4, "end", figure)]
    ticks = across.marks()
    words += [Word(place, bottom + 18, "middle", text) for place, text in ticks if left + 8 <= place <= right - 8]
    words.append(Word((left + right) / 2, bottom + 38, "middle", x_label))
    grid = "".join(f"M{place} {_ROWS_TOP}V{bottom}" for place, _ in ticks)
    zero = f"M{across.at(0.0)} {_ROWS_TOP}V{bottom}" if signed else f"M{left} {bottom}H{right}"
    return Chart(
        name, title, description, (), numbers, bottom + 46, grid, zero, tuple(lines), tuple(marks), tuple(words)
    )


def _path(points: Sequence[tuple[float, float | None]], across: Axis, up: Axis) -> str:
    """M and L commands; a new M after each gap."""
    out, pen = [], "M"
    for x, y in points:
        if y is None:
            pen = "M"
            continue
        out.append(f"{pen}{across.at(x)} {up.at(y)}")
        pen = "L"
    return "".join(out)


def shape(style: int, x: float, y: float, r: float) -> str:
    """A circle, square, diamond or triangle about a point, by the number of the system."""
    r = round(r, 2)
    if style % 4 == 0:
        return f"M{x - r:.2f} {y:.2f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0Z"
    outline = {
        1: ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
        2: ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
        3: ((0, -1.2), (1.15, 0.85), (-1.15, 0.85)),
    }[style % 4]
    corners = "L".join(f"{x + r * dx:.2f} {y + r * dy:.2f}" for dx, dy in outline)
    return f"M{corners}Z"


def _clipped(text: str) -> str:
    return text if len(text) <= _NAME else text[: _NAME - 1] + "…"
