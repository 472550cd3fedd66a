"""The weights a person gives on the command line, as the options of a request."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, get_args

from .errors import UsageError
from .jsonl import kind, strict_json
from .types import Decision, Options, State, Weights

SCALES = tuple(name for name in Weights.__annotations__ if name != "interpolation")
_CHOICES = {"state": get_args(State), "decision": get_args(Decision)}


def read_options(
    file: str | None,
    weights: Sequence[str],
    interpolation: str | None,
    state: State | None,
    decision: Decision | None = None,
) -> Options:
    """The options of a file, overridden by those of the command line. Raises UsageError naming the option.

    file:          a JSON object, as the "options" of a request, or as "weights" stand in a result
    weights:       NAME=VALUE, each
    interpolation: MODEL=WEIGHT, several parted by commas
    """
    options = _from_file(file) if file is not None else {}
    for item in weights:
        name, value = _assignment(item, "--weight")
        if name not in SCALES:
            raise UsageError(f"--weight {item}: no such weight; there are {', '.join(SCALES)}")
        options[name] = value
    if interpolation is not None:
        pairs = [_assignment(item, "--interpolation") for item in interpolation.split(",")]
        options["interpolation"] = dict(pairs)
        if len(options["interpolation"]) < len(pairs):
            raise UsageError(f"--interpolation {interpolation}: a model is named twice")
    if state is not None:
        options["state"] = state
    if decision is not None:
        options["decision"] = decision
    return cast("Options", options)


def _from_file(file: str) -> dict[str, Any]:
    where = f"--options {file}"
    try:
        document = strict_json(Path(file).read_bytes())
    except OSError as error:
        raise UsageError(f"{where}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{where}: must hold an object, not {kind(document)}")
    for name, value in document.items():
        _check_option(name, value, f"{where}: {name}")
    return document


def _check_option(name: str, value: Any, where: str) -> None:
    if name in SCALES:
        _check_number(value, where)
    elif name == "interpolation":
        if not isinstance(value, dict):
            raise UsageError(f"{where}: must be an object, not {kind(value)}")
        for model, weight in value.items():
            _check_number(weight, f"{where}: {model}")
    elif name not in _CHOICES:
        raise UsageError(f"{where}: no such option")
    elif value not in _CHOICES[name]:
        raise UsageError(f"{where}: must be one of {', '.join(_CHOICES[name])}")


def _assignment(item: str, option: str) -> tuple[str, float]:
    name, equals, text = item.strip().partition("=")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (equals and name.strip() and math.isfinite(value)):
        raise UsageError(f"{option} {item}: must be NAME=VALUE with a finite number")
    return name.strip(), value


def _check_number(value: Any, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{where}: must be a number, not {kind(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{where}: must be finite")
