"""Rescoring: N-best lists in, the same hypotheses re-ranked under a mixture of language models out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from models.base import FloatArray, LanguageModel
from models.decision import Decision
from models.errors import (
    InvalidNBestError,
    InvalidTextError,
    ListTooLargeError,
    RescoringError,
)
from models.nbest import NBest
from models.normaliser import Normaliser
from models.pending import score_all
from models.prefix_tree import PrefixTree
from models.ranking import RescoredList, rank_list
from models.score import Weights
from models.scored_lists import PreparedList, ScoredLists
from models.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class ListLimits:
    """What one list may hold; beyond it, the list is refused with ListTooLargeError."""

    max_hypotheses: int = 2000
    max_words: int = 1000


@dataclass
class Rescorer:
    """The engine: models sharing one vocabulary and one normaliser. It holds no state between calls.

    models: name -> model, in the bundle's order
    """

    vocabulary: Vocabulary
    normaliser: Normaliser
    models: Mapping[str, LanguageModel]
    limits: ListLimits = field(default_factory=ListLimits)

    def prepare(self, nbest: NBest, decision: Decision | None = None) -> PreparedList:
        """Check a list and turn its texts into words. Raises InvalidNBestError naming the hypothesis.

        decision: what is asked about it; a ranking by total when left out
        """
        where = f"utterance {nbest.utterance_id!r}"
        if len(nbest.hypotheses) > self.limits.max_hypotheses:
            raise ListTooLargeError(
                f"{where}: {len(nbest.hypotheses)} hypotheses; at most {self.limits.max_hypotheses} are taken"
            )
        words = []
        for index, hypothesis in enumerate(nbest.hypotheses):
            spot = f"{where}, hypothesis {index}"
            try:
                words.append(self.normaliser.words(hypothesis.text))
            except InvalidTextError as error:
                raise InvalidNBestError(f"{spot}: {error}") from error
            if len(words[-1]) > self.limits.max_words:
                raise ListTooLargeError(f"{spot}: {len(words[-1])} words; at most {self.limits.max_words} are taken")
        reference = None
        if nbest.reference is not None:
            try:
                reference = self.normaliser.words(nbest.reference)
            except InvalidTextError as error:
                raise InvalidNBestError(f"{where}, reference: {error}") from error
        ids = tuple(map(self.vocabulary.ids, words))
        return PreparedList(nbest, tuple(words), ids, reference, decision or Decision())

    def score(
        self,
        lists: Sequence[PreparedList],
        models: Sequence[str] | None = None,
        start: Sequence[Mapping[str, FloatArray]] | None = None,
    ) -> ScoredLists:
        """Score every hypothesis of every list under each model, all lists together.

        models: the names of the models to run; all when left out
        start:  per list, model name -> (H,) the hidden state it starts from; every list from the initial state
                when left out

        Raises ModelFailedError when a model fails.
        """
        names = list(self.models if models is None else models)
        sentences = [ids for prepared in lists for ids in prepared.ids]
        roots = None
        if start is not None:
            roots = [number for number, prepared in enumerate(lists) for _ in prepared.ids]
        tree = PrefixTree.build(sentences, roots)
        begins: dict[str, FloatArray | None] = dict.fromkeys(names)
        if start is not None:
            known = (name for name in names if all(name in state for state in start))
            begins |= {name: np.stack([state[name] for state in start]) for name in known}
        scores = score_all({name: self.models[name] for name in names}, tree, begins)
        by_model = {name: log_probs for name, (log_probs, _) in scores.items()}
        states = {name: after for name, (_, after) in scores.items() if after is not None}
        return ScoredLists(tuple(lists), tree, by_model, states)

    def rescore(
        self,
        lists: Sequence[PreparedList],
        weights: Sequence[Weights],
        *,
        word_scores: bool = False,
    ) -> list[RescoredList | RescoringError]:
        """Rescore a batch of lists, each with its own weights and each from the initial hidden state.

        A list whose result is no finite number fails alone: its entry is then the error. Models that no list gives
        weight are run only for `word_scores`. Raises ModelFailedError when a model fails.
        """
        scored = self.score(lists, self._needed(weights, word_scores=word_scores))
        out: list[RescoredList | RescoringError] = []
        for (prepared, first), weight in zip(scored.each(), weights, strict=True):
            try:
                weight.check_models(list(self.models))
                out.append(rank_list(scored, prepared, first, weight, word_scores=word_scores))
            except RescoringError as error:
                out.append(error)
        return out

    def rescore_carried(
        self,
        lists: Sequence[PreparedList],
        weights: Weights,
        *,
        word_scores: bool = False,
    ) -> list[RescoredList | RescoringError]:
        """Rescore lists in order, the hidden state of each winner carried into the session's next list.

        Every hypothesis of a list starts from the same state. Weights stay frozen: carrying state is not learning.
        Lists without a session_id form one session of their own.
        """
        weights.check_models(list(self.models))
        names = self._needed([weights], word_scores=word_scores)
        carried: dict[str | None, Mapping[str, FloatArray]] = {}
        out: list[RescoredList | RescoringError] = []
        for prepared in lists:
            session = prepared.nbest.session_id
            scored = self.score([prepared], names, [carried[session]] if session in carried else None)
            try:
                result = rank_list(scored, prepared, 0, weights, word_scores=word_scores)
            except RescoringError as error:
                out.append(error)
                continue
            last = int(scored.tree.last_nodes()[result.best.index])
            carried[session] = {name: states[last] for name, states in scored.states.items()}
            out.append(result)
        return out

    def _needed(self, weights: Sequence[Weights], *, word_scores: bool) -> list[str]:
        if word_scores:
            return list(self.models)
        return [name for name in self.models if any(w.interpolation.get(name, 0) > 0 for w in weights)]
