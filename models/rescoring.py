"""Rescoring: N-best lists in, the same hypotheses re-ranked under a mixture of language models out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from models.base import FloatArray, LanguageModel
from models.errors import (
    InvalidNBestError,
    InvalidTextError,
    ListTooLargeError,
    ModelFailedError,
    RescoringError,
)
from models.nbest import NBest
from models.normaliser import Normaliser
from models.prefix_tree import PrefixTree
from models.score import Features, Weights, interpolate, posteriors, rank, totals
from models.vocabulary import EOS, UNK_ID, Vocabulary


@dataclass(frozen=True, slots=True)
class ListLimits:
    """What one list may hold; beyond it, the list is refused with ListTooLargeError."""

    max_hypotheses: int = 2000
    max_words: int = 1000


@dataclass(frozen=True, slots=True)
class WordScores:
    """Per-word values of one hypothesis, each of length T + 1, the last for </s>.

    words:    the words scored, </s> included
    mixture:  ln P(w_t | h_t) of the mixture; their sum is the hypothesis's lm
    by_model: the same of each model alone
    """

    words: tuple[str, ...]
    mixture: tuple[float, ...]
    by_model: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class RescoredHypothesis:
    """One hypothesis after rescoring; every score is a natural log.

    index:         its place in the input list, from 0
    text:          as it came
    words:         as it was scored: the normaliser's words
    oov:           how many of them are outside the vocabulary
    total:         what the ranking is by
    posterior:     its share of the list, in [0, 1]
    acoustic, first_pass, lm: the unscaled parts; first_pass is None where the recogniser gave none
    contributions: the scaled parts by name; they sum to `total`
    lm_by_model:   ln p(words) of each model that has weight, alone; of every model with word_scores
    word_scores:   per-word values, when asked for
    """

    index: int
    text: str
    words: tuple[str, ...]
    oov: int
    total: float
    posterior: float
    acoustic: float
    first_pass: float | None
    lm: float
    contributions: Mapping[str, float]
    lm_by_model: Mapping[str, float]
    word_scores: WordScores | None = None


@dataclass(frozen=True, slots=True)
class RescoredList:
    """The list of one utterance, best first: N hypotheses in, N out."""

    nbest: NBest
    ranking: tuple[RescoredHypothesis, ...]
    reference_words: tuple[str, ...] | None = None

    @property
    def best(self) -> RescoredHypothesis:
        """The hypothesis with the highest total."""
        return self.ranking[0]


@dataclass(frozen=True, slots=True)
class PreparedList:
    """A list checked and turned into words and ids; what it costs to score is known before it is scored.

    ids: per hypothesis, the ids of its words
    """

    nbest: NBest
    words: tuple[tuple[str, ...], ...]
    ids: tuple[list[int], ...]
    reference_words: tuple[str, ...] | None = None

    @property
    def tokens(self) -> int:
        """The number of words and sentence ends to score: the cost of the list, before prefixes are shared."""
        return sum(map(len, self.ids)) + len(self.ids)


@dataclass(frozen=True, slots=True)
class ScoredLists:
    """Language model scores of prepared lists, before any weight is applied.

    lists:     the lists
    by_model:  model name -> (events,) ln P(word | history)
    tree:      the prefix tree whose events these are; its sentences are the hypotheses of all lists, in order
    states:    model name -> (nodes, H) hidden states
    """

    lists: tuple[PreparedList, ...]
    tree: PrefixTree
    by_model: Mapping[str, FloatArray]
    states: Mapping[str, FloatArray]


@dataclass
class Rescorer:
    """The engine: models sharing one vocabulary and one normaliser. It holds no state between calls.

    models: name -> model, in the bundle's order
    """

    vocabulary: Vocabulary
    normaliser: Normaliser
    models: Mapping[str, LanguageModel]
    limits: ListLimits = field(default_factory=ListLimits)

    def prepare(self, nbest: NBest) -> PreparedList:
        """Check a list and turn its texts into words. Raises InvalidNBestError naming the hypothesis."""
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
        return PreparedList(nbest, tuple(words), tuple(map(self.vocabulary.ids, words)), reference)

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
        by_model, states = {}, {}
        for name in names:
            begin = None
            if start is not None and all(name in state for state in start):
                begin = np.stack([state[name] for state in start])
            try:
                by_model[name], after = self.models[name].score(tree, begin)
            except RescoringError:
                raise
            except Exception as error:
                raise ModelFailedError(f"model {name!r} failed: {type(error).__name__}") from error
            if after is not None:
                states[name] = after
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
        first = 0
        for prepared, weight in zip(lists, weights, strict=True):
            try:
                weight.check_models(list(self.models))
                out.append(_rank_list(scored, prepared, first, weight, word_scores=word_scores)[0])
            except RescoringError as error:
                out.append(error)
            first += len(prepared.ids)
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
                result, _ = _rank_list(scored, prepared, 0, weights, word_scores=word_scores)
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


def list_features(
    scored: ScoredLists, prepared: PreparedList, first: int, interpolation: Mapping[str, float]
) -> tuple[Features, list[FloatArray]]:
    """What a list's hypotheses bring to the total, and each one's (T + 1,) per-word values of the mixture.

    first: the number of the list's first hypothesis among the sentences of the tree
    """
    events = scored.tree.sentences[first : first + len(prepared.ids)]
    names = [name for name, value in interpolation.items() if value > 0]
    lambdas = np.array([interpolation[name] for name in names])
    used = np.unique(np.concatenate(events))
    mixed = np.empty(scored.tree.events)
    mixed[used] = interpolate(np.stack([scored.by_model[name][used] for name in names]), lambdas)
    per_word = [mixed[row] for row in events]
    hypotheses = prepared.nbest.hypotheses
    features = Features(
        acoustic=np.array([h.acoustic for h in hypotheses]),
        first_pass=np.array([h.first_pass or 0.0 for h in hypotheses]),
        lm=np.array([row.sum() for row in per_word]),
        words=np.array([float(len(ids)) for ids in prepared.ids]),
        oov=np.array([float(sum(i == UNK_ID for i in ids)) for ids in prepared.ids]),
    )
    return features, per_word


def _rank_list(
    scored: ScoredLists, prepared: PreparedList, first: int, weights: Weights, *, word_scores: bool
) -> tuple[RescoredList, Features]:
    nbest = prepared.nbest
    features, per_word = list_features(scored, prepared, first, weights.interpolation)
    with np.errstate(over="ignore", invalid="ignore"):
        total = totals(features, weights)
        finite = np.isfinite(total) & np.isfinite(weights.posterior_scale * total)
    if not finite.all():
        raise InvalidNBestError(
            f"utterance {nbest.utterance_id!r}, hypothesis {int(np.argmin(finite))}: "
            "the total is too large to be a number; look at the scores and scales"
        )
    posterior = posteriors(total, weights.posterior_scale, prepared.words)
    contributions = features.contributions(weights)
    # What other lists of the batch needed is none of this list's business.
    names = [name for name in scored.by_model if word_scores or weights.interpolation.get(name, 0) > 0]
    shown = {name: scored.by_model[name] for name in names}
    ranking = []
    for index in rank(total):
        hypothesis = nbest.hypotheses[index]
        events = scored.tree.sentences[first + index]
        detail = None
        if word_scores:
            detail = WordScores(
                words=(*prepared.words[index], EOS),
                mixture=tuple(per_word[index].tolist()),
                by_model={name: tuple(values[events].tolist()) for name, values in shown.items()},
            )
        ranking.append(
            RescoredHypothesis(
                index=index,
                text=hypothesis.text,
                words=prepared.words[index],
                oov=int(features.oov[index]),
                total=float(total[index]),
                posterior=float(posterior[index]),
                acoustic=hypothesis.acoustic,
                first_pass=hypothesis.first_pass,
                lm=float(features.lm[index]),
                contributions={name: float(values[index]) for name, values in contributions.items()},
                lm_by_model={name: float(values[events].sum()) for name, values in shown.items()},
                word_scores=detail,
            )
        )
    return RescoredList(nbest, tuple(ranking), prepared.reference_words), features
