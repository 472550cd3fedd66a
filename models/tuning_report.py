"""What `nbest tune` says: a table and a few lines for people, and the record that is kept with the weights."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from models.bootstrap import RESAMPLES
from models.bundle import weights_to_json
from models.learning_search import FoundLearning
from models.tuning import TuningResult

_SOUGHT = {"perplexity": "for the lowest perplexity", "wer": "for the fewest word errors"}


def print_report(
    result: TuningResult, development: str, models: Sequence[str], learning: FoundLearning | None, console: Console
) -> None:
    """Print what was found. development: name of the set; models: names of those mixed."""
    console.print(f"{' + '.join(models)}, tuned on {development} ({result.lists} utterances)")
    console.print(_table(result))
    if len(models) > 1:
        console.print(f"interpolation weights {_SOUGHT[result.lambdas_for]}")
    rates = {
        "first pass": result.first_pass_errors,
        "tuned": result.tuned_errors,
        f"cross-validated, {result.folds} folds": result.held_out_errors,
        "oracle": result.oracle_errors,
    }
    console.print(
        "WER: " + ", ".join(f"{name} {100 * errors / result.words:.2f}" for name, errors in rates.items()),
        f"({result.words} reference words)",
    )
    held_out = result.held_out_rate
    # As a gain: what is lower than the first pass counts as positive.
    low, high = 0.0 - held_out.difference_interval.high, 0.0 - held_out.difference_interval.low
    console.print(
        f"gain over the first pass, cross-validated: {0.0 - held_out.difference:.2f} points "
        f"(95 % interval {low:.2f} to {high:.2f}, p = {held_out.p_value:.2g}; "
        f"paired bootstrap, {RESAMPLES:,} resamples)"
    )
    if learning:
        console.print(
            f"learning rate of sessions: {learning.best.rate:g} (perplexity of the accepted texts "
            f"{learning.perplexities[learning.best]:.1f}, with frozen weights {learning.static:.1f})"
        )
        if not learning.helps:
            console.print("warning: learning does not help on this set: sessions do best with weights static")
    for warning in result.warnings:
        console.print(f"warning: {warning}")


def _table(result: TuningResult) -> Table:
    """Each weight, with mean, sample deviation and ends of what the folds found."""
    table = Table(show_header=True)
    table.add_column("weight", no_wrap=True)
    for heading in ("value", "mean of folds", "lowest", "highest"):
        table.add_column(heading, justify="right", no_wrap=True)
    if result.at_edge:
        table.add_column("")
    values = {f"interpolation {name}": value for name, value in result.weights.interpolation.items()}
    values |= {name: value for name, value in weights_to_json(result.weights).items() if name != "interpolation"}
    for name, value in values.items():
        spread = result.spread.get(name)
        folds = ["", "", ""]
        if spread:
            folds = [f"{spread.mean:.4g} ± {spread.deviation:.2g}", f"{spread.lowest:.4g}", f"{spread.highest:.4g}"]
        edge = ["edge" if name in result.at_edge else ""] if result.at_edge else []
        table.add_row(name, f"{value:.4g}", *folds, *edge)
    return table


def result_record(result: TuningResult) -> dict[str, Any]:
    """Every number of a tuning, for bundle.json."""
    held_out = result.held_out_rate
    return {
        "held_out_perplexity": result.mixture.perplexity,
        "interpolation": {
            "chosen_for": result.lambdas_for,
            "lowest_perplexity_at": dict(
                zip(result.weights.interpolation, result.mixture.lambdas.tolist(), strict=True)
            ),
        },
        "word_errors": {
            "reference_words": result.words,
            "first_pass": result.first_pass_errors,
            "tuned": result.tuned_errors,
            "cross_validated": result.held_out_errors,
            "oracle": result.oracle_errors,
        },
        "folds": result.folds,
        "spread_over_folds": {name: asdict(spread) for name, spread in result.spread.items()},
        "at_edge": list(result.at_edge),
        "cross_validated_wer": {
            "percent": held_out.value,
            "interval": asdict(held_out.interval),
            "difference_to_first_pass": held_out.difference,
            "difference_interval": asdict(held_out.difference_interval),
            "p_value": held_out.p_value,
            "resamples": RESAMPLES,
        },
        "warnings": list(result.warnings),
    }
