"""The result on a terminal: the systems side by side, how they differ, and the lines that Kaldi users parse."""

import json
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from ..whole_file import write_whole
from .as_json import to_json
from .bootstrap import Difference, Interval
from .counts import kaldi_lines
from .evaluator import FIRST_PASS, ORACLE
from .findings import findings
from .kinds import By
from .printing_details import print_breakdown, print_confusions, print_worst
from .result import Comparison, Evaluation, SystemResult
from .signature import signatures

_PLAIN_WIDTH = 160
_SMALLEST_P = 0.0001


def print_report(
    evaluation: Evaluation, *, by: Iterable[By] = (), confusions: bool = False, to_stderr: bool = False
) -> None:
    """Print the report; on a terminal as wide as that, elsewhere wide enough for every column.

    by:         the breakdowns to print
    confusions: print the most frequent ones
    The worst utterances are printed where the evaluation was asked for some.
    """
    console = Console(stderr=to_stderr, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    console.print(_systems(evaluation))
    if evaluation.comparisons:
        console.print(_comparisons(evaluation.comparisons))
        console.print(_effects(evaluation.rescored))
    console.print(_oracles(evaluation))
    for name in dict.fromkeys(by):
        print_breakdown(console, evaluation, name)
    if confusions:
        print_confusions(console, evaluation)
    print_worst(console, evaluation)
    _print_lines(console, evaluation)


def _print_lines(console: Console, evaluation: Evaluation) -> None:
    """What is said in sentences and in the lines that programs look for."""
    if evaluation.skipped:
        console.print(f"left out for want of a reference: {evaluation.skipped} utterances", soft_wrap=True)
    for system in evaluation.systems:
        before = system.before
        if before is not None and (before.errors, before.words) != (system.counts.errors, system.counts.words):
            rate = "no rate" if before.wer is None else f"{before.wer:.2f}"
            console.print(
                f"WER of {system.name} before {', '.join(evaluation.choices.normalisation.describe())}: {rate} "
                f"({before.errors} errors, {before.words} words); after: {system.counts.wer:.2f}",
                soft_wrap=True,
            )
    for finding in findings(evaluation):
        console.print(f"note: {finding}", soft_wrap=True)
    for system in evaluation.systems:
        for line in kaldi_lines(system.counts):
            console.print(f"{line} {system.name}", soft_wrap=True)
    for name, line in signatures(evaluation).items():
        console.print(f"signature of {name}: {line}", soft_wrap=True)


def _systems(evaluation: Evaluation) -> Table:
    first = evaluation.systems[0].counts
    title = f"{evaluation.set_name}: {evaluation.utterances} utterances, {first.words} reference words"
    headings = ["WER %", "95% interval", "S", "D", "I", "words", "CER %", "SER %", "MER %", "WIL %"]
    table = _table(title, [*headings, "to first pass", "95% interval"])
    for system in evaluation.systems:
        counts = system.counts
        cells = [f"{system.wer.percent:.2f}", _range(system.wer.interval)]
        cells += map(str, (counts.substitutions, counts.deletions, counts.insertions, counts.hypothesis_words))
        cells += [f"{rate.percent:.2f}" for rate in (system.cer, system.ser, system.mer, system.wil)]
        if system.to_first_pass is not None:
            cells += _difference(system.to_first_pass)
        table.add_row(system.name, *cells)
    return table


def _comparisons(comparisons: Sequence[Comparison]) -> Table:
    """Both tests; where there are several comparisons, also p-values corrected for that."""
    several = len(comparisons) > 1
    corrected = ["p, Holm"] if several else []
    headings = ["WER points", "95% interval", "p", *corrected, "segments", "z", "p", *corrected]
    title = "differences: paired bootstrap, then matched pairs" + (
        f"; Holm's correction for {len(comparisons)} comparisons" if several else ""
    )
    table = _table(title, headings)
    for comparison in comparisons:
        test = comparison.matched_pairs
        cells = [*_difference(comparison.bootstrap), _p(comparison.bootstrap.p_value)]
        cells += [_p(comparison.bootstrap_p_corrected)] if several else []
        cells += [str(test.segments), "none" if test.z is None else f"{test.z:+.2f}", _p(test.p_value)]
        cells += [_p(comparison.matched_pairs_p_corrected)] if several else []
        table.add_row(f"{comparison.system} less {comparison.against}", *cells)
    return table


def _effects(systems: Sequence[SystemResult]) -> Table:
    headings = ["helped", "hurt", "as many errors", "same words", "errors removed", "errors added", "of the gap %"]
    table = _table(
        "what rescoring did, in utterances, in word errors, and to the gap between first pass and oracle", headings
    )
    for system in systems:
        effect = system.effect
        assert effect is not None
        gap = "none" if effect.gap_closed_percent is None else f"{effect.gap_closed_percent:.1f}"
        numbers = (effect.helped, effect.hurt, effect.as_many, effect.unchanged)
        table.add_row(system.name, *map(str, (*numbers, effect.errors_removed, effect.errors_added)), gap)
    return table


def _oracles(evaluation: Evaluation) -> Table:
    """WER of the oracle among the first hypotheses, and how far down it is found."""
    depths = [point.depth for point in evaluation.oracles[0].curve]
    headings = [*map(str, depths), "mean rank", "median rank"]
    table = _table(f"{ORACLE} WER % among the first so many hypotheses of a ranking; rank of the best", headings)
    for oracle in evaluation.oracles:
        name = oracle.ranking if oracle.ranking == FIRST_PASS else f"ranked by {oracle.ranking}"
        cells = [f"{point.wer:.2f}" for point in oracle.curve]
        table.add_row(name, *cells, f"{oracle.mean_rank:.1f}", f"{oracle.median_rank:g}")
    return table


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title)
    table.add_column("")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _difference(difference: Difference) -> list[str]:
    """Points and interval."""
    return [f"{difference.points:+.2f}", f"{difference.interval.low:+.2f} to {difference.interval.high:+.2f}"]


def _p(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:.4f}" if value >= _SMALLEST_P else f"<{_SMALLEST_P}"


def _range(interval: Interval) -> str:
    return f"{interval.low:.2f} to {interval.high:.2f}"


def write_json(evaluation: Evaluation, path: str) -> None:
    """Write the evaluation as JSON to a file, as a whole, or to standard output for "-"."""
    text = json.dumps(to_json(evaluation), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_whole(path, text.encode("utf-8", "replace"))
