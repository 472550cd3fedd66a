"""A bundle: the folder that holds everything a rescoring needs, checked when it is loaded.

    bundle.json                format version, models, weights, normaliser, vocabulary hash, training provenance
    vocab.txt                  one word a line
    NAME.kenlm                 a KenLM binary
    NAME/config.json           sizes and classes of a neural model
    NAME/model.safetensors     its weights

Loading runs no code from the folder. Every file's SHA-256 stands in bundle.json and is checked.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from models.base import LanguageModel
from models.confidence import ConfidenceMap
from models.elman_files import load_elman, save_elman
from models.errors import BundleError, InvalidOptionError, InvalidWeightsError, UnknownModelError
from models.learning import LearningOptions
from models.ngram import KenLMNgram
from models.normaliser import Normaliser
from models.output_layer import Precision, check_precision
from models.rescoring import ListLimits, Rescorer
from models.rnnlm import ElmanLM
from models.score import SCALES, Weights
from models.vocabulary import Vocabulary

FORMAT_VERSION = 1
MANIFEST = "bundle.json"
VOCABULARY = "vocab.txt"


@dataclass
class Manifest:
    """What bundle.json says.

    normaliser: the bundle's text normaliser
    vocabulary: SHA-256 of vocab.txt
    models:     name -> {"kind", "files": {relative path: SHA-256}, "training": provenance}
    weights:    the default weights, or None until tuned or set
    tuning:     how the weights were found
    learning:   what suits the networks in a session that learns, or None until tuned
    confidence: from posteriors of words under these weights to probabilities, or None until tuned
    """

    normaliser: Normaliser
    vocabulary: str
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    weights: Weights | None = None
    tuning: dict[str, Any] | None = None
    learning: LearningOptions | None = None
    confidence: ConfidenceMap | None = None

    def to_json(self) -> dict[str, Any]:
        """The manifest as it stands in bundle.json."""
        return {
            "format_version": FORMAT_VERSION,
            "normaliser": self.normaliser.to_json(),
            "vocabulary": {"file": VOCABULARY, "sha256": self.vocabulary},
            "models": self.models,
            "weights": weights_to_json(self.weights) if self.weights else None,
            "tuning": self.tuning,
            "learning": asdict(self.learning) if self.learning else None,
            "confidence": self.confidence.to_json() if self.confidence else None,
        }

    def write(self, folder: Path) -> None:
        """Replace bundle.json as a whole: a reader meets the old file or the new, never half of one."""
        temporary = folder / f".{MANIFEST}.new"
        temporary.write_text(json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        temporary.replace(folder / MANIFEST)

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read and check bundle.json. Raises BundleError naming the file and the field."""
        path = folder / MANIFEST
        try:
            document = json.loads(path.read_bytes())
        except FileNotFoundError as error:
            raise BundleError(f"{folder}: no bundle here: {MANIFEST} is missing") from error
        except (OSError, ValueError) as error:
            raise BundleError(f"{path}: cannot be read as JSON: {error}") from error
        try:
            return cls._from_json(document)
        except (KeyError, TypeError, AttributeError) as error:
            raise BundleError(f"{path}: field {error} is missing or not of its type") from error
        except (BundleError, InvalidOptionError, InvalidWeightsError) as error:
            raise BundleError(f"{path}: {error}") from error

    @classmethod
    def _from_json(cls, document: Any) -> "Manifest":
        if document["format_version"] != FORMAT_VERSION:
            raise BundleError(f"format version {document['format_version']!r}; this release reads {FORMAT_VERSION}")
        models = document["models"]
        for name, entry in models.items():
            if not isinstance(entry["kind"], str) or not all(isinstance(h, str) for h in entry["files"].values()):
                raise BundleError(f"model {name!r} is not described as a bundle describes one")
        return cls(
            normaliser=Normaliser.from_json(document["normaliser"]),
            vocabulary=document["vocabulary"]["sha256"],
            models=models,
            weights=weights_from_json(document["weights"]) if document.get("weights") else None,
            tuning=document.get("tuning"),
            learning=_learning_from_json(document["learning"]) if document.get("learning") else None,
            confidence=ConfidenceMap.from_json(document["confidence"]) if document.get("confidence") else None,
        )


def _learning_from_json(document: Mapping[str, Any]) -> LearningOptions:
    values = {option.name: document[option.name] for option in fields(LearningOptions)}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int if name == "tau" else int | float):
            raise InvalidOptionError(f"learning.{name} is {value!r}; it must be a number")
    return LearningOptions(**values)


def weights_to_json(weights: Weights) -> dict[str, Any]:
    """Weights as JSON: the scales by name and the interpolation weights by model."""
    return {**{name: getattr(weights, name) for name in SCALES}, "interpolation": dict(weights.interpolation)}


def weights_from_json(document: Mapping[str, Any], base: Weights | None = None) -> Weights:
    """Read weights; what is left out is taken from `base`, else from the defaults. An explicit 0 is honoured.

    Raises InvalidWeightsError naming the field.
    """
    unknown = document.keys() - {*SCALES, "interpolation"}
    if unknown:
        raise InvalidWeightsError(f"unknown weight {min(unknown)!r}")
    values: dict[str, Any] = {name: getattr(base, name) for name in SCALES} if base else {}
    interpolation = document.get("interpolation", base.interpolation if base else None)
    if not isinstance(interpolation, Mapping):
        raise InvalidWeightsError("interpolation must map model names to weights")
    for name, value in [*document.items(), *interpolation.items()]:
        if name != "interpolation" and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise InvalidWeightsError(f"{name} must be a number")
    values.update({name: float(value) for name, value in document.items() if name != "interpolation"})
    return Weights(interpolation={name: float(value) for name, value in interpolation.items()}, **values)


@dataclass(frozen=True)
class Bundle:
    """A loaded bundle.

    sha256: hash of bundle.json, which holds every file's hash: two bundles of one hash are the same
    """

    folder: Path
    manifest: Manifest
    rescorer: Rescorer
    weights: Weights
    sha256: str

    @property
    def learning(self) -> LearningOptions:
        """How sessions learn that do not say otherwise: as tuned, else as in the paper."""
        return self.manifest.learning or LearningOptions()

    def confidence(self, weights: Weights) -> ConfidenceMap | None:
        """How posteriors of words become probabilities; it holds for the weights it was fitted under alone."""
        return self.manifest.confidence if weights == self.manifest.weights else None

    def describe(self) -> dict[str, Any]:
        """What GET /v1/models answers: models, weights, normaliser, vocabulary, hash."""
        return {
            "bundle": self.sha256,
            "vocabulary": {"words": len(self.rescorer.vocabulary.words), "sha256": self.manifest.vocabulary},
            "normaliser": self.manifest.normaliser.to_json(),
            "models": [{"name": name, **model.describe()} for name, model in self.rescorer.models.items()],
            "weights": weights_to_json(self.weights),
            "learning": asdict(self.learning),
            "confidence": self.manifest.confidence.to_json() if self.manifest.confidence else None,
        }


def load_bundle(
    folder: Path,
    *,
    device: str = "cpu",
    limits: ListLimits | None = None,
    only: tuple[str, ...] | None = None,
    precision: Precision = "float32",
    exact_normaliser: bool = False,
) -> Bundle:
    """Load a bundle's models. Raises BundleError naming the file that is missing, changed or inconsistent.

    device: "cpu", "cuda", or "auto" for CUDA where there is one
    only:   the models to load; all when left out
    precision:        of the normaliser of a full softmax; InvalidOptionError where no network has one
    exact_normaliser: compute the normaliser even of networks that were trained to do without
    """
    manifest = Manifest.read(folder)
    vocabulary = load_vocabulary(folder, manifest)
    if only is not None and (absent := [name for name in only if name not in manifest.models]):
        raise UnknownModelError(f"{folder}: no model named {absent[0]!r}; it has {', '.join(manifest.models)}")
    chosen = list(only) if only is not None else list(manifest.models)
    if not chosen:
        raise BundleError(f"{folder}: the bundle holds no model yet; `nbest train` adds one")
    where = choose_device(device)
    layer = {"precision": precision, "exact_normaliser": exact_normaliser}
    models = {name: _load_model(folder, name, manifest.models[name], vocabulary, where, layer) for name in chosen}
    check_precision({name: model.output for name, model in models.items() if isinstance(model, ElmanLM)}, precision)
    weights = manifest.weights
    if weights is None or only is not None:
        weights = Weights(interpolation={name: 1 / len(models) for name in models})
    try:
        weights.check_models(list(models))
    except UnknownModelError as error:
        raise BundleError(f"{folder / MANIFEST}: {error}") from error
    rescorer = Rescorer(vocabulary, manifest.normaliser, models, limits or ListLimits())
    return Bundle(folder, manifest, rescorer, weights, _sha256(folder / MANIFEST))


def choose_device(device: str) -> torch.device:
    """The torch device of a name. Raises BundleError when it is not to be had."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise BundleError(f"device {device!r} is asked for, but torch sees no CUDA device")
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise BundleError(f"no such device: {device!r}; use auto, cpu or cuda") from error


def set_threads(count: int) -> None:
    """Set how many threads matrix products use in this process; 0 leaves torch's own choice."""
    if count:
        torch.set_num_threads(count)


def load_vocabulary(folder: Path, manifest: Manifest) -> Vocabulary:
    """The vocabulary of a bundle, checked against its hash."""
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    if vocabulary.sha256 != manifest.vocabulary:
        raise BundleError(f"{folder / VOCABULARY}: not the vocabulary this bundle was built with (its hash differs)")
    return vocabulary


def create_bundle(folder: Path, normaliser: Normaliser, vocabulary: Vocabulary) -> Manifest:
    """Start a bundle with a normaliser and a vocabulary; models are added later."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary.save(folder / VOCABULARY)
    manifest = Manifest(normaliser, vocabulary.sha256)
    manifest.write(folder)
    return manifest


def add_kenlm(folder: Path, manifest: Manifest, name: str, training: Mapping[str, Any]) -> None:
    """Enter the file NAME.kenlm, already written in the folder, into the bundle."""
    _enter(folder, manifest, name, KenLMNgram.kind, training)


def add_elman(folder: Path, manifest: Manifest, name: str, model: ElmanLM) -> None:
    """Write a recurrent network into the folder NAME and enter it into the bundle."""
    save_elman(folder / name, model)
    _enter(folder, manifest, name, ElmanLM.kind, model.training)


def _files_of(kind: str, name: str) -> list[str]:
    return [f"{name}.kenlm"] if kind == KenLMNgram.kind else [f"{name}/config.json", f"{name}/model.safetensors"]


def _enter(folder: Path, manifest: Manifest, name: str, kind: str, training: Mapping[str, Any]) -> None:
    files = {file: _sha256(folder / file) for file in _files_of(kind, name)}
    # Another training may have entered its own model since this one read the manifest.
    others = Manifest.read(folder).models
    manifest.models = {**others, name: {"kind": kind, "files": files, "training": dict(training)}}
    # Weights found for the models as they were say nothing about this one.
    manifest.weights = manifest.tuning = manifest.learning = manifest.confidence = None
    manifest.write(folder)


def _load_model(
    folder: Path,
    name: str,
    entry: Mapping[str, Any],
    vocabulary: Vocabulary,
    device: torch.device,
    layer: Mapping[str, Any],
) -> LanguageModel:
    kind = entry["kind"]
    if kind not in (KenLMNgram.kind, ElmanLM.kind):
        raise BundleError(f"{folder / MANIFEST}: model {name!r} is of unknown kind {kind!r}")
    files = _files_of(kind, name)
    if entry["files"].keys() != set(files):
        raise BundleError(f"{folder / MANIFEST}: model {name!r} must have the files {', '.join(files)}")
    for file, expected in entry["files"].items():
        path = folder / file
        if not path.resolve().is_relative_to(folder.resolve()):
            raise BundleError(f"{folder / MANIFEST}: model {name!r} names a file outside the bundle")
        if not path.is_file():
            raise BundleError(f"{path}: missing")
        if _sha256(path) != expected:
            raise BundleError(f"{path}: not the file this bundle was built with (its hash differs)")
    if kind == KenLMNgram.kind:
        return KenLMNgram(folder / files[0], vocabulary)
    return load_elman(folder / name, vocabulary, device, dict(entry.get("training", {})), **layer)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
