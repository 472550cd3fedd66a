"""An output layer that leaves the normaliser out: approximate, and only for networks trained for it.

    ln P(c | s) = min(V_c . s - ln Z, 0)        ln Z: a constant, where the exact ln Z(s) = ln sum_d exp(V_d . s)

Training that penalises (ln Z(s))^2 (Devlin et al., ACL 2014; Shi et al., Interspeech 2014, who penalise its variance)
makes ln Z(s) nearly the same for all states, so a word's logit alone gives its probability, nearly. What comes out is
no distribution: it does not sum to 1. Where a logit exceeds the constant, ln P would exceed 0; it is held at 0, and how
often that happened on the validation text is part of what the network says of itself.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import Tensor

from models.base import LanguageModel
from models.errors import BundleError
from models.output_layer import FullSoftmax, Precision, wanted_logits
from models.rnnlm import ElmanLM


@dataclass(frozen=True, slots=True)
class SelfNormalisation:
    """How nearly a network normalises itself, measured on the validation text's events.

    log_normaliser: mean of ln Z, the constant used in its place
    deviation:      standard deviation of ln Z, in nats: the usual error of a word's ln P
    largest:        largest distance of an ln Z from the mean
    clamped:        share of events whose ln P exceeded 0 and was held there

    Raises BundleError for values that none of them can have.
    """

    log_normaliser: float
    deviation: float
    largest: float
    clamped: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise BundleError(f"self_normalised.{name} is {value!r}; it must be a finite number")
        if self.deviation < 0 or self.largest < 0 or not 0 <= self.clamped <= 1:
            raise BundleError("self_normalised holds a negative deviation or a share that is none")

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "SelfNormalisation":
        """Read what `asdict` gives. Raises BundleError naming the field."""
        try:
            return cls(**{field.name: document[field.name] for field in fields(cls)})
        except (KeyError, TypeError) as error:
            raise BundleError(f"self_normalised is not what it must be: {error}") from error

    @classmethod
    def measured(cls, log_normalisers: Tensor, logits: Tensor) -> "SelfNormalisation":
        """From (events,) exact ln Z of each event's history and (events,) the logit of its class."""
        exact = log_normalisers.double()
        mean = exact.mean()
        return cls(
            float(mean),
            float((exact - mean).square().mean().sqrt()),
            float((exact - mean).abs().max()),
            float((logits.double() > mean).double().mean()),
        )


class SelfNormalised:
    """The layer with frozen weights; see OutputLayer.

    V:         (C, H)
    measured:  the constant, and how far from it ln Z was
    exact:     compute the normaliser after all: the layer is then the full softmax of V
    precision: of the exact normaliser; see FullSoftmax
    """

    def __init__(
        self, V: Tensor, measured: SelfNormalisation, *, exact: bool = False, precision: Precision = "float32"
    ) -> None:
        self._V, self.measured, self.exact = V, measured, exact
        self._full = FullSoftmax(V, precision if exact else "float32")

    @property
    def classes(self) -> int:
        """C."""
        return len(self._V)

    def log_probs(self, states: Tensor, histories: Tensor, classes: Tensor) -> Tensor:
        """See OutputLayer; not normalised unless exact."""
        if self.exact:
            return self._full.log_probs(states, histories, classes)
        logits = wanted_logits(states, self._V, histories, classes)
        return logits.sub_(self.measured.log_normaliser).clamp_(max=0.0)

    def describe(self) -> dict[str, Any]:
        """See OutputLayer; "normalised" says whether the scores are probabilities."""
        kind = self._full.describe() if self.exact else {"output": "logits"}
        return {**kind, "normalised": self.exact, "self_normalised": asdict(self.measured)}


def with_normaliser(model: LanguageModel) -> LanguageModel:
    """The same model; where it leaves its normaliser out, one of the same weights that computes it."""
    if isinstance(model, ElmanLM) and isinstance(model.output, SelfNormalised) and not model.output.exact:
        layer = SelfNormalised(model.weights.V, model.output.measured, exact=True)
        return ElmanLM(model.weights, model.classes, model.initial_state, model.training, layer)
    return model
