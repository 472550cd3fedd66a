"""The kinds of sessions that a bundle serves: sessions of equal options and weights score and learn alike."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import orjson

from models.bundle import Bundle, weights_from_json, weights_to_json
from models.errors import InvalidOptionError, SessionError
from models.session import SessionModel
from models.session_wire import session_options_from_json, session_options_to_json
from service.engine import Engine
from service.errors import FieldError, RefusedListError
from service.session_schemas import CreateRequest

# A kind takes little room and is made anew in no time; clients must not be able to make any number of them last.
_KEPT = 1000


class SessionKinds:
    """Makes and keeps the SessionModels, one a kind, so that sessions of a kind are scored in one batch.

    `model` may be called from any thread.
    """

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        self._bundle = bundle
        self._engine = engine
        self._models: OrderedDict[bytes, SessionModel] = OrderedDict()
        self._lock = threading.Lock()

    def settle(self, request: CreateRequest) -> dict[str, Any]:
        """The options of a session to be made, in full, as its record keeps them.

        Raises RefusedListError naming the field at fault.
        """
        weights = self._engine.weights(dict(request.get("rescoring", {})), "rescoring")
        try:
            options = session_options_from_json(request.get("options", {}), self._bundle.learning)
        except InvalidOptionError as error:
            name, _, _ = str(error).partition(" ")
            raise RefusedListError(error, [FieldError(f"options.{name}", str(error))]) from error
        settled = {"options": session_options_to_json(options), "rescoring": weights_to_json(weights)}
        try:
            self.model(settled)
        except SessionError as error:
            raise RefusedListError(error, [FieldError("rescoring.interpolation", str(error))]) from error
        return settled

    def model(self, settled: Mapping[str, Any]) -> SessionModel:
        """How sessions of these options, as `settle` gave them, score and learn; the same one each time."""
        key = orjson.dumps(dict(settled), option=orjson.OPT_SORT_KEYS)
        with self._lock:
            model = self._models.pop(key, None)
            if model is None:
                options = session_options_from_json(settled["options"])
                model = SessionModel(self._bundle.rescorer, weights_from_json(settled["rescoring"]), options)
            self._models[key] = model
            if len(self._models) > _KEPT:
                self._models.popitem(last=False)
        return model
