"""What the page needs of every utterance and the result does not keep; taken on the way, in the one pass."""

import hashlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from ..alignment import Alignment, align
from ..evaluator import FIRST_PASS, ORACLE, Choices
from ..list_errors import ListErrors
from ..normalisation import Normaliser
from ..utterance import Utterance
from .extremes import Example, Foremost

_SHOWN = 10
_KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class Shown:
    """Utterances of one system.

    helped, hurt: where rescoring removed, added the most errors, at most ten of each
    sample:       ten of all, drawn by a hash of their ids, so that it is the same ten for every system
    """

    helped: tuple[Example, ...]
    hurt: tuple[Example, ...]
    sample: tuple[Example, ...]


class _Kept:
    """What is kept of one system's utterances. errors: (n,) by row, -1 where it has not come."""

    def __init__(self, rows: int) -> None:
        self.errors = array("i", [-1]) * rows
        self.helped, self.hurt, self.sample = Foremost(_SHOWN), Foremost(_SHOWN), Foremost(_SHOWN)


class Notes:
    """An `AlignmentSink`: word errors of each utterance in the order in which they came, and some examples.

    rows:  utterance id -> its row
    words: (n,) words of the references
    Memory: its id, a few numbers an utterance and system, and some thirty alignments a system.
    """

    def __init__(self, choices: Choices) -> None:
        self.rows: dict[str, int] = {}
        self.words = array("i")
        self._seed = choices.seed
        self._normaliser = Normaliser(choices.normalisation)
        self._kept: dict[str, _Kept] = {}

    def take(self, system: str, utterance: Utterance, alignment: Alignment) -> None:
        """Note one alignment. Of each utterance the first pass comes first."""
        row = self.rows.setdefault(utterance.utterance_id, len(self.rows))
        if row == len(self.words):
            self.words.append(len(alignment.reference))
        kept = self._kept.setdefault(system, _Kept(row))
        kept.errors.extend([-1] * (row + 1 - len(kept.errors)))
        errors = kept.errors[row] = alignment.counts.errors
        if system == ORACLE:
            return
        fewer = errors - self._kept[FIRST_PASS].errors[row]
        wanted = [(kept.sample, self._draw(utterance.utterance_id))]
        wanted += [(kept.helped, fewer)] if fewer < 0 else [(kept.hurt, -fewer)] if fewer > 0 else []
        wanted = [(where, key) for where, key in wanted if where.wants(key)]
        if wanted:
            alignments = self._alignments(system, utterance, alignment)
            example = Example(utterance.utterance_id, utterance.speaker, fewer, alignments)
            for where, key in wanted:
                where.add(key, example)

    def errors(self, system: str) -> "array[int]":
        """(n,) the word errors of a system, by row."""
        return self._kept[system].errors

    def shown(self, system: str) -> Shown:
        """The examples of a system."""
        kept = self._kept[system]
        return Shown(kept.helped.in_order(), kept.hurt.in_order(), kept.sample.in_order())

    def _alignments(self, system: str, utterance: Utterance, alignment: Alignment) -> Mapping[str, Alignment]:
        """Those of first pass, system and oracle; the outer two are made anew, for they may have come long before."""
        reference = alignment.reference
        hypotheses = [self._normaliser.words(words) for words in utterance.hypotheses]
        best = hypotheses[ListErrors(reference, hypotheses).oracle]
        first = align(list(reference), list(hypotheses[0]))
        return {FIRST_PASS: first, system: alignment, ORACLE: align(list(reference), list(best))}

    def _draw(self, utterance_id: str) -> int:
        text = f"{self._seed} {utterance_id}".encode(errors="surrogatepass")
        return int.from_bytes(hashlib.blake2b(text, digest_size=_KEY_BYTES).digest())
