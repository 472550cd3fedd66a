"""An evaluation as a table, as the lines that Kaldi users parse, as JSON; and a signature to repeat it by."""

import json
import sys
from collections.abc import Iterator
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .bootstrap import Difference, Interval
from .errors import OutputFileError
from .evaluate import ORACLE, Evaluation, System
from .wer import ErrorCounts

_PLAIN_WIDTH = 140


def kaldi_lines(counts: ErrorCounts) -> tuple[str, str]:
    """The lines that begin with %WER and %SER, as Kaldi's scoring writes them."""
    parts = f"{counts.insertions} ins, {counts.deletions} del, {counts.substitutions} sub"
    return (
        f"%WER {counts.wer:.2f} [ {counts.errors} / {counts.words}, {parts} ]",
        f"%SER {counts.ser:.2f} [ {counts.wrong} / {counts.utterances} ]",
    )


def signature(evaluation: Evaluation, system: System) -> str:
    """What another lab needs to repeat a figure, in one line."""
    made = system.made_with
    words = "the bundle's normaliser" if evaluation.normalised else "texts split at white space, not normalised"
    weights = made.get("weights") or {}
    learnt = made.get("sessions")
    parts = {
        "nbest": version("nbest-rescoring"),
        "jiwer": version("jiwer"),
        "set": evaluation.set_name,
        "utterances": evaluation.utterances,
        "N": evaluation.depth,
        "words": words,
        **({"bundle": made["bundle"]} if made.get("bundle") else {}),
        **({"weights": json.dumps(weights, sort_keys=True, separators=(",", ":"))} if weights else {}),
        **({"state": made["state"]} if made.get("state") else {}),
        **({"sessions": json.dumps(made["sessions"], sort_keys=True, separators=(",", ":"))} if learnt else {}),
        "bootstrap": f"{evaluation.resamples} resamples of utterances, seed {evaluation.seed}",
    }
    return " | ".join(f"{name}: {value}" for name, value in parts.items())


def signatures(evaluation: Evaluation) -> dict[str, str]:
    """A signature per rescored system; of the first pass, where nothing is rescored."""
    chosen = evaluation.systems[1:-1] or evaluation.systems[:1]
    return {system.name: signature(evaluation, system) for system in chosen}


def to_json(evaluation: Evaluation) -> dict[str, Any]:
    """The evaluation as JSON; rates and their differences in per cent."""
    return {
        "set": evaluation.set_name,
        "utterances": evaluation.utterances,
        "skipped_without_reference": evaluation.skipped,
        "hypotheses_per_list": evaluation.depth,
        "words": "normalised by the bundle" if evaluation.normalised else "split at white space, not normalised",
        "systems": [_system(evaluation, index) for index in range(len(evaluation.systems))],
        "comparisons": [
            {
                "system": evaluation.systems[b].name,
                "against": evaluation.systems[a].name,
                **_difference(evaluation.resampled.difference(b, a)),
            }
            for a, b in _pairs(evaluation)
        ],
        "bootstrap": {"resamples": evaluation.resamples, "seed": evaluation.seed, "confidence": 0.95},
        "signatures": signatures(evaluation),
    }


def _system(evaluation: Evaluation, index: int) -> dict[str, Any]:
    system = evaluation.systems[index]
    counts = system.counts
    entry = {
        "name": system.name,
        "wer_percent": counts.wer,
        "wer_interval_percent": _pair(evaluation.resampled.interval(index)),
        "ser_percent": counts.ser,
        "errors": counts.errors,
        "substitutions": counts.substitutions,
        "deletions": counts.deletions,
        "insertions": counts.insertions,
        "reference_words": counts.words,
        "hypothesis_words": counts.hypothesis_words,
        "utterances": counts.utterances,
        "wrong_utterances": counts.wrong,
        "kaldi": list(kaldi_lines(counts)),
        **system.made_with,
    }
    if index:
        entry["against_first_pass"] = _difference(evaluation.resampled.difference(index, 0))
    return entry


def print_report(evaluation: Evaluation, *, to_stderr: bool = False) -> None:
    """Print the report; on a terminal as wide as that, elsewhere wide enough for every column."""
    console = Console(stderr=to_stderr, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    console.print(_table(evaluation))
    if list(_pairs(evaluation)):
        console.print(_comparisons(evaluation))
    if evaluation.skipped:
        console.print(f"left out for want of a reference: {evaluation.skipped} utterances", soft_wrap=True)
    for system in evaluation.systems:
        for line in kaldi_lines(system.counts):
            console.print(f"{line} {system.name}", soft_wrap=True)
    for name, line in signatures(evaluation).items():
        console.print(f"signature of {name}: {line}", soft_wrap=True)


def _table(evaluation: Evaluation) -> Table:
    first = evaluation.systems[0].counts
    table = Table(title=f"{evaluation.set_name}: {evaluation.utterances} utterances, {first.words} reference words")
    table.add_column("")
    for heading in (
        "WER %",
        "95% interval",
        "S",
        "D",
        "I",
        "words",
        "SER %",
        "to first pass",
        "95% interval",
        "p",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for index, system in enumerate(evaluation.systems):
        counts = system.counts
        cells = [f"{counts.wer:.2f}", _range(evaluation.resampled.interval(index))]
        cells += map(str, (counts.substitutions, counts.deletions, counts.insertions, counts.hypothesis_words))
        cells.append(f"{counts.ser:.2f}")
        if index:
            cells += _difference_cells(evaluation.resampled.difference(index, 0), signed=system.name != ORACLE)
        table.add_row(system.name, *cells)
    return table


def _comparisons(evaluation: Evaluation) -> Table:
    table = Table(title="systems compared with each other")
    table.add_column("")
    for heading in ("WER points", "95% interval", "p"):
        table.add_column(heading, justify="right", no_wrap=True)
    for a, b in _pairs(evaluation):
        cells = _difference_cells(evaluation.resampled.difference(b, a), signed=True)
        table.add_row(f"{evaluation.systems[b].name} less {evaluation.systems[a].name}", *cells)
    return table


def _pairs(evaluation: Evaluation) -> Iterator[tuple[int, int]]:
    """The rescored systems, two and two."""
    return combinations(range(1, len(evaluation.systems) - 1), 2)


def _difference_cells(difference: Difference, *, signed: bool) -> list[str]:
    """Points, interval and p-value; the oracle has no p-value: it looks at the reference."""
    low, high = difference.interval.low, difference.interval.high
    return [
        f"{difference.points:+.2f}",
        f"{low:+.2f} to {high:+.2f}",
        f"{difference.p_value:.4f}" if signed else "",
    ]


def _range(interval: Interval) -> str:
    return f"{interval.low:.2f} to {interval.high:.2f}"


def _pair(interval: Interval) -> list[float]:
    return [interval.low, interval.high]


def _difference(difference: Difference) -> dict[str, Any]:
    return {
        "points_percent": difference.points,
        "interval_percent": _pair(difference.interval),
        "p_value": difference.p_value,
    }


def write_json(evaluation: Evaluation, path: str) -> None:
    """Write the evaluation as JSON to a file, as a whole, or to standard output for "-"."""
    text = json.dumps(to_json(evaluation), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    target = Path(path).resolve()
    try:
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")
            return
        part = target.with_name(target.name + ".part")
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    except OSError as error:
        raise OutputFileError(f"{path}: cannot be written: {error.strerror}") from error
