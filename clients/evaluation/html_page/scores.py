"""The scores in result files, read a second time for the plots that need them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import EvaluationError, InputFileError
from ...files import ResultLine, result_line
from ...jsonl import JsonLines
from ..bootstrap import FloatArray
from ..list_errors import ListErrors
from ..normalisation import Normalisation, Normaliser
from .notes import Notes
from .perplexity import Perplexity, PerplexityTally
from .sweep import Sweep, SweepTally

# Beyond this, sums and products of scores and scales could overflow; no score is near it.
_LARGEST = 1e100


@dataclass(frozen=True, slots=True)
class Scores:
    """What the scores come to. left_out: in sentences, what could not be computed of which system, and why."""

    sweeps: tuple[Sweep, ...] = ()
    perplexities: tuple[Perplexity, ...] = ()
    left_out: tuple[str, ...] = ()


def read_scores(files: Mapping[str, str], notes: Notes, normalisation: Normalisation, *, own_texts: bool) -> Scores:
    """Read the result files again, line by line.

    files:     system -> path
    own_texts: whether the texts evaluated were those of the results; else nothing can be computed

    Raises InputFileError, naming file, line and field, for scores that are no finite numbers, and EvaluationError for
    a file that has changed since.
    """
    sweeps, perplexities, left_out = [], [], []
    for system, path in files.items():
        if not own_texts or path == "-":
            why = "its texts came from another file" if path != "-" else "standard input is read only once"
            left_out.append(f"Of {system} no scores are shown: {why}.")
            continue
        read = _File(system, path, notes, normalisation)
        sweep, perplexity = read.study()
        sweeps += [sweep] if sweep else []
        perplexities += [perplexity] if perplexity else []
        left_out += read.left_out
    return Scores(tuple(sweeps), tuple(perplexities), tuple(left_out))


class _File:
    """One result file. left_out: what could not be computed, and why."""

    def __init__(self, system: str, path: str, notes: Notes, normalisation: Normalisation) -> None:
        self._system, self._path, self._notes = system, path, notes
        self._normaliser = Normaliser(normalisation)
        self._errors = notes.errors(system)
        self.left_out: list[str] = []

    def study(self) -> tuple[Sweep | None, Perplexity | None]:
        sweep: SweepTally | None = None
        begun = False
        perplexity = PerplexityTally(self._system)
        with JsonLines(self._path) as lines:
            for number, document in lines:
                where = f"{self._path}:{number}"
                line = result_line(document, number, where)
                if not begun:
                    sweep, begun = self._sweep(line), True
                lm = _numbers(document["ranking"], "lm", line.order, where)
                total = _numbers(document["ranking"], "total", line.order, where)
                if lm is None or total is None or line.texts is None:
                    self.left_out = [f"Of {self._system} no scores are shown: {where} has none of its language model."]
                    return None, None
                if line.reference is not None:
                    self._add(line, total, lm, sweep, perplexity)
        return sweep.result() if sweep else None, perplexity.result()

    def _sweep(self, line: ResultLine) -> SweepTally | None:
        """Where the first line says that other weights can be tried; else it is said why not."""
        made = line.made_with
        own = (made.get("weights") or {}).get("lm_scale")
        if made.get("sessions") or made.get("state") == "carried":
            why = "its language model depends on which transcripts were accepted before"
        elif made.get("decision") not in {None, "total"}:
            why = f"its lists were decided on by {made['decision']}, not by the total alone"
        elif isinstance(own, int | float) and math.isfinite(own):
            return SweepTally(self._system, float(own))
        else:
            why = "its file does not say with which lm_scale it was made"
        self.left_out.append(f"Of {self._system} no WER by lm_scale is shown: {why}.")
        return None

    def _add(
        self,
        line: ResultLine,
        total: FloatArray,
        lm: FloatArray,
        sweep: SweepTally | None,
        perplexity: PerplexityTally,
    ) -> None:
        row = self._notes.rows.get(line.utterance_id)
        if row is None:
            raise EvaluationError(f"{self._path}: changed while it was evaluated: {line.utterance_id!r} is new")
        assert line.texts is not None
        texts = [_words(text) for text in line.texts]
        lists = ListErrors(
            self._normaliser.words(_words(line.reference or "")), [self._normaliser.words(words) for words in texts]
        )
        words, nearest = self._notes.words[row], lists.oracle
        perplexity.add(float(lm[nearest]), len(texts[nearest]) + 1, self._errors[row], words)
        if sweep is not None:
            sweep.add(total, lm, lists.errors, words)


def _numbers(ranking: Sequence[Mapping[str, Any]], name: str, order: Sequence[int], where: str) -> FloatArray | None:
    """(N,) a score of each hypothesis, in input order; None where one lacks it."""
    out = np.empty(len(order))
    for rank, (entry, index) in enumerate(zip(ranking, order, strict=True)):
        value = entry.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
            raise InputFileError(f"{where}: ranking[{rank}].{name}: must be a finite number")
        out[index] = value
    return out


def _words(text: str) -> list[str]:
    return [word for word in text.split(" ") if word]
