"""What `nbest protocols` does: read, run every cell, report as table, JSON and figure."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from models.bootstrap import RESAMPLES, Measure
from models.bundle import Bundle, load_bundle, weights_from_json, weights_to_json
from models.errors import InvalidNBestError, InvalidOptionError, InvalidWeightsError, SessionError, UnknownModelError
from models.evaluation_set import EvaluationSet
from models.protocols import CELLS, Cell, Pass, Protocols, ProtocolSettings, WeightMode, shuffled_orders
from models.protocols_plot import draw
from models.protocols_statistics import CellSummary, summarise
from models.rnnlm import ElmanLM
from models.score import Weights
from models.tuning_command import read_nbest
from models.wire import LOG_UNITS

_PLAIN_WIDTH = 150
_SWITCHES = ("order", "state", "weights")


def run_protocols(
    folder: Path,
    lists: Path,
    settings: ProtocolSettings,
    *,
    rate: float | None,
    tau: int | None,
    options: Path | None,
    log_base: str,
    device: str,
    json_file: Path | None,
    svg_file: Path | None,
) -> dict[str, Any]:
    """Run the experiment, print its table and write its files; returns what the JSON file holds.

    rate, tau: of the dynamic cells; the bundle's where None
    options:   JSON file of weights that override the bundle's
    """
    for option, path in (("--json", json_file), ("--svg", svg_file)):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise InvalidOptionError(f"{option} {path}: not a file in a folder that exists")
    bundle = load_bundle(folder, device=device)
    if not any(isinstance(model, ElmanLM) for model in bundle.rescorer.models.values()):
        raise SessionError(f"{folder}: the bundle holds no recurrent network, so nothing carries a state or learns")
    given: dict[str, Any] = {name: value for name, value in (("rate", rate), ("tau", tau)) if value is not None}
    settings = replace(settings, learning=replace(bundle.learning, **given))
    weights = bundle.weights if options is None else _read_weights(options, bundle)
    utterances = read_nbest(lists, log_unit=LOG_UNITS[log_base])
    try:
        evaluated = EvaluationSet.prepare(bundle.rescorer, utterances, settings.session_per)
    except InvalidNBestError as error:
        raise InvalidNBestError(f"{lists}: {error}") from error
    shuffles = shuffled_orders(len(utterances), settings)
    protocols = Protocols(bundle.rescorer, weights, evaluated, settings)
    passes = _run(protocols, shuffles)
    summaries = summarise(passes, evaluated, seed=settings.seed)
    document = {
        **_conditions(bundle, lists, settings, weights, evaluated),
        "cells": [_cell(cell, summaries[cell], passes[cell]) for cell in CELLS],
        "utterances": _utterances(evaluated),
        "shuffles": shuffles,
    }
    print_report(document)
    if json_file is not None:
        json_file.write_text(json.dumps(document, allow_nan=False) + "\n", encoding="utf-8")
    if svg_file is not None:
        svg_file.write_text(draw(document), encoding="utf-8")
    return document


def _read_weights(path: Path, bundle: Bundle) -> Weights:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidWeightsError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidWeightsError(f"{path}: holds no JSON object")
    try:
        weights = weights_from_json(document, bundle.weights)
        weights.check_models(list(bundle.rescorer.models))
    except (InvalidWeightsError, UnknownModelError, OverflowError) as error:
        raise InvalidWeightsError(f"{path}: {error}") from error
    return weights


def _run(protocols: Protocols, shuffles: Sequence[Sequence[int]]) -> dict[Cell, list[Pass]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks = {
            weights: bar.add_task(f"{weights} cells, utterances", total=total)
            for weights, total in protocols.steps(len(shuffles)).items()
        }

        def report(weights: WeightMode) -> None:
            bar.advance(tasks[weights])

        return protocols.run(shuffles, report)


def _conditions(
    bundle: Bundle, lists: Path, settings: ProtocolSettings, weights: Weights, evaluated: EvaluationSet
) -> dict[str, Any]:
    """What the figures were made with and of: enough to make them again."""
    words = int(evaluated.words.sum())
    return {
        "set": {
            "name": lists.name,
            "sha256": hashlib.sha256(lists.read_bytes()).hexdigest(),
            "utterances": len(evaluated.lists),
            "sessions": len(set(evaluated.sessions)),
            "reference_words": words,
            "oov_words": int(evaluated.oov.sum()),
            "events": words + len(evaluated.lists),
            "first_pass_wer_percent": 100 * int(evaluated.first_pass_errors.sum()) / words,
            "oracle_wer_percent": 100 * int(evaluated.oracle_errors.sum()) / words,
        },
        "bundle": bundle.sha256,
        "weights": weights_to_json(weights),
        "settings": {
            **asdict(settings),
            "max_loss_rise": settings.session_options(CELLS[0]).max_loss_rise,
            "resamples": RESAMPLES,
            "confidence": 0.95,
        },
        "made_with": {
            "nbest": version("nbest-rescoring"),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "jiwer": version("jiwer"),
            "threads": torch.get_num_threads(),
            "device": _device(bundle),
        },
    }


def _device(bundle: Bundle) -> str:
    devices = {str(model.weights.V.device) for model in bundle.rescorer.models.values() if isinstance(model, ElmanLM)}
    return ", ".join(sorted(devices))


def _cell(cell: Cell, summary: CellSummary, passes: Sequence[Pass]) -> dict[str, Any]:
    """Rates, and what they were made from; counts and seconds are those of a pass, on average."""
    return {
        "name": cell.name,
        "order": cell.order,
        "state": cell.state,
        "weights": cell.weights,
        "wer_percent": _measure(summary.wer),
        "perplexity": {source: _measure(measure) for source, measure in summary.perplexities.items()},
        "perplexity_without_oov": {source: _measure(measure) for source, measure in summary.without_oov.items()},
        "updates": float(np.mean([one.updates for one in passes])),
        "undone": float(np.mean([one.undone for one in passes])),
        "seconds": float(np.mean([one.seconds for one in passes])),
        "passes": [_pass(one) for one in passes],
    }


def _measure(measure: Measure) -> dict[str, Any]:
    return {
        **asdict(measure),
        "interval": [measure.interval.low, measure.interval.high],
        "difference_interval": [measure.difference_interval.low, measure.difference_interval.high],
    }


def _pass(one: Pass) -> dict[str, Any]:
    return {
        "updates": one.updates,
        "undone": one.undone,
        "seconds": one.seconds,
        "winners": one.winners.tolist(),
        "errors": one.errors.tolist(),
        "log_likelihoods": {name: values.tolist() for name, values in one.log_likelihoods.items()},
        "oov_log_likelihoods": {name: values.tolist() for name, values in one.oov_log_likelihoods.items()},
    }


def _utterances(evaluated: EvaluationSet) -> dict[str, Any]:
    return {
        "ids": [prepared.nbest.utterance_id for prepared in evaluated.lists],
        "sessions": list(evaluated.sessions),
        "reference_words": evaluated.words.tolist(),
        "oov_words": evaluated.oov.tolist(),
        "first_pass_errors": evaluated.first_pass_errors.tolist(),
        "oracle_errors": evaluated.oracle_errors.tolist(),
    }


def print_report(document: Mapping[str, Any]) -> None:
    """Print a finished experiment; on a terminal as wide as that, elsewhere wide enough for every column."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    about, settings = document["set"], document["settings"]
    console.print(_error_table(document["cells"]))
    console.print(_perplexity_table(document["cells"]))
    for line in _lines(about, settings, document["bundle"]):
        console.print(line, soft_wrap=True)


def _lines(about: Mapping[str, Any], settings: Mapping[str, Any], bundle: str) -> Iterator[str]:
    """What a reader of the tables must know."""
    yield (
        f"{about['name']}: {about['utterances']} utterances, {about['reference_words']} reference words, of which "
        f"{about['oov_words']} outside the vocabulary; WER of the first pass {about['first_pass_wer_percent']:.2f}, "
        f"of the oracle {about['oracle_wer_percent']:.2f}"
    )
    yield (
        f"in brackets: 95 % intervals, {settings['resamples']} resamples of utterances; +/-: against original, reset, "
        f"static; shuffled: mean of {settings['shuffles']} orders; seed {settings['seed']}"
    )
    yield "perplexity: of the references, </s> and OOV words counted, each word scored before it is learnt"
    learning = settings["learning"]
    yield (
        f"sessions: one per {settings['session_per']}, {settings['accepted']} accepted, rate {learning['rate']:g}, "
        f"tau {learning['tau']}; updates, undone lessons and seconds are those of one pass"
    )
    yield f"bundle {bundle}"


def _error_table(cells: Sequence[Mapping[str, Any]]) -> Table:
    names = ("WER, %", "orders from .. to", "+/- points", "p", "updates", "undone", "seconds")
    table = _table(names)
    for cell in cells:
        wer = cell["wer_percent"]
        rates = wer["by_pass"]
        table.add_row(
            *(cell[switch] for switch in _SWITCHES),
            _with_interval("{:.2f}", wer["value"], wer["interval"]),
            f"{min(rates):.2f} .. {max(rates):.2f}" if len(rates) > 1 else "",
            _with_interval("{:+z.2f}", wer["difference"], wer["difference_interval"]),
            f"{wer['p_value']:.2g}",
            f"{cell['updates']:.0f}",
            f"{cell['undone']:.0f}",
            f"{cell['seconds']:.1f}",
        )
    return table


def _perplexity_table(cells: Sequence[Mapping[str, Any]]) -> Table:
    sources = list(cells[0]["perplexity"])
    table = _table([name for source in sources for name in (f"perplexity, {source}", "+/-")])
    for cell in cells:
        measures = [cell["perplexity"][source] for source in sources]
        values = [
            text
            for measure in measures
            for text in (
                _with_interval("{:.1f}", measure["value"], measure["interval"]),
                _with_interval("{:+z.1f}", measure["difference"], measure["difference_interval"]),
            )
        ]
        table.add_row(*(cell[switch] for switch in _SWITCHES), *values)
    return table


def _table(names: Sequence[str]) -> Table:
    table = Table()
    for switch in _SWITCHES:
        table.add_column(switch)
    for name in names:
        table.add_column(name, justify="right")
    return table


def _with_interval(form: str, value: float, interval: Sequence[float]) -> str:
    low, high = (form.format(end) for end in interval)
    return f"{form.format(value)} ({low} .. {high})"
