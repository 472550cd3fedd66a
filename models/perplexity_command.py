"""What `nbest perplexity` computes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.bundle import load_bundle
from models.corpus import sentences
from models.errors import TuningError
from models.perplexity import perplexity, text_events, text_log_probs
from models.score import interpolate


def report_perplexity(folder: Path, text: Sequence[Path], *, carry_state: bool, device: str) -> list[dict[str, Any]]:
    """One row a model, then one for the mixture under the bundle's interpolation weights.

    Normalisers are computed, even those that rescoring leaves out: a perplexity is one of a distribution.
    """
    bundle = load_bundle(folder, device=device, exact_normaliser=True)
    rescorer = bundle.rescorer
    ids = [rescorer.vocabulary.ids(words) for words in sentences(text, rescorer.normaliser)]
    if not ids:
        raise TuningError(f"{text[0]}: the text is empty")
    events = text_events(ids)
    by_model = {
        name: np.concatenate(text_log_probs(model, ids, carry_state=carry_state))
        for name, model in rescorer.models.items()
    }
    lambdas = np.array([bundle.weights.interpolation.get(name, 0.0) for name in by_model])
    rows = dict(by_model)
    if len(by_model) > 1:
        shares = ", ".join(f"{name} {value:.3f}" for name, value in zip(by_model, lambdas, strict=True))
        rows[f"mixture ({shares})"] = interpolate(np.stack(list(by_model.values())), lambdas)
    out = []
    for name, log_probs in rows.items():
        found = perplexity(log_probs, events)
        out.append(
            {
                "model": name,
                "perplexity": found.with_oov,
                "perplexity_without_oov": found.without_oov,
                "events": found.events,
                "oov": found.oov,
            }
        )
    return out
