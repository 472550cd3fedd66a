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

from models.bundle import Bundle, load_bundle, weights_to_json
from models.calibration import Calibration, calibrate
from models.corpus import OPENERS, sentences
from models.development_set import PARAMETERS
from models.errors import InvalidNBestError, TuningError
from models.evaluation_set import EvaluationSet, SessionPer
from models.interpolation import FittedMixture
from models.lambda_search import LambdasFor
from models.learning_search import RATES, FoundLearning, search_learning
from models.nbest import NBest
from models.rescoring import Rescorer
from models.rnnlm import ElmanLM
from models.score import Weights
from models.scored_lists import ScoredLists
from models.session import SessionModel, SessionOptions
from models.session_scoring import accepted_texts, score_in_sessions
from models.tuning import TuningResult, fit_mixture, mix, score_lists, tune
from models.tuning_report import print_report, result_record
from models.weight_ranges import Regularisation
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

    models:     which models to mix; all when None
    held_out:   text for the interpolation weights; the development set's references when empty
    lambdas:    what the interpolation weights are chosen for
    regularise: points of word error rate that a weight far from its default must be worth, see `Regularisation`
    without:    names of weights held at zero
    sessions:   the sessions that the weights are for; None for lists that each start afresh
    per:        whether all lists are of one session, or those of a speaker
    rates:      learning rates to choose from
    """

    models: tuple[str, ...] | None = None
    held_out: tuple[Path, ...] = ()
    lambdas: LambdasFor = "perplexity"
    regularise: float = 0.0
    without: frozenset[str] = frozenset()
    folds: int = 5
    seed: int = 0
    sessions: SessionOptions | None = None
    per: SessionPer = "file"
    rates: tuple[float, ...] = RATES

    def __post_init__(self) -> None:
        Regularisation(self.regularise)
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
    confidence = _calibrate(scored, result.weights, settings)
    record = _record(result, development, chosen, settings)
    record["confidence"] = confidence.to_json() if confidence else None
    _store(bundle, result, record, learning, confidence, output)
    console = Console(soft_wrap=True)
    print_report(result, development.name, chosen, learning, console)
    if confidence:
        console.print(confidence.summary())
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
        lambdas_for=settings.lambdas,
        regularisation=Regularisation(settings.regularise),
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


def _calibrate(scored: Sequence[ScoredLists], weights: Weights, settings: TuneSettings) -> Calibration | None:
    """The calibration of word confidences; None where the winners hold no word."""
    try:
        return calibrate(scored, weights, folds=settings.folds)
    except TuningError:
        return None


def _record(result: TuningResult, development: Path, models: Sequence[str], settings: TuneSettings) -> dict[str, Any]:
    sessions = settings.sessions
    return {
        "development_set": development.name,
        "held_out": [path.name for path in settings.held_out] or "the development set's references",
        "models": list(models),
        "held_at_zero": sorted(settings.without),
        "seed": settings.seed,
        "sessions": {"per": settings.per, "state": sessions.state, "weights": sessions.weights} if sessions else None,
        "regularisation": settings.regularise,
        **result_record(result),
    }


def _store(
    bundle: Bundle,
    result: TuningResult,
    record: dict[str, Any],
    learning: FoundLearning | None,
    confidence: Calibration | None,
    output: Path | None,
) -> None:
    if output is not None:
        document = json.dumps(weights_to_json(result.weights), indent=2) + "\n"
        output.write_text(document, encoding="utf-8")
        return
    bundle.manifest.weights = result.weights
    bundle.manifest.tuning = record
    bundle.manifest.learning = learning.best if learning else None
    bundle.manifest.confidence = confidence.map if confidence and confidence.helps else None
    bundle.manifest.write(bundle.folder)
