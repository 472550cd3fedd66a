"""The engine in this process, behind the same JSON as the service: what `nbest rescore --bundle` runs on."""

import itertools
import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from models.bundle import Bundle, load_bundle, set_threads, weights_from_json, weights_to_json
from models.decision import Decision
from models.errors import RescoringError
from models.output_layer import Precision
from models.ranking import RescoredList
from models.session import SessionModel, SessionState
from models.session_file import dump_state, load_state
from models.session_wire import perplexities_to_json, session_options_from_json, session_options_to_json
from models.wire import LOG_UNITS, nbest_from_json, result_to_json

# States of more sessions than fit into this go to a temporary folder and come back unchanged.
_MEMORY_BYTES = 2 * 2**30


class LocalEngine:
    """A bundle loaded into this process.

    bundle: the bundle's folder
    device: "auto", "cpu" or "cuda"
    threads: threads for matrix products; 0 leaves torch's own choice
    precision: of a full softmax's normaliser: "float32" or "bfloat16"
    exact_normaliser: compute the normaliser even of networks that were trained to do without
    """

    def __init__(
        self,
        bundle: str,
        *,
        device: str = "auto",
        threads: int = 0,
        precision: Precision = "float32",
        exact_normaliser: bool = False,
    ) -> None:
        set_threads(threads)
        self._bundle: Bundle = load_bundle(
            Path(bundle), device=device, precision=precision, exact_normaliser=exact_normaliser
        )

    def models(self) -> dict[str, Any]:
        """What GET /v1/models answers."""
        return self._bundle.describe()

    def rescore(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What POST /v1/rescore answers to the same request, whose fields must be of their types.

        Raises RescoringError; the first bad list of a request fails the request.
        """
        return rescore_request(self._bundle, request)

    def sessions(self, options: Mapping[str, Any], settings: Mapping[str, Any]) -> "LocalSessions":
        """Sessions with the options of POST /v1/sessions and the settings of a request; its weights are theirs."""
        return LocalSessions(self._bundle, options, settings)


class LocalSessions:
    """Sessions of one kind, by name; to be used in a `with` block. One that was never named before is fresh.

    options:      as the options of POST /v1/sessions; what is left out is the default of SessionOptions
    settings:     as of a request to rescore, without "state" among its options
    memory_bytes: what the states of sessions may take before the least recently used are put away

    Raises RescoringError where options or weights are none.
    """

    def __init__(
        self,
        bundle: Bundle,
        options: Mapping[str, Any],
        settings: Mapping[str, Any],
        memory_bytes: int = _MEMORY_BYTES,
    ) -> None:
        weights = dict(settings.get("options") or {})
        weights.pop("state", None)
        self._bundle = bundle
        self._model = SessionModel(
            bundle.rescorer,
            weights_from_json(weights, bundle.weights),
            session_options_from_json(options, bundle.learning),
        )
        self._unit = LOG_UNITS[settings.get("log_base", "e")]
        self._word_scores, self._compact, self._best_only = (
            bool(settings.get(name)) for name in ("word_scores", "compact", "best_only")
        )
        self._memory_bytes = memory_bytes
        self._states: OrderedDict[str, SessionState] = OrderedDict()
        self._held = 0
        self._away: dict[str, Path] = {}
        self._gains: dict[str, dict[str, Any]] = {}
        self._numbers = itertools.count()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def describe(self) -> dict[str, Any]:
        """What the sessions are: "bundle", "options" and "rescoring", as of a session of the service."""
        return {
            "bundle": self._bundle.sha256,
            "options": session_options_to_json(self._model.options),
            "rescoring": weights_to_json(self._model.weights),
        }

    def rescore(self, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
        """The results of lists of different sessions, scored together from their states; no session changes.

        Raises RescoringError; the first bad list fails all.
        """
        prepare = self._model.rescorer.prepare
        lists = [prepare(nbest_from_json(utterance, log_unit=self._unit)) for _, utterance in entries]
        states = [self._state(session) for session, _ in entries]
        results = self._model.rescore(lists, states, word_scores=self._word_scores)
        return [result_to_json(_sound(result), compact=self._compact, best_only=self._best_only) for result in results]

    def accept(self, session: str, text: str, *, confirmed: bool) -> None:
        """Have a session accept a text: its winner, or a confirmed one. Raises RescoringError for what is no text."""
        rescorer = self._model.rescorer
        before = self._state(session)
        after = self._model.accept(
            before, rescorer.vocabulary.ids(rescorer.normaliser.words(text)), confirmed=confirmed
        )
        self._keep(session, after)
        gains = self._gains.setdefault(session, {"utterances": 0})
        gains["utterances"] += 1
        gains |= {
            "words_learnt": after.words_learnt,
            "lessons_undone": after.undone,
            "perplexity": perplexities_to_json(after),
        }

    def forget(self, session: str) -> None:
        """Let go of a session; named again, it is fresh."""
        if session in self._states:
            self._held -= self._states.pop(session).bytes
        if session in self._away:
            self._away.pop(session).unlink()
        self._gains.pop(session, None)

    def gains(self) -> list[dict[str, Any]]:
        """Of each session that has accepted something: "utterances", "words_learnt", "lessons_undone", "perplexity"."""
        return list(self._gains.values())

    def _state(self, session: str) -> SessionState:
        if session in self._away:
            return load_state(self._away[session].read_bytes(), self._model)
        return self._states.get(session) or self._model.fresh()

    def _keep(self, session: str, state: SessionState) -> None:
        """Hold a state, and put away those used longest ago while all take too much memory."""
        if session in self._away:
            self._away.pop(session).unlink()
        if session in self._states:
            self._held -= self._states.pop(session).bytes
        self._states[session] = state
        self._held += state.bytes
        while self._held > self._memory_bytes and len(self._states) > 1:
            oldest, put_away = self._states.popitem(last=False)
            self._held -= put_away.bytes
            path = self._storage() / str(next(self._numbers))
            path.write_bytes(dump_state(put_away, {}))
            self._away[oldest] = path

    def _storage(self) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="nbest-sessions-")
        return Path(self._folder.name)


def rescore_request(bundle: Bundle, request: Mapping[str, Any]) -> dict[str, Any]:
    """Rescore the utterances of one request with the request's own weights."""
    options = dict(request.get("options") or {})
    state, rule = options.pop("state", "reset"), options.pop("decision", "total")
    weights = weights_from_json(options, bundle.weights)
    rescorer = bundle.rescorer
    weights.check_models(list(rescorer.models))
    unit = LOG_UNITS[request.get("log_base", "e")]
    decision = Decision(rule, bool(request.get("word_confidences")), bundle.confidence(weights))
    lists = [rescorer.prepare(nbest_from_json(entry, log_unit=unit), decision) for entry in request["utterances"]]
    word_scores = bool(request.get("word_scores", False))
    if state == "carried":
        results = rescorer.rescore_carried(lists, weights, word_scores=word_scores)
    else:
        results = rescorer.rescore(lists, [weights] * len(lists), word_scores=word_scores)
    compact, best_only = (bool(request.get(name)) for name in ("compact", "best_only"))
    return {
        "bundle": bundle.sha256,
        "weights": weights_to_json(weights),
        "state": state,
        "decision": rule,
        "results": [result_to_json(_sound(result), compact=compact, best_only=best_only) for result in results],
    }


def _sound(result: RescoredList | RescoringError) -> RescoredList:
    if isinstance(result, RescoringError):
        raise result
    return result
