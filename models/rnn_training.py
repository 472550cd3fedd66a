"""The training loop of recurrent networks: epochs, validation, checkpoints, resuming, the log."""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from models.checkpoint import load_checkpoint, save_checkpoint
from models.distributed import Group
from models.errors import TrainingError
from models.recipe import Recipe, RecipeState
from models.recipe_fast import Fast, FastOptions
from models.recipe_mikolov2010 import Mikolov2010, Mikolov2010Options
from models.rnnlm import ElmanLM, ElmanWeights, WordClasses
from models.self_normalised import SelfNormalised
from models.training_text import ClassStream
from models.validation import output_layer, self_normalisation, stream_perplexity

_SECONDS_BETWEEN_REPORTS = 0.2
_LONGEST_SHOWN = 60
# An option that a resumed training may have otherwise: it says when to stop, not what to do until then.
_MAY_CHANGE = "max_epochs"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a training is.

    epoch:            the epoch under way, from 1
    epochs:           how many there will be, where that is known
    words:            words learnt in this epoch
    words_in_epoch:   words an epoch has
    words_per_second: over this run, validation left out
    valid_perplexity: after the last finished epoch; None in the first
    """

    epoch: int
    epochs: int | None
    words: int
    words_in_epoch: int
    words_per_second: float
    valid_perplexity: float | None


class Interrupted(TrainingError):  # noqa: N818 - it is a stop on request, not a failure
    """The training was asked to stop; what it had learnt stands in the checkpoint named."""

    exit_code = 130


@dataclass(frozen=True, slots=True)
class TrainingText:
    """What a network learns from and is judged by.

    train, valid: streams of classes
    classes:      the classes of the streams
    vocabulary:   SHA-256 of the shared vocabulary
    """

    train: ClassStream
    valid: ClassStream
    classes: WordClasses
    vocabulary: str


Options = FastOptions | Mikolov2010Options


_ALONE = Group()


def make_recipe(
    text: TrainingText, options: Options, *, hidden_size: int, seed: int, device: torch.device, group: Group = _ALONE
) -> Recipe:
    """The recipe that the options belong to. Raises TrainingError when processes cannot share it."""
    C = text.classes.count
    if isinstance(options, FastOptions):
        return Fast(text.train, C, hidden_size, options, seed, device, group)
    if group.size > 1:
        raise TrainingError("recipe mikolov2010 learns one word at a time: processes cannot share it")
    start = Mikolov2010.initial_weights(C, hidden_size, options, seed)
    return Mikolov2010(text.train, start, options)


class Trainer:
    """Runs a recipe to its end, or until asked to stop, and keeps the network that validated best.

    Of a group of processes each has a trainer; the leader's validates, and writes the files that all can read.

    folder: where checkpoint.safetensors and log.jsonl are kept
    resume: go on from the checkpoint in the folder; it must be of the same text, vocabulary, options and seed
    report: called a few times a second with the progress
    stop:   asked between steps; when it answers True, a checkpoint is written and Interrupted raised
    group:  the processes that train together
    """

    def __init__(
        self,
        recipe: Recipe,
        text: TrainingText,
        folder: Path,
        identity: Mapping[str, Any],
        *,
        report: Callable[[Progress], None] = lambda _: None,
        stop: Callable[[], bool] = lambda: False,
        log: Callable[[Mapping[str, Any]], None] = lambda _: None,
        group: Group = _ALONE,
    ) -> None:
        self._group = group
        self._recipe, self._text, self._folder = recipe, text, folder
        # Round-trip through JSON, so that it compares equal to what a checkpoint gives back.
        self._identity = json.loads(
            json.dumps(
                {
                    **identity,
                    "vocabulary": text.vocabulary,
                    "train_text": text.train.sha256,
                    "valid_text": text.valid.sha256,
                }
            )
        )
        self._report, self._stop, self._extra_log = report, stop, log
        self._epoch = 0
        self._seconds = 0.0
        self._best: ElmanWeights = recipe.weights()
        self._best_perplexity = math.inf
        self._valid: float | None = None
        if group.leads:
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def checkpoint(self) -> Path:
        """Where the checkpoint stands."""
        return self._folder / "checkpoint.safetensors"

    @property
    def _log(self) -> Path:
        return self._folder / "log.jsonl"

    def run(self, *, resume: bool = False) -> tuple[ElmanWeights, float]:
        """Train to the end. Returns the network with the lowest validation perplexity, and that perplexity."""
        if resume:
            self._restore()
        elif self._group.leads:
            self._log.unlink(missing_ok=True)
        while not self._recipe.done:
            self._run_epoch()
            entry = {**self._recipe.report(), **self._validate()}
            self._recipe.validated(entry["valid_perplexity"])
            if self._group.leads:
                with self._log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")
                self._extra_log(entry)
            self._save()
        return self._best, self._best_perplexity

    def _run_epoch(self) -> None:
        begun = time.perf_counter()
        before, words_here, shown = self._seconds, 0, 0.0
        for words in self._recipe.epoch():
            words_here += words
            now = time.perf_counter()
            self._seconds = before + now - begun
            if now - shown > _SECONDS_BETWEEN_REPORTS:
                shown = now
                self._show(words_here / (now - begun))
            if self._group.any(self._stop()):
                self._save()
                raise Interrupted(f"stopped on request; --resume goes on from {self.checkpoint}")
        self._epoch += 1

    def _show(self, words_per_second: float) -> None:
        words, epochs = self._recipe.progress()
        self._report(Progress(self._epoch + 1, epochs, words, len(self._text.train), words_per_second, self._valid))

    def _validate(self) -> dict[str, Any]:
        weights = self._recipe.weights()
        perplexity = math.nan
        if self._group.leads:
            layer = output_layer(weights, self._recipe.groups)
            perplexity = stream_perplexity(
                weights, self._text.valid, self._text.classes, self._recipe.initial_state, layer
            )
        perplexity = self._group.leaders(perplexity)
        if not math.isfinite(perplexity):
            raise TrainingError("the training diverged: validation perplexity is not finite; lower the learning rate")
        self._valid = perplexity
        if perplexity < self._best_perplexity:
            self._best, self._best_perplexity = weights, perplexity
        return {
            "epoch": self._epoch,
            "valid_perplexity": perplexity,
            "seconds": round(self._seconds, 3),
            "words_per_second": round(self._epoch * len(self._text.train) / max(self._seconds, 1e-9), 1),
        }

    def _save(self) -> None:
        state = self._recipe.state()
        tensors = {f"recipe.{name}": tensor for name, tensor in state.tensors.items()}
        tensors.update({f"best.{name}": tensor for name, tensor in self._best.named().items()})
        values = {
            "identity": self._identity,
            "recipe": dict(state.values),
            "epoch": self._epoch,
            "seconds": self._seconds,
            "best_perplexity": self._best_perplexity if math.isfinite(self._best_perplexity) else None,
            "valid": self._valid,
        }
        if self._group.leads:
            save_checkpoint(self.checkpoint, tensors, values)
        # None goes on, or ends, before the checkpoint is whole.
        self._group.wait()

    def _restore(self) -> None:
        """Take up the checkpoint; of a training that was finished, too."""
        tensors, values = load_checkpoint(self.checkpoint)
        theirs, ours = _comparable(values["identity"]), _comparable(self._identity)
        for name in sorted({*theirs, *ours}):
            if theirs.get(name) != ours.get(name):
                raise TrainingError(
                    f"{self.checkpoint}: was made with another {name.replace('_', ' ')} "
                    f"({_shorten(theirs.get(name))}, now {_shorten(ours.get(name))}); it cannot be resumed"
                )
        recipe = {name.removeprefix("recipe."): t for name, t in tensors.items() if name.startswith("recipe.")}
        self._recipe.restore(RecipeState(recipe, values["recipe"]))
        device = self._best.U.device
        self._best = ElmanWeights(*(tensors[f"best.{name}"].to(device) for name in "UWV"))
        self._best_perplexity = math.inf if values["best_perplexity"] is None else values["best_perplexity"]
        self._epoch, self._seconds, self._valid = values["epoch"], values["seconds"], values["valid"]


def _comparable(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same for a training to be gone on with."""
    options = identity.get("options")
    if not isinstance(options, Mapping):
        return dict(identity)
    return {**identity, "options": {name: value for name, value in options.items() if name != _MAY_CHANGE}}


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def train_elman(
    text: TrainingText,
    options: Options,
    folder: Path,
    *,
    hidden_size: int,
    seed: int,
    device: torch.device,
    resume: bool = False,
    report: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    log: Callable[[Mapping[str, Any]], None] = lambda _: None,
    group: Group = _ALONE,
) -> ElmanLM:
    """Train a network and return it, with its provenance. See Trainer for the folder, `report`, `stop` and errors."""
    recipe = make_recipe(text, options, hidden_size=hidden_size, seed=seed, device=device, group=group)
    name = "fast" if isinstance(options, FastOptions) else "mikolov2010"
    identity = {"recipe": name, "options": asdict(options), "hidden_size": hidden_size, "seed": seed}
    trainer = Trainer(recipe, text, folder, identity, report=report, stop=stop, log=log, group=group)
    weights, perplexity = trainer.run(resume=resume)
    training = {
        **identity,
        "train_tokens": len(text.train),
        "valid_perplexity": perplexity,
        "train_text": text.train.sha256,
    }
    layer = output_layer(weights, recipe.groups)
    if isinstance(options, FastOptions) and options.normaliser_penalty:
        layer = SelfNormalised(weights.V, self_normalisation(weights, text.valid, recipe.initial_state))
    return ElmanLM(weights, text.classes, recipe.initial_state, training, layer)
