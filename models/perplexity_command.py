"""What `nbest perplexity` computes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models.base import FloatArray
from models.bundle import load_bundle
from models.corpus import Line, lines_of
from models.errors import TuningError
from models.perplexity import Perplexity, perplexity, text_events, text_log_probs
from models.score import interpolate
from models.vocabulary import UNK_ID


@dataclass(frozen=True, slots=True)
class TextPerplexities:
    """A text under every model of a bundle, and under their mixture.

    lines:        the sentences
    unknown:      per sentence, how many of its words are outside the vocabulary
    log_probs:    by model, per sentence, (T + 1,) ln P of each word and of </s>
    perplexities: by model
    """

    lines: tuple[Line, ...]
    unknown: tuple[int, ...]
    log_probs: Mapping[str, tuple[FloatArray, ...]]
    perplexities: Mapping[str, Perplexity]

    def rows(self) -> list[dict[str, Any]]:
        """A row a model, as JSON."""
        return [
            {
                "model": name,
                "perplexity": found.with_oov,
                "perplexity_without_oov": found.without_oov,
                "log_likelihood": found.log_likelihood,
                "sentences": len(self.lines),
                "events": found.events,
                "oov": found.oov,
            }
            for name, found in self.perplexities.items()
        ]

    def write_sentences(self, path: Path) -> None:
        """Write a line of JSON a sentence: where it stands, its words and, by model, ln P and perplexity, </s> counted.

        Raises TuningError when the file cannot be written.
        """
        try:
            with path.open("w", encoding="utf-8") as out:
                for index, (line, unknown) in enumerate(zip(self.lines, self.unknown, strict=True)):
                    own = {name: rows[index] for name, rows in self.log_probs.items()}
                    document = {
                        "file": str(line.path),
                        "line": line.number,
                        "text": " ".join(line.words),
                        "words": len(line.words),
                        "oov": unknown,
                        "log_prob": {name: float(values.sum()) for name, values in own.items()},
                        "perplexity": {name: float(np.exp(-values.mean())) for name, values in own.items()},
                    }
                    out.write(json.dumps(document, ensure_ascii=False) + "\n")
        except OSError as error:
            raise TuningError(f"{path}: cannot be written: {error.strerror}") from error


def text_perplexities(folder: Path, text: Sequence[Path], *, carry_state: bool, device: str) -> TextPerplexities:
    """Score a text under each model, then under the mixture with the bundle's interpolation weights.

    Normalisers are computed, even those that rescoring leaves out: a perplexity is one of a distribution.
    """
    bundle = load_bundle(folder, device=device, exact_normaliser=True)
    rescorer = bundle.rescorer
    lines = tuple(lines_of(text, rescorer.normaliser))
    if not lines:
        raise TuningError(f"{text[0]}: the text is empty")
    ids = [rescorer.vocabulary.ids(line.words) for line in lines]
    by_model = {
        name: tuple(text_log_probs(model, ids, carry_state=carry_state)) for name, model in rescorer.models.items()
    }
    if len(by_model) > 1:
        lambdas = np.array([bundle.weights.interpolation.get(name, 0.0) for name in by_model])
        shares = ", ".join(f"{name} {value:.3f}" for name, value in zip(by_model, lambdas, strict=True))
        columns = zip(*by_model.values(), strict=True)
        by_model[f"mixture ({shares})"] = tuple(interpolate(np.stack(models), lambdas) for models in columns)
    events = text_events(ids)
    return TextPerplexities(
        lines=lines,
        unknown=tuple(sentence.count(UNK_ID) for sentence in ids),
        log_probs=by_model,
        perplexities={name: perplexity(np.concatenate(rows), events) for name, rows in by_model.items()},
    )
