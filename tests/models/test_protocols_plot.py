"""The figure: well formed, self-contained, and true to its numbers."""

import copy
import re
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from models.protocols import CELLS
from models.protocols_plot import draw

SVG = "{http://www.w3.org/2000/svg}"


def measure(value: float, difference: float, passes: int) -> dict[str, Any]:
    return {
        "value": value,
        "interval": [value - 2, value + 2.5],
        "difference": difference,
        "difference_interval": [difference - 0.5, difference + 0.25],
        "p_value": 0.1,
        "by_pass": [value + 0.1 * number for number in range(passes)],
    }


def document(name: str = "lj.test.jsonl", shuffles: int = 3) -> dict[str, Any]:
    """An experiment whose cells get better from one to the next by a tenth of a point."""
    cells = [
        {
            "name": cell.name,
            "order": cell.order,
            "state": cell.state,
            "weights": cell.weights,
            "wer_percent": measure(20 - 0.1 * index, -0.1 * index, 1 if cell.order == "original" else shuffles),
        }
        for index, cell in enumerate(CELLS)
    ]
    learning = {"rate": 0.1, "tau": 1, "decay": 0.0}
    settings = {"learning": learning, "accepted": "winner", "session_per": "file", "shuffles": shuffles, "seed": 1}
    about = {"name": name, "utterances": 199, "reference_words": 3327}
    return {"set": about, "settings": settings, "cells": cells}


def parsed(drawn: str) -> ET.Element:
    return ET.fromstring(drawn)  # noqa: S314 - what was just drawn


def texts(drawn: str) -> list[str]:
    return [element.text or "" for element in parsed(drawn).iter(f"{SVG}text")]


def markers(drawn: str) -> list[dict[str, str]]:
    """The circles that stand for values, without those of the legend and of single passes."""
    return [dict(e.attrib) for e in parsed(drawn).iter(f"{SVG}circle") if e.get("r") == "5"][2:]


def test_every_cell_is_named_and_its_rate_written_out() -> None:
    found = texts(draw(document()))
    for index, cell in enumerate(CELLS):
        assert cell.name in found
        assert f"{20 - 0.1 * index:.2f}" in found


def test_there_are_a_title_axis_labels_and_a_legend() -> None:
    drawn = draw(document())
    found = texts(drawn)
    assert any("lj.test.jsonl" in text for text in found)
    assert "word error rate, % (95 % interval)" in found
    assert any("difference" in text for text in found)
    assert {"weights static", "weights dynamic", "state reset", "state carried", "each shuffle"} <= set(found)
    title = parsed(drawn).find(f"{SVG}title")
    assert title is not None
    assert "lj.test.jsonl" in str(title.text)


def test_a_value_stands_inside_its_interval_and_better_cells_stand_further_left() -> None:
    drawn = draw(document())
    rates, differences = markers(drawn)[0::2], markers(drawn)[1::2]
    assert len(rates) == len(differences) == len(CELLS)
    for panel in (rates, differences):
        xs = [float(marker["cx"]) for marker in panel]
        assert xs == sorted(xs, reverse=True)
        # Equal steps of the rate are equal steps on the page, up to the two decimals written.
        steps = [left - right for left, right in pairwise(xs)]
        assert steps == pytest.approx([steps[0]] * len(steps), abs=0.02)
    whiskers = [dict(e.attrib) for e in parsed(drawn).iter(f"{SVG}line") if e.get("stroke-width") == "2"]
    for marker in (*rates, *differences):
        spans = [
            (float(line["x1"]), float(line["x2"]))
            for line in whiskers
            if line["y1"] == line["y2"] == marker["cy"] and line["x1"] != line["x2"]
        ]
        assert any(low < float(marker["cx"]) < high for low, high in spans)


def test_colour_tells_the_weights_and_filling_the_state() -> None:
    found = markers(draw(document()))[0::2]
    strokes = {cell.weights: set() for cell in CELLS}
    for cell, marker in zip(CELLS, found, strict=True):
        strokes[cell.weights].add(marker["stroke"])
        assert (marker["fill"] == "#ffffff") == (cell.state == "reset")
    assert all(len(colours) == 1 for colours in strokes.values())
    assert strokes["static"] != strokes["dynamic"]


def test_everything_lies_on_the_page() -> None:
    wide = document()
    wide["cells"][3]["wer_percent"]["interval"] = [0.0, 180.0]
    wide["cells"][3]["wer_percent"]["difference_interval"] = [-20.0, 160.0]
    root = parsed(draw(wide))
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for element in root.iter():
        for name, value in element.attrib.items():
            if name in ("x", "x1", "x2", "cx"):
                assert 0 <= float(value) <= width
            if name in ("y", "y1", "y2", "cy"):
                assert 0 <= float(value) <= height


def test_shuffles_are_shown_one_by_one_where_there_are_several() -> None:
    def dots(drawn: str) -> int:
        return sum(element.get("r") == "1.8" for element in parsed(drawn).iter(f"{SVG}circle"))

    # Four shuffled cells in two panels, and the legend's three.
    assert dots(draw(document(shuffles=3))) == 4 * 2 * 3 + 3
    assert dots(draw(document(shuffles=1))) == 0
    assert "each shuffle" not in texts(draw(document(shuffles=1)))


def test_cells_that_are_all_equal_can_be_drawn() -> None:
    flat = document()
    for cell in flat["cells"]:
        same = {"value": 0.0, "interval": [0.0, 0.0], "difference": 0.0, "difference_interval": [0.0, 0.0]}
        cell["wer_percent"] |= {**same, "by_pass": [0.0] * len(cell["wer_percent"]["by_pass"])}
    assert len(markers(draw(flat))) == 2 * len(CELLS)


@pytest.mark.parametrize("name", ['a & b <c> "d".jsonl', "bell\x07.jsonl", "lone \udcff surrogate.jsonl", "каша.jsonl"])
def test_no_file_name_breaks_the_figure(name: str) -> None:
    drawn = draw(document(name))
    drawn.encode("utf-8")
    assert any(text.endswith(": word error rate by order, state and weights") for text in texts(drawn))


def test_the_figure_needs_nothing_from_elsewhere_and_is_light() -> None:
    drawn = draw(document(shuffles=10))
    assert not re.search(r"href|url\(|<script|<style|<image|font-face", drawn)
    assert re.findall(r"https?://\S+?(?=\")", drawn) == ["http://www.w3.org/2000/svg"]
    assert len(drawn) < 40_000


def test_drawing_leaves_the_experiment_as_it_was() -> None:
    before = document()
    given = copy.deepcopy(before)
    draw(given)
    assert given == before
