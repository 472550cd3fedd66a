"""Which utterances share a session in a run of `nbest rescore`, and what the sessions are."""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from .errors import InputFileError, UsageError
from .files import NBestLine, read_nbest
from .jsonl import JsonLines
from .types import LearnFrom, SessionOptions, Settings, Weights

Per = Literal["speaker", "file", "utterance"]

_READABLE = 40
_NOT_OF_AN_ID = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """The sessions of one run.

    per:       "speaker": the utterance's session_id where it has one, for a conversation is narrower than who speaks,
               and its speaker where it has none; "file": all utterances; "utterance": each alone
    options:   of the sessions; what is left out is the default of the service or engine
    rescoring: weights that override the bundle's
    keep:      whether the sessions stay on the server when all is done
    """

    per: Per
    options: SessionOptions
    rescoring: Weights = field(default_factory=Weights)
    keep: bool = False

    def label(self, line: NBestLine, name: str) -> str:
        """What tells an utterance's session from the others of the run. Raises InputFileError naming the line."""
        utterance = line.utterance
        if self.per == "file":
            return "file"
        if self.per == "utterance":
            return f"utterance:{utterance['id']}"
        if session := utterance.get("session_id"):
            return f"session:{session}"
        if speaker := utterance.get("speaker"):
            return f"speaker:{speaker}"
        raise InputFileError(
            f"{name}:{line.line}: speaker: missing; --session-per speaker needs a speaker or a session_id in every "
            "line; with --session-per file the whole file is one session"
        )

    def read(self, lines: JsonLines) -> Iterator[NBestLine]:
        """The utterances of a file, each of which is known to have a session."""
        for line in read_nbest(lines):
            self.label(line, lines.name)
            yield line

    @property
    def learns(self) -> bool:
        """Whether networks learn in the sessions, and whether that helped can be said of more than one utterance."""
        return self.options.get("weights") == "dynamic" and self.per != "utterance"

    def confirmed(self, line: NBestLine) -> str | None:
        """The text to confirm once an utterance is rescored: its reference, where confirmed texts are learnt from."""
        return line.utterance.get("reference") if self.options.get("learn_from") == "confirmed" else None

    def made_with(self, description: Mapping[str, Any]) -> dict[str, Any]:
        """What every result says of its making. description: of a session: "bundle", "options" and "rescoring"."""
        options = dict(description["options"])
        state = options.pop("state", None)
        return {
            "bundle": description["bundle"],
            "weights": description["rescoring"],
            "state": state,
            "sessions": {"per": self.per, **options},
        }


def session_id(run: str, label: str) -> str:
    """The id of a run's session on the server: the run, what can be read of the label, and a hash of all of it."""
    readable = _NOT_OF_AN_ID.sub("_", label.partition(":")[2])[:_READABLE]
    digest = hashlib.sha256(label.encode()).hexdigest()[:16]
    return ".".join(part for part in (run, readable, digest) if part)


def read_plan(
    settings: Settings,
    *,
    dynamic: bool,
    per: Per | None,
    learn_from: LearnFrom | None,
    rate: float | None,
    tau: int | None,
    decay: float | None,
    keep: bool,
    served: bool,
) -> SessionPlan | None:
    """The plan that the options of the command line make; None where they ask for no sessions.

    settings: of the run's requests; their weights, and state where it is given, are the sessions' too
    served:   whether a service rescores

    Raises UsageError where options do not go together.
    """
    learning = {"learn_from": learn_from, "rate": rate, "tau": tau, "decay": decay}
    given = {name: value for name, value in learning.items() if value is not None}
    if given and not dynamic:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{names}: goes with --dynamic: without it nothing is learnt")
    for name, value in given.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"--{name} {value}: must be finite")
    sessions = dynamic or per is not None
    if keep and not (served and sessions):
        raise UsageError("--keep-sessions goes with --url and with --dynamic or --session-per")
    if not sessions:
        return None
    weights: dict[str, Any] = {**settings.get("options", {})}
    options: dict[str, Any] = {"weights": "dynamic" if dynamic else "static", **given}
    if "state" in weights:
        options["state"] = weights.pop("state")
    return SessionPlan(per or "speaker", cast("SessionOptions", options), cast("Weights", weights), keep)


def gains(descriptions: Iterable[Mapping[str, Any]]) -> str | None:
    """One line on what sessions have learnt and whether that helped; None where there are none."""
    every = list(descriptions)
    if not every:
        return None
    learnt, undone = (sum(d.get(name, 0) for d in every) for name in ("words_learnt", "lessons_undone"))
    number = f"{len(every):,} session" + ("s" if len(every) > 1 else "")
    text = f"{number}, {learnt:,} words learnt, {undone:,} lessons undone"
    mixtures = [d.get("perplexity", {}).get("mixture") or {} for d in every]
    heard = [m for m in mixtures if m.get("events") and m.get("session") and m.get("static")]
    events = sum(m["events"] for m in heard)
    if not events:
        return text
    session, static = (
        math.exp(sum(m["events"] * math.log(m[which]) for m in heard) / events) for which in ("session", "static")
    )
    return f"{text}; perplexity of the accepted texts {session:.2f}, with the shared weights {static:.2f}"
