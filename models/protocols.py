"""The controlled experiment on sessions: one switch at a time, everything else held.

    {original order, shuffled} x {state reset, carried} x {weights static, dynamic}

A dynamic language model that wins on utterances in their order may owe it to the carried state, to the learning, or to
the order; and what is learnt may help because neighbours are alike or because the whole set is. Eight cells tell these
apart. All have the same start weights, candidates, mixture and scales, and in every dynamic cell each word of each
accepted text is learnt once, so what differs between two cells is what their names differ in.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal, get_args

import numpy as np

from models.base import FloatArray
from models.errors import InvalidOptionError, ModelFailedError
from models.evaluation_set import EvaluationSet, SessionPer
from models.learning import LearningOptions
from models.prefix_tree import IntArray
from models.ranking import rank_list
from models.rescoring import Rescorer
from models.score import Weights, interpolate
from models.scored_lists import ScoredLists
from models.session import SessionModel, SessionOptions, SessionState
from models.vocabulary import UNK_ID

Order = Literal["original", "shuffled"]
State = Literal["reset", "carried"]
WeightMode = Literal["static", "dynamic"]
Accepted = Literal["winner", "reference"]
MIXTURE = "mixture"

_LISTS_A_BATCH = 16
# A perplexity of e^700 is the last that a number holds.
_MOST_NATS = 700.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the experiment."""

    order: Order
    state: State
    weights: WeightMode

    @property
    def name(self) -> str:
        """As tables and figures call it."""
        return f"{self.order}, {self.state}, {self.weights}"


CELLS = tuple(Cell(*switches) for switches in product(get_args(Order), get_args(State), get_args(WeightMode)))
BASE = CELLS[0]


@dataclass(frozen=True, slots=True)
class ProtocolSettings:
    """What all cells have in common.

    learning:    rate, gradient reach and decay of the dynamic cells
    accepted:    the text that a session goes on from after each utterance, and learns where it learns: the first-ranked
                 hypothesis, or the reference
    session_per: whether all utterances are of one session, or those of a speaker
    shuffles:    how many orders the shuffled cells are the mean of
    seed:        of the shuffles and of the bootstrap

    Raises InvalidOptionError naming the field.
    """

    learning: LearningOptions = field(default_factory=LearningOptions)
    accepted: Accepted = "winner"
    session_per: SessionPer = "file"
    shuffles: int = 5
    seed: int = 1

    def __post_init__(self) -> None:
        for name, allowed in (("accepted", get_args(Accepted)), ("session_per", get_args(SessionPer))):
            if getattr(self, name) not in allowed:
                raise InvalidOptionError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}")
        if self.shuffles < 1:
            raise InvalidOptionError(f"shuffles is {self.shuffles}; it must be at least 1")
        if self.seed < 0:
            raise InvalidOptionError(f"seed is {self.seed}; it must not be negative")

    def session_options(self, cell: Cell) -> SessionOptions:
        """What a cell's sessions do."""
        learn_from: Literal["winner", "confirmed"] = "winner" if self.accepted == "winner" else "confirmed"
        return SessionOptions(cell.state, cell.weights, learn_from, self.learning)


def shuffled_orders(utterances: int, settings: ProtocolSettings) -> list[list[int]]:
    """The orders of the shuffled cells, each drawn from a seed of its own."""
    return [
        np.random.default_rng([settings.seed, number]).permutation(utterances).tolist()
        for number in range(settings.shuffles)
    ]


@dataclass(frozen=True, slots=True)
class Pass:
    """What one run over the set gave. Arrays have n entries in the file's order, whatever order the run went in.

    winners:             index of the first-ranked hypothesis in its list
    errors:              its word errors
    log_likelihoods:     "mixture", and each network's name -> sum of ln P over the reference's words and its end
    oov_log_likelihoods: the part of that which words outside the vocabulary have
    updates:             learning steps that stand in the weights at the end, one a word or sentence end, of a network
    undone:              lessons that were undone because they did harm
    seconds:             scoring, and learning where the cell learns
    """

    winners: IntArray
    errors: IntArray
    log_likelihoods: Mapping[str, FloatArray]
    oov_log_likelihoods: Mapping[str, FloatArray]
    updates: int
    undone: int
    seconds: float


class _Record:
    """A pass while it runs: each utterance is entered when it has been scored."""

    def __init__(self, evaluated: EvaluationSet, weights: Weights, networks: Sequence[str]) -> None:
        n = len(evaluated.lists)
        self._set, self._weights = evaluated, weights
        self._winners, self._errors = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self._log_likelihoods = {name: np.zeros(n) for name in (MIXTURE, *networks)}
        self._oov = {name: np.zeros(n) for name in self._log_likelihoods}
        self._began = time.perf_counter()

    def enter(self, number: int, scored: ScoredLists, first: int) -> int:
        """Enter an utterance; returns the index of its winner.

        scored: its hypotheses and, after the last of them, its reference
        first:  the number of its first hypothesis among the sentences of the tree
        """
        prepared = self._set.lists[number]
        winner = rank_list(scored, prepared, first, self._weights, word_scores=False).best.index
        self._winners[number], self._errors[number] = winner, self._set.errors[number][winner]
        events = scored.tree.sentences[first + len(prepared.ids)]
        names = list(scored.by_model)
        lambdas = np.array([self._weights.interpolation[name] for name in names])
        per_word = {name: values[events] for name, values in scored.by_model.items()}
        per_word[MIXTURE] = interpolate(np.stack([per_word[name] for name in names]), lambdas)
        unknown = scored.tree.event_words[events] == UNK_ID
        for name, sums in self._log_likelihoods.items():
            if not np.all(per_word[name] > -_MOST_NATS):
                raise ModelFailedError(f"{name}: a word of the reference has too small a probability for a perplexity")
            sums[number] = per_word[name].sum()
            self._oov[name][number] = per_word[name][unknown].sum()
        return winner

    def done(self, states: Sequence[SessionState] = ()) -> Pass:
        """The pass, given its sessions' last states."""
        return Pass(
            self._winners,
            self._errors,
            self._log_likelihoods,
            self._oov,
            sum(state.words_learnt for state in states),
            sum(state.undone for state in states),
            time.perf_counter() - self._began,
        )


class Protocols:
    """The experiment on one set.

    rescorer, weights: the engine, and the mixture and scales of every cell

    Raises SessionError when the mixture gives no weight to a recurrent network.
    """

    def __init__(
        self, rescorer: Rescorer, weights: Weights, evaluated: EvaluationSet, settings: ProtocolSettings
    ) -> None:
        self.rescorer, self.weights, self.evaluated, self.settings = rescorer, weights, evaluated, settings
        self._models = {
            (cell.state, cell.weights): SessionModel(rescorer, weights, settings.session_options(cell))
            for cell in CELLS
        }
        self.networks = tuple(self._models[BASE.state, BASE.weights].fresh().networks)
        # The reference is scored as one more hypothesis, which is not ranked: from the same start, and in a dynamic
        # cell by a network that learns along it and forgets that with the list.
        self._with_reference = evaluated.with_references()

    def run(
        self, shuffles: Sequence[Sequence[int]], report: Callable[[WeightMode], None] = lambda _: None
    ) -> dict[Cell, list[Pass]]:
        """Every cell's passes: one in the order of the file, and one an order of `shuffles`.

        report: called with the cell's weights whenever an utterance has been scored; see `steps`

        Without a carried state and without learning no order can matter: those lists are scored once for all orders.
        Raises ModelFailedError, naming cell and utterance, when a model fails.
        """
        orders = {"original": [range(len(self.evaluated.lists))], "shuffled": shuffles}
        once = self._independent(report)
        return {
            cell: [
                once if (cell.state, cell.weights) == (BASE.state, BASE.weights) else self._walk(cell, order, report)
                for order in orders[cell.order]
            ]
            for cell in CELLS
        }

    def steps(self, shuffles: int) -> dict[WeightMode, int]:
        """How often `run` reports, by weights."""
        n, orders = len(self.evaluated.lists), 1 + shuffles
        return {"static": n + n * orders, "dynamic": 2 * n * orders}

    def _independent(self, report: Callable[[WeightMode], None]) -> Pass:
        """Reset and static: every list from the initial state under the shared weights, in batches."""
        record = _Record(self.evaluated, self.weights, self.networks)
        used = [name for name in self.rescorer.models if self.weights.interpolation.get(name, 0) > 0]
        for begin in range(0, len(self._with_reference), _LISTS_A_BATCH):
            batch = self._with_reference[begin : begin + _LISTS_A_BATCH]
            scored = self.rescorer.score(batch, used)
            for number, (_, first) in enumerate(scored.each(), begin):
                record.enter(number, scored, first)
                report("static")
        return record.done()

    def _walk(self, cell: Cell, order: Sequence[int], report: Callable[[WeightMode], None]) -> Pass:
        """One utterance after another, each from where the ones before it have left its session."""
        record = _Record(self.evaluated, self.weights, self.networks)
        states: dict[str, SessionState] = {}
        for number in order:
            session = self.evaluated.sessions[number]
            try:
                states[session] = self._accepted(cell, number, states.get(session), record)
            except ModelFailedError as error:
                name = self.evaluated.lists[number].nbest.utterance_id
                raise ModelFailedError(f"cell {cell.name}, utterance {name!r}: {error}") from error
            report(cell.weights)
        return record.done(list(states.values()))

    def _accepted(self, cell: Cell, number: int, before: SessionState | None, record: _Record) -> SessionState:
        """Score an utterance, enter it, and take what is accepted of it into its session."""
        model = self._models[cell.state, cell.weights]
        state = model.fresh() if before is None else before
        winner = record.enter(number, model.score([self._with_reference[number]], [state]), 0)
        confirmed = self.settings.accepted == "reference"
        text = self.evaluated.references[number] if confirmed else self.evaluated.lists[number].ids[winner]
        return model.accept(state, text, confirmed=confirmed)
