"""A recurrent network's folder in a bundle: config.json and model.safetensors, written and read."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.class_factored import NAME as CLASS_FACTORED
from models.class_factored import ClassFactored, ClassGroups
from models.errors import BundleError
from models.output_layer import FullSoftmax, OutputLayer, Precision
from models.rnnlm import ElmanLM, ElmanWeights, WordClasses
from models.self_normalised import SelfNormalisation, SelfNormalised
from models.vocabulary import Vocabulary

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_SOFTMAX = "softmax"


def save_elman(folder: Path, model: ElmanLM) -> None:
    """Write a network into a folder, which is made if it is missing."""
    folder.mkdir(exist_ok=True)
    config: dict[str, Any] = {
        "kind": ElmanLM.kind,
        "hidden_size": model.hidden_size,
        "classes": model.classes.count,
        "rare_members": model.classes.rare_members,
        "initial_state": model.initial_state,
    }
    tensors = {key: value.detach().cpu().contiguous() for key, value in model.weights.named().items()}
    tensors["class_of_event"] = torch.from_numpy(model.classes.of_event)
    if isinstance(model.output, ClassFactored):
        # A release that knows no such layer refuses the network: its V has more rows than there are classes.
        config["output"] = CLASS_FACTORED
        tensors["group_of_class"] = torch.from_numpy(model.output.groups.of_class)
    if isinstance(model.output, SelfNormalised):
        # A release that knows no such layer computes the normaliser, which is right.
        config["self_normalised"] = asdict(model.output.measured)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / WEIGHTS)


def load_elman(
    folder: Path,
    vocabulary: Vocabulary,
    device: torch.device,
    training: dict[str, Any],
    *,
    precision: Precision = "float32",
    exact_normaliser: bool = False,
) -> ElmanLM:
    """Read a network. Raises BundleError naming the file that is no such network's.

    training:         its provenance
    precision:        of a full softmax's normaliser
    exact_normaliser: compute the normaliser even of a network trained to do without
    """
    config_path, weights_path = folder / CONFIG, folder / WEIGHTS
    try:
        config = json.loads(config_path.read_bytes())
        rare_members, initial_state = int(config["rare_members"]), float(config["initial_state"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{config_path}: not a recurrent network's configuration: {error}") from error
    try:
        measured = SelfNormalisation.from_json(config["self_normalised"]) if "self_normalised" in config else None
        factored = _is_factored(config)
    except BundleError as error:
        raise BundleError(f"{config_path}: {error}") from error
    try:
        tensors = load_file(weights_path)
        weights = ElmanWeights(tensors["U"], tensors["W"], tensors["V"]).to(device)
        of_event = tensors["class_of_event"].numpy()
        group_of_class = tensors["group_of_class"].numpy() if factored else None
    except (OSError, SafetensorError, KeyError) as error:
        raise BundleError(f"{weights_path}: not a recurrent network's weights: {error}") from error
    if of_event.shape != (vocabulary.size,) or of_event.dtype != np.int64:
        raise BundleError(f"{weights_path}: its classes are not one integer for each of {vocabulary.size} events")
    try:
        classes = WordClasses(of_event, rare_members)
        output: OutputLayer
        if group_of_class is not None:
            output = ClassFactored(weights.V, ClassGroups(group_of_class))
        elif measured is not None:
            output = SelfNormalised(_matrix(weights.V), measured, exact=exact_normaliser, precision=precision)
        else:
            output = FullSoftmax(_matrix(weights.V), precision)
        return ElmanLM(weights, classes, initial_state, training, output)
    except BundleError as error:
        raise BundleError(f"{weights_path}: {error}") from error


def _is_factored(config: Mapping[str, Any]) -> bool:
    output = config.get("output", _SOFTMAX)
    if output not in (_SOFTMAX, CLASS_FACTORED):
        raise BundleError(f"output {output!r} is none that this release knows")
    if output == CLASS_FACTORED and "self_normalised" in config:
        raise BundleError("a class-factored output has a normaliser that needs no leaving out")
    return bool(output == CLASS_FACTORED)


def _matrix(V: Tensor) -> Tensor:
    if V.ndim != 2:  # noqa: PLR2004 - a matrix
        raise BundleError(f"matrix V has shape {tuple(V.shape)}")
    return V
