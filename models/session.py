"""A session: networks that carry their state and go on learning over the utterances of one speaker or conversation.

A session's state is a value. It is a function of the bundle, the options and the texts accepted so far, in their order:
the same texts give the same bits, so a log of them is all that has to be kept to have a session back. Scoring a list
reads a state and changes nothing; only an accepted text makes the next state.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from models.autograd_adaptation import AutogradElman
from models.base import FloatArray
from models.class_factored import ClassFactored
from models.dynamic import DynamicElman
from models.errors import InvalidOptionError, ModelFailedError, RescoringError, SessionError
from models.learning import HiddenState, LearningOptions, Start
from models.prefix_tree import PrefixTree
from models.ranking import RescoredList, rank_list
from models.rescoring import Rescorer
from models.rnnlm import ElmanLM
from models.score import Weights, interpolate
from models.scored_lists import PreparedList, ScoredLists
from models.self_normalised import with_normaliser

# Distributions of the nodes that are learnt at are kept while a batch is scored; more lists than fit are done in turns.
_BYTES_OF_DISTRIBUTIONS = 256 * 2**20
# e to this is a number; e to 710 is not.
_MOST_NATS = 700.0


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The three switches of a session, and what it learns from; the defaults are the paper's dynamic model.

    state:         "carried" over utterances, or "reset" at each
    weights:       "dynamic": every hypothesis is scored by a network that learns along it; "static": frozen
    learn_from:    "winner": the first-ranked hypothesis, replaced by a confirmed text where one is sent; "confirmed":
                   confirmed texts alone; "nothing": every list is scored from the shared weights
    learning:      rate, gradient reach and decay
    max_loss_rise: a lesson after which the network gives the very text learnt less than this many nats a word less than
                   before it is kept; one that did more harm is undone

    Raises InvalidOptionError naming the field.
    """

    state: Literal["carried", "reset"] = "carried"
    weights: Literal["dynamic", "static"] = "dynamic"
    learn_from: Literal["winner", "confirmed", "nothing"] = "winner"
    learning: LearningOptions = field(default_factory=LearningOptions)
    max_loss_rise: float = 0.5

    def __post_init__(self) -> None:
        choices = {
            "state": ("carried", "reset"),
            "weights": ("dynamic", "static"),
            "learn_from": ("winner", "confirmed", "nothing"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InvalidOptionError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}")
        if not 0 <= self.max_loss_rise < math.inf:
            raise InvalidOptionError(f"max_loss_rise is {self.max_loss_rise}; it must be finite and not negative")

    def teaches(self, *, confirmed: bool) -> bool:
        """Whether an accepted text is learnt from."""
        return self.weights == "dynamic" and (
            self.learn_from == "winner" or (self.learn_from == "confirmed" and confirmed)
        )


@dataclass(frozen=True, slots=True)
class Tally:
    """What was made of the accepted texts when they came: each word scored before anything was learnt from it.

    events:  words and sentence ends
    session: sum of ln P under the session's networks, learning along the text where its weights are dynamic
    static:  the same with the shared weights and the session's state switch
    """

    events: int = 0
    session: float = 0.0
    static: float = 0.0

    def perplexities(self) -> tuple[float, float] | None:
        """(session, static) perplexity; None before the first text, and where one is too large for a number."""
        if not self.events or max(-self.session, -self.static) > _MOST_NATS * self.events:
            return None
        return math.exp(-self.session / self.events), math.exp(-self.static / self.events)


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session at one moment. Never changed in place; two states share what they have in common.

    networks:     model name -> the weights it has learnt, and where its text stands
    static:       model name -> where the text stands for the shared weights
    tallies:      model name, and "mixture" -> what was made of the accepted texts
    words_learnt: words and sentence ends that stand in the weights
    undone:       lessons that were undone because they did harm
    """

    networks: Mapping[str, Start]
    static: Mapping[str, FloatArray]
    tallies: Mapping[str, Tally]
    words_learnt: int = 0
    undone: int = 0

    @property
    def rank(self) -> int:
        """The largest rank of a network's difference from the shared weights."""
        return max((start.delta.rank for start in self.networks.values()), default=0)

    @property
    def bytes(self) -> int:
        """Memory that the state holds."""
        return sum(start.bytes for start in self.networks.values())


@dataclass(frozen=True, slots=True)
class _Lesson:
    """What a network made of a text.

    log_probs: (T + 1,) ln P of each event when it came
    after:     what the next text starts from
    undone:    whether the text was learnt and that was undone
    """

    log_probs: FloatArray
    after: Start
    undone: bool = False


class SessionModel:
    """How sessions of one kind score and learn; it holds no session.

    Networks that can do without their normaliser are scored with it all the same: what learns computes it anyway.

    rescorer: the engine
    weights:  the mixture and scales of the sessions' rankings
    options:  see SessionOptions
    """

    def __init__(self, rescorer: Rescorer, weights: Weights, options: SessionOptions) -> None:
        weights.check_models(list(rescorer.models))
        models = {name: with_normaliser(model) for name, model in rescorer.models.items()}
        self.rescorer = replace(rescorer, models=models)
        self.weights, self.options = weights, options
        self._names = [name for name in rescorer.models if weights.interpolation.get(name, 0) > 0]
        self._networks = {name: model for name in self._names if isinstance(model := models[name], ElmanLM)}
        if options.weights == "dynamic" and not self._networks:
            raise SessionError("the mixture gives no weight to a recurrent network: there is nothing that could learn")

    def fresh(self) -> SessionState:
        """The state before any text."""
        starts = {name: Start.fresh(model) for name, model in self._networks.items()}
        static = {name: start.hidden for name, start in starts.items()}
        return SessionState(starts, static, {name: Tally() for name in (*self._names, "mixture")})

    def score(self, lists: Sequence[PreparedList], states: Sequence[SessionState]) -> ScoredLists:
        """Score lists together, each from its session's state."""
        roots = [number for number, prepared in enumerate(lists) for _ in prepared.ids]
        tree = PrefixTree.build([ids for prepared in lists for ids in prepared.ids], roots)
        by_model: dict[str, FloatArray] = {}
        for name in self._names:
            try:
                by_model[name] = self._score_model(name, tree, states)
            except RescoringError:
                raise
            except Exception as error:
                raise ModelFailedError(f"model {name!r} failed: {type(error).__name__}") from error
        return ScoredLists(tuple(lists), tree, by_model, {})

    def rescore(
        self, lists: Sequence[PreparedList], states: Sequence[SessionState], *, word_scores: bool = False
    ) -> list[RescoredList | RescoringError]:
        """Rank lists, each from its session's state; a list whose result is no finite number fails alone."""
        out: list[RescoredList | RescoringError] = []
        for rows in self._turns(lists):
            scored = self.score(lists[rows], states[rows])
            for prepared, first in scored.each():
                try:
                    out.append(rank_list(scored, prepared, first, self.weights, word_scores=word_scores))
                except RescoringError as error:
                    out.append(error)
        return out

    def accept(self, state: SessionState, words: Sequence[int], *, confirmed: bool) -> SessionState:
        """The state after a text: carried over where the session carries, learnt where it learns from such a text.

        words:     word ids without </s>
        confirmed: whether the text is a confirmed one, not a winner

        A lesson that makes a weight non-finite, or lowers what the network gives the text by more than the options
        allow, is undone: the weights stay, and `undone` counts it. The result depends on nothing else than the
        arguments, bit for bit, for one number of threads.
        """
        tree = PrefixTree.build([words])
        networks: dict[str, Start] = {}
        static: dict[str, FloatArray] = {}
        session_scores: dict[str, FloatArray] = {}
        static_scores: dict[str, FloatArray] = {}
        undone = False
        for name in self._names:
            before = None
            if name in self._networks and self.options.state == "carried":
                before = state.static[name][None]
            static_scores[name], hidden = self.rescorer.models[name].score(tree, before)
            session_scores[name] = static_scores[name]
            if hidden is not None:
                static[name] = hidden[tree.last_nodes()[0]]
            if name in self._networks:
                lesson = self._lesson(name, words, self._begin(name, state), confirmed=confirmed)
                session_scores[name], networks[name] = lesson.log_probs, lesson.after
                undone |= lesson.undone
        taught = self.options.teaches(confirmed=confirmed) and not undone
        return SessionState(
            networks,
            static,
            self._counted(state.tallies, session_scores, static_scores),
            state.words_learnt + (len(words) + 1 if taught else 0),
            state.undone + undone,
        )

    def _score_model(self, name: str, tree: PrefixTree, states: Sequence[SessionState]) -> FloatArray:
        model = self.rescorer.models[name]
        if name not in self._networks:
            return model.score(tree)[0]
        starts = [self._begin(name, state) for state in states]
        if self.options.weights == "dynamic":
            return self._learner(name).score(tree, starts)
        return model.score(tree, np.stack([start.hidden for start in starts]))[0]

    def _learner(self, name: str) -> DynamicElman | AutogradElman:
        model = self._networks[name]
        kind = AutogradElman if isinstance(model.output, ClassFactored) else DynamicElman
        return kind(model, self.options.learning)

    def _begin(self, name: str, state: SessionState) -> Start:
        start = state.networks[name]
        if self.options.state == "carried":
            return start
        return replace(start, state=HiddenState.initial(self._networks[name]))

    def _lesson(self, name: str, words: Sequence[int], begin: Start, *, confirmed: bool) -> "_Lesson":
        """What one network makes of an accepted text."""
        network = self._learner(name)
        frozen, passed = network.read(words, begin)
        if self.options.weights == "static":
            return _Lesson(frozen, passed)
        try:
            log_probs, learnt = network.learn(words, begin)
            if not self.options.teaches(confirmed=confirmed):
                return _Lesson(log_probs, passed)
            afterwards, _ = network.read(words, Start(learnt.delta, begin.state))
        except ModelFailedError:
            return _Lesson(frozen, passed, undone=True)
        harmful = afterwards.mean() < frozen.mean() - self.options.max_loss_rise
        if harmful or not learnt.delta.finite:
            return _Lesson(log_probs, passed, undone=True)
        return _Lesson(log_probs, learnt)

    def _counted(
        self, tallies: Mapping[str, Tally], session: Mapping[str, FloatArray], static: Mapping[str, FloatArray]
    ) -> dict[str, Tally]:
        lambdas = np.array([self.weights.interpolation[name] for name in self._names])
        both = [
            {**scores, "mixture": interpolate(np.stack([scores[name] for name in self._names]), lambdas)}
            for scores in (session, static)
        ]
        return {
            name: Tally(
                tally.events + len(both[0][name]),
                tally.session + float(both[0][name].sum()),
                tally.static + float(both[1][name].sum()),
            )
            for name, tally in tallies.items()
        }

    def _turns(self, lists: Sequence[PreparedList]) -> list[slice]:
        """Ranges of lists whose distributions fit into memory together; one list at least each."""
        classes = max((model.classes.count for model in self._networks.values()), default=1)
        budget = _BYTES_OF_DISTRIBUTIONS // (8 * classes)
        turns, first, nodes = [], 0, 0
        for number, prepared in enumerate(lists):
            if number > first and nodes + prepared.tokens > budget:
                turns.append(slice(first, number))
                first, nodes = number, 0
            nodes += prepared.tokens
        turns.append(slice(first, len(lists)))
        return turns
