"""What `nbest tune` does: read, score, search, report, store."""

import json
import lzma
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from models.bundle import Bundle, load_bundle, weights_to_json
from models.corpus import OPENERS, sentences
from models.development_set import PARAMETERS
from models.errors import InvalidNBestError, TuningError
from models.nbest import NBest
from models.tuning import TuningResult, score_lists, tune
from models.wire import LOG_UNITS, nbest_from_json

_CONSOLE = Console(stderr=True)


def read_nbest(path: Path, *, log_unit: float = 1.0) -> list[NBest]:
    """Read N-best JSONL, plain, .gz or .xz. Raises InvalidNBestError naming file, line and field."""
    out: dict[str, NBest] = {}
    try:
        with OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    _enter(out, _parse(line, f"{path}, line {number}", log_unit), f"{path}, line {number}")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, lzma.LZMAError) as error:
        raise InvalidNBestError(f"{path}: cannot be read: {error}") from error
    if not out:
        raise InvalidNBestError(f"{path}: the file holds no N-best list")
    return list(out.values())


def _enter(lists: dict[str, NBest], nbest: NBest, where: str) -> None:
    if nbest.utterance_id in lists:
        raise InvalidNBestError(f"{where}: id {nbest.utterance_id!r} stands twice")
    lists[nbest.utterance_id] = nbest


def _parse(line: str, where: str, log_unit: float) -> NBest:
    try:
        document = json.loads(line)
        _check_types(document)
        return nbest_from_json(document, log_unit=log_unit)
    except InvalidNBestError as error:
        raise InvalidNBestError(f"{where}: {error}") from error
    except KeyError as error:
        raise InvalidNBestError(f"{where}: field {error} is missing") from error
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise InvalidNBestError(f"{where}: not an N-best list: {error}") from error


def _check_types(document: Any) -> None:
    """Raise TypeError, naming the field, for one that is not of its type."""
    if not isinstance(document["id"], str):
        raise TypeError("id is no string")
    if not isinstance(document.get("reference"), str | None):
        raise TypeError("reference is no string")
    for index, entry in enumerate(document["hypotheses"]):
        if not isinstance(entry["text"], str):
            raise TypeError(f"hypothesis {index}: text is no string")
        for name, value in (("acoustic_score", entry["acoustic_score"]), ("lm_score", entry.get("lm_score", 0))):
            if isinstance(value, bool) or not isinstance(value, int | float | None):
                raise TypeError(f"hypothesis {index}: {name} is no number")


def run_tune(
    folder: Path,
    development: Path,
    *,
    models: tuple[str, ...] | None,
    held_out: Sequence[Path],
    without: frozenset[str],
    log_base: str,
    folds: int,
    seed: int,
    output: Path | None,
    device: str,
) -> TuningResult:
    """Tune and store; print what was found."""
    strange = without - set(PARAMETERS)
    if strange:
        raise TuningError(f"no weight named {min(strange)!r}; there are {', '.join(PARAMETERS)}")
    bundle = load_bundle(folder, device=device, only=models)
    chosen = tuple(bundle.rescorer.models)
    lists = read_nbest(development, log_unit=LOG_UNITS[log_base])
    with Progress(console=_CONSOLE, transient=True) as bar:
        scoring = bar.add_task("scoring", total=len(lists))
        searching = bar.add_task("searching", total=folds + 1)
        scored = score_lists(bundle.rescorer, lists, chosen, lambda done: bar.update(scoring, completed=done))
        if held_out:
            text = list(sentences(held_out, bundle.rescorer.normaliser))
        else:
            text = [prepared.reference_words or () for batch in scored for prepared in batch.lists]
        result = tune(
            bundle.rescorer,
            scored,
            chosen,
            text,
            off=without,
            folds=folds,
            seed=seed,
            report=lambda done: bar.update(searching, completed=done),
        )
    record = _record(result, development, held_out, chosen, without, seed)
    _store(bundle, result, record, output)
    _print(result, development, chosen)
    return result


def _record(
    result: TuningResult,
    development: Path,
    held_out: Sequence[Path],
    models: Sequence[str],
    without: frozenset[str],
    seed: int,
) -> dict[str, Any]:
    return {
        "development_set": development.name,
        "held_out": [path.name for path in held_out] or "the development set's references",
        "models": list(models),
        "held_at_zero": sorted(without),
        "seed": seed,
        "held_out_perplexity": result.mixture.perplexity,
        "word_errors": {
            "reference_words": result.words,
            "first_pass": result.first_pass_errors,
            "tuned": result.tuned_errors,
            "cross_validated": result.held_out_errors,
            "oracle": result.oracle_errors,
        },
        "folds": result.folds,
        "warnings": list(result.warnings),
    }


def _store(bundle: Bundle, result: TuningResult, record: dict[str, Any], output: Path | None) -> None:
    if output is not None:
        document = json.dumps(weights_to_json(result.weights), indent=2) + "\n"
        output.write_text(document, encoding="utf-8")
        return
    bundle.manifest.weights = result.weights
    bundle.manifest.tuning = record
    bundle.manifest.write(bundle.folder)


def _print(result: TuningResult, development: Path, models: Sequence[str]) -> None:
    console = Console(soft_wrap=True)
    console.print(f"{' + '.join(models)}, tuned on {development.name} ({result.lists} utterances)")
    table = Table(show_header=True)
    table.add_column("weight")
    table.add_column("value", justify="right")
    for name, value in result.weights.interpolation.items():
        table.add_row(f"interpolation {name}", f"{value:.4f}")
    for name, value in weights_to_json(result.weights).items():
        if name != "interpolation":
            table.add_row(name, f"{value:.4g}")
    console.print(table)
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
    for warning in result.warnings:
        console.print(f"warning: {warning}")
