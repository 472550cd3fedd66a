"""A Kneser-Ney n-gram model, queried through KenLM. The only log10 of the project is turned into ln here."""

import math
import re
from pathlib import Path
from typing import Any

import kenlm
import numpy as np

from models.base import FloatArray
from models.errors import BundleError, ModelFailedError
from models.prefix_tree import PrefixTree
from models.vocabulary import EOS, EOS_ID, UNK, UNK_ID, Vocabulary

LN_10 = math.log(10.0)

# What stands in lmplz's input for a literal <unk> of the training text, which lmplz refuses. The angle brackets
# keep it apart from every word: the normaliser reads it as <unk>.
UNK_IN_TEXT = "<oov>"


class KenLMNgram:
    """A KenLM model over the shared vocabulary.

    P(<unk> | h) is KenLM's own for an unknown word plus, where the training text held literal <unk> tokens, that of
    their stand-in: so the events of V + {<unk>, </s>} sum to 1. The state after <unk> is the stand-in's, if any.
    An n-gram knows nothing across the sentence boundary: every utterance starts from <s>.

    Raises BundleError, naming the file, when KenLM cannot load it.
    """

    kind = "kenlm"

    def __init__(self, path: Path, vocabulary: Vocabulary) -> None:
        try:
            self._model = kenlm.Model(str(path))
        except UnicodeDecodeError as error:
            raise BundleError(f"{path}: KenLM cannot load this file, and what it quotes of it is no text") from error
        except (OSError, RuntimeError) as error:
            raise BundleError(f"{path}: KenLM cannot load this file: {_reason(error)}") from error
        self.path = path
        self._has_stand_in = UNK_IN_TEXT in self._model
        unk = UNK_IN_TEXT if self._has_stand_in else UNK
        self._words = [unk, EOS, *vocabulary.words]
        missing = next((word for word in vocabulary.words if word not in self._model), None)
        if missing is not None:
            raise BundleError(f"{path}: the n-gram model does not know the vocabulary's word {missing!r}")

    def score(self, tree: PrefixTree, start: FloatArray | None = None) -> tuple[FloatArray, None]:
        """Score every event; see LanguageModel. `start` is ignored: a history ends at the sentence boundary."""
        del start
        base_score = self._model.BaseScore
        scratch = kenlm.State()
        # KenLM must never read and write the same state object: it then returns wrong scores without a word.
        states = [kenlm.State() for _ in range(tree.nodes)]
        for root in range(tree.roots):
            self._model.BeginSentenceWrite(states[root])
        # Events stand in the order of the nodes they lead to. One after another, a node's state is written before it
        # is read; no line of Python runs in between.
        written = np.full(tree.events, scratch)
        written[tree.event_words != EOS_ID] = states[tree.roots :]
        read = map(states.__getitem__, tree.histories.tolist())
        words = map(self._words.__getitem__, tree.event_words.tolist())
        log10 = np.fromiter(map(base_score, read, words, written.tolist()), np.float64, tree.events)
        if self._has_stand_in:
            for event in np.flatnonzero(tree.event_words == UNK_ID).tolist():
                unknown = base_score(states[int(tree.histories[event])], UNK, scratch)
                log10[event] = np.logaddexp(log10[event] * LN_10, unknown * LN_10) / LN_10
        log_probs = log10 * LN_10
        if not np.all(log_probs <= 0):
            raise ModelFailedError(f"{self.path.name}: the n-gram model gave a number that is no log probability")
        return log_probs, None

    def describe(self) -> dict[str, Any]:
        """Kind and order."""
        return {"kind": self.kind, "order": int(self._model.order)}


def _reason(error: Exception) -> str:
    """What KenLM says is wrong, in one line and without the C++ it says it with."""
    said = " ".join(str(error).split())
    inner = said.partition(" (")[2].removesuffix(")") or said
    return re.sub(r"^\S+:\d+ in .* threw \w+(?: because `.*')?\. *", "", inner)
