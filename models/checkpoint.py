"""A checkpoint of a training: one safetensors file, written as a whole or not at all."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from models.errors import TrainingError


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write tensors and JSON values to one file; an earlier checkpoint is replaced only once the new one is whole."""
    temporary = path.with_name(f".{path.name}.new")
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(plain, temporary, metadata={"values": json.dumps(values)})
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_checkpoint` wrote. Raises TrainingError naming the file."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            values = json.loads((file.metadata() or {})["values"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise TrainingError(f"{path}: cannot be resumed from: {error}") from error
    return tensors, values
