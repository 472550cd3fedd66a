"""Sessions' options and what they tell of themselves, as JSON values: shared by HTTP and the in-process engine."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.errors import InvalidOptionError
from models.learning import LearningOptions
from models.session import SessionOptions, SessionState

_SWITCHES = ("state", "weights", "learn_from")
_LEARNING = ("rate", "tau", "decay")
_BOUND = "max_loss_rise"


def session_options_from_json(document: Mapping[str, Any], learning: LearningOptions | None = None) -> SessionOptions:
    """Options whose fields are known to be of their types; what is left out is the default of SessionOptions.

    learning: what of rate, tau and decay is left out is taken from here, as from the bundle's tuning

    Raises InvalidOptionError naming the option.
    """
    unknown = document.keys() - {*_SWITCHES, *_LEARNING, _BOUND}
    if unknown:
        raise InvalidOptionError(f"{min(unknown)!r} is no option of a session")
    given = {name: document[name] for name in _LEARNING if name in document}
    return SessionOptions(
        learning=replace(learning or LearningOptions(), **given),
        **{name: document[name] for name in (*_SWITCHES, _BOUND) if name in document},
    )


def session_options_to_json(options: SessionOptions) -> dict[str, Any]:
    """Every option."""
    return {
        **{name: getattr(options, name) for name in _SWITCHES},
        **{name: getattr(options.learning, name) for name in _LEARNING},
        _BOUND: options.max_loss_rise,
    }


def perplexities_to_json(state: SessionState) -> dict[str, dict[str, Any]]:
    """By model and of the mixture: "session" and "static" perplexity of what was accepted, or None; and "events"."""
    out = {}
    for name, tally in state.tallies.items():
        session, static = tally.perplexities() or (None, None)
        out[name] = {"session": session, "static": static, "events": tally.events}
    return out
