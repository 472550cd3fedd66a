"""What `nbest tune` does: read, score, search, report, store."""

import json
import lzma
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from models.bundle import Bundle, load_bundle, weights_to_json
from models.corpus import OPENERS, sentences
from models.development_set import PARAMETERS
from models.errors import InvalidNBestError, TuningError
from models.evaluation_set import EvaluationSet, SessionPer
from models.interpolation import FittedMixture
from models.learning_search import RATES, FoundLearning, search_learning
from models.nbest import NBest
from models.rescoring import Rescorer
from models.rnnlm import ElmanLM
from models.score import Weights
from models.scored_lists import ScoredLists
from models.session import SessionModel, SessionOptions
from models.session_scoring import accepted_texts, score_in_sessions
from models.tuning import TuningResult, fit_mixture, mix, score_lists, tune
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


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """How to tune.

    models:   which models to mix; all when None
    held_out: text for the interpolation weights; the development set's references when empty
    without:  names of weights held at zero
    sessions: the sessions that the weights are for; None for lists that each start afresh
    per:      whether all lists are of one session, or those of a speaker
    rates:    learning rates to choose from
    """

    models: tuple[str, ...] | None = None
    held_out: tuple[Path, ...] = ()
    without: frozenset[str] = frozenset()
    folds: int = 5
    seed: int = 0
    sessions: SessionOptions | None = None
    per: SessionPer = "file"
    rates: tuple[float, ...] = RATES

    def __post_init__(self) -> None:
        strange = self.without - set(PARAMETERS)
        if strange:
            raise TuningError(f"no weight named {min(strange)!r}; there are {', '.join(PARAMETERS)}")
        if self.sessions and self.held_out:
            raise TuningError("sessions are tuned on their own development set: --held-out does not go with them")


def run_tune(
    folder: Path, development: Path, settings: TuneSettings, *, log_base: str, output: Path | None, device: str
) -> TuningResult:
    """Tune and store; print what was found."""
    bundle = load_bundle(folder, device=device, only=settings.models)
    rescorer, chosen = bundle.rescorer, tuple(bundle.rescorer.models)
    lists = read_nbest(development, log_unit=LOG_UNITS[log_base])
    learning = None
    with Progress(console=_CONSOLE, transient=True) as bar:
        scoring = bar.add_task("scoring", total=len(lists))
        scored = score_lists(rescorer, lists, chosen, lambda done: bar.update(scoring, completed=done))
        if settings.held_out:
            text = list(sentences(settings.held_out, rescorer.normaliser))
        else:
            text = [prepared.reference_words or () for batch in scored for prepared in batch.lists]
        result = _search(bar, scored, *fit_mixture(rescorer, chosen, text), settings)
        learns = _learns(bundle, result.weights, settings, output)
        if learns or settings.sessions:
            utterances = EvaluationSet.prepare(rescorer, lists, settings.per)
        if learns:
            learning = _choose_learning(bar, rescorer, result.weights, scored, utterances, settings)
        if settings.sessions:
            options = settings.sessions if learning is None else replace(settings.sessions, learning=learning.best)
            model = SessionModel(rescorer, result.weights, options)
            scoring = bar.add_task("scoring in sessions", total=len(lists))
            scored, references = score_in_sessions(model, utterances, lambda done: bar.update(scoring, completed=done))
            result = _search(bar, scored, *mix(references), settings)
    _store(bundle, result, _record(result, development, chosen, settings), learning, output)
    _print(result, development, chosen, learning)
    return result


def _search(
    bar: Progress,
    scored: Sequence[ScoredLists],
    lambdas: dict[str, float],
    mixture: FittedMixture,
    settings: TuneSettings,
) -> TuningResult:
    searching = bar.add_task("searching", total=settings.folds + 1)
    return tune(
        scored,
        lambdas,
        mixture,
        off=settings.without,
        folds=settings.folds,
        seed=settings.seed,
        report=lambda done: bar.update(searching, completed=done),
    )


def _learns(bundle: Bundle, weights: Weights, settings: TuneSettings, output: Path | None) -> bool:
    """Whether a learning rate is wanted: for the sessions tuned for, or to be stored with the bundle."""
    wanted = settings.sessions.weights == "dynamic" if settings.sessions else output is None
    networks = [name for name, model in bundle.rescorer.models.items() if isinstance(model, ElmanLM)]
    return wanted and any(weights.interpolation.get(name, 0) > 0 for name in networks)


def _choose_learning(
    bar: Progress,
    rescorer: Rescorer,
    weights: Weights,
    scored: Sequence[ScoredLists],
    development: EvaluationSet,
    settings: TuneSettings,
) -> FoundLearning:
    trying = bar.add_task("trying learning rates", total=len(settings.rates))
    return search_learning(
        rescorer,
        weights,
        accepted_texts(scored, weights, development),
        rates=settings.rates,
        reaches=(settings.sessions.learning.tau if settings.sessions else 1,),
        report=lambda *_: bar.advance(trying),
    )


def _record(result: TuningResult, development: Path, models: Sequence[str], settings: TuneSettings) -> dict[str, Any]:
    sessions = settings.sessions
    return {
        "development_set": development.name,
        "held_out": [path.name for path in settings.held_out] or "the development set's references",
        "models": list(models),
        "held_at_zero": sorted(settings.without),
        "seed": settings.seed,
        "sessions": {"per": settings.per, "state": sessions.state, "weights": sessions.weights} if sessions else None,
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


def _store(
    bundle: Bundle, result: TuningResult, record: dict[str, Any], learning: FoundLearning | None, output: Path | None
) -> None:
    if output is not None:
        document = json.dumps(weights_to_json(result.weights), indent=2) + "\n"
        output.write_text(document, encoding="utf-8")
        return
    bundle.manifest.weights = result.weights
    bundle.manifest.tuning = record
    bundle.manifest.learning = learning.best if learning else None
    bundle.manifest.write(bundle.folder)


def _print(result: TuningResult, development: Path, models: Sequence[str], learning: FoundLearning | None) -> None:
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
    if learning:
        console.print(
            f"learning rate of sessions: {learning.best.rate:g} (perplexity of the accepted texts "
            f"{learning.perplexities[learning.best]:.1f}, with frozen weights {learning.static:.1f})"
        )
        if not learning.helps:
            console.print("warning: learning does not help on this set: sessions do best with weights static")
    for warning in result.warnings:
        console.print(f"warning: {warning}")
