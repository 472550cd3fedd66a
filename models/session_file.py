"""A session's state as safetensors bytes, and back: what a snapshot stores and an export hands out."""

import json
import struct
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from models.errors import SessionError
from models.learning import HiddenState, Start
from models.session import SessionModel, SessionState, Tally
from models.weight_delta import WeightDelta

_LENGTH = struct.Struct("<Q")


def dump_state(state: SessionState, metadata: Mapping[str, str]) -> bytes:
    """A state, with the caller's metadata beside it.

    Equal states and metadata give equal bytes.
    """
    tensors: dict[str, Tensor] = {}
    for name, start in state.networks.items():
        parts = {**start.delta.named(), "states": start.state.states, "inputs": start.state.inputs}
        tensors.update({f"{name}/{part}": tensor.contiguous().cpu() for part, tensor in parts.items()})
        tensors[f"{name}/static"] = torch.from_numpy(state.static[name].copy())
    counts = {
        "words_learnt": state.words_learnt,
        "undone": state.undone,
        "tallies": {name: [t.events, t.session, t.static] for name, t in state.tallies.items()},
    }
    # One entry, since the order of several is not kept.
    return save(tensors, {"session": json.dumps({"counts": counts, "metadata": dict(metadata)}, sort_keys=True)})


def load_metadata(data: bytes) -> dict[str, str]:
    """The metadata beside a state. Raises SessionError when the bytes are no dumped state."""
    metadata: dict[str, str] = _document(data)["metadata"]
    return metadata


def load_state(data: bytes, model: SessionModel) -> SessionState:
    """The state that was dumped. Raises SessionError when the bytes are broken or belong to other networks."""
    counts = _document(data)["counts"]
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise SessionError(f"the session's tensors cannot be read: {error}") from error
    fresh = model.fresh()
    expected = {f"{name}/{part}" for name in fresh.networks for part in _PARTS}
    if tensors.keys() != expected or counts["tallies"].keys() != fresh.tallies.keys():
        raise SessionError("the session is one of other models than these")
    networks, static = {}, {}
    for name, start in fresh.networks.items():
        weights = model.rescorer.models[name].weights  # type: ignore[attr-defined] # a session's networks have weights
        own = {part: tensors[f"{name}/{part}"].to(weights.V.device) for part in _PARTS}
        try:
            delta = WeightDelta.from_named(own, weights)
            networks[name] = Start(delta, _hidden_state(own, start))
        except SessionError as error:
            raise SessionError(f"model {name!r}: {error}") from error
        static[name] = own["static"].double().cpu().numpy()
    tallies = {name: Tally(int(t[0]), float(t[1]), float(t[2])) for name, t in counts["tallies"].items()}
    return SessionState(networks, static, tallies, int(counts["words_learnt"]), int(counts["undone"]))


_PARTS = ("G", "S", "W", "classes", "U", "states", "inputs", "static")


def _hidden_state(own: Mapping[str, Tensor], fresh: Start) -> HiddenState:
    states, inputs, static = own["states"], own["inputs"], own["static"]
    H, classes = fresh.state.states.shape[1], fresh.delta.G.shape[1]
    if states.shape != (len(inputs) + 1, H) or inputs.ndim != 1 or static.shape != (H,):
        raise SessionError("the hidden states have not the shapes of this network's")
    if states.dtype != fresh.state.states.dtype or inputs.dtype != torch.int64 or static.dtype != torch.float64:
        raise SessionError("the hidden states hold numbers of another kind than this network's")
    in_range = not len(inputs) or (int(inputs.min()) >= 0 and int(inputs.max()) < classes)
    if not in_range or not bool(torch.isfinite(states).all()) or not bool(torch.isfinite(static).all()):
        raise SessionError("the hidden states hold a number that none can be")
    return HiddenState(states, inputs)


def _document(data: bytes) -> dict[str, Any]:
    """The JSON that stands in the file's header; read by hand, since safetensors leaves it out of bytes in memory."""
    try:
        (length,) = _LENGTH.unpack_from(data)
        header = json.loads(data[_LENGTH.size : _LENGTH.size + length])
        document: dict[str, Any] = json.loads(header["__metadata__"]["session"])
        counts = document["counts"]
        valid = all(len(values) == 3 for values in counts["tallies"].values())  # noqa: PLR2004 - the fields of a Tally
        if (
            not valid
            or not isinstance(document["metadata"], dict)
            or counts["words_learnt"] < 0
            or counts["undone"] < 0
        ):
            raise SessionError("the session's header does not hold what it must")
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, UnicodeDecodeError, RecursionError) as error:
        raise SessionError("these bytes are no session of this program") from error
    return document
