"""The engine in this process, behind the same JSON as the service: what `nbest rescore --bundle` runs on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.bundle import Bundle, load_bundle, set_threads, weights_from_json, weights_to_json
from models.errors import RescoringError
from models.wire import LOG_UNITS, nbest_from_json, result_to_json


class LocalEngine:
    """A bundle loaded into this process.

    bundle: the bundle's folder
    device: "auto", "cpu" or "cuda"
    threads: threads for matrix products; 0 leaves torch's own choice
    """

    def __init__(self, bundle: str, *, device: str = "auto", threads: int = 0) -> None:
        set_threads(threads)
        self._bundle: Bundle = load_bundle(Path(bundle), device=device)

    def models(self) -> dict[str, Any]:
        """What GET /v1/models answers."""
        return self._bundle.describe()

    def rescore(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What POST /v1/rescore answers to the same request, whose fields must be of their types.

        Raises RescoringError; the first bad list of a request fails the request.
        """
        return rescore_request(self._bundle, request)


def rescore_request(bundle: Bundle, request: Mapping[str, Any]) -> dict[str, Any]:
    """Rescore the utterances of one request with the request's own weights."""
    options = dict(request.get("options") or {})
    state = options.pop("state", "reset")
    weights = weights_from_json(options, bundle.weights)
    rescorer = bundle.rescorer
    weights.check_models(list(rescorer.models))
    unit = LOG_UNITS[request.get("log_base", "e")]
    lists = [rescorer.prepare(nbest_from_json(entry, log_unit=unit)) for entry in request["utterances"]]
    word_scores = bool(request.get("word_scores", False))
    if state == "carried":
        results = rescorer.rescore_carried(lists, weights, word_scores=word_scores)
    else:
        results = rescorer.rescore(lists, [weights] * len(lists), word_scores=word_scores)
    answers = []
    for result in results:
        if isinstance(result, RescoringError):
            raise result
        answers.append(result_to_json(result, compact=bool(request.get("compact", False))))
    return {
        "bundle": bundle.sha256,
        "weights": weights_to_json(weights),
        "state": state,
        "results": answers,
    }
