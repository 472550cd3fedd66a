"""The search for the learning rate that suits a bundle's networks, on texts that a session accepts.

Each text is scored before it is learnt, and no reference takes part, so a rate is judged by what a session would have
seen of it. The paper's 0.1 suits networks trained by the paper's recipe; others want less.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from models.errors import TuningError
from models.learning import LearningOptions
from models.rescoring import Rescorer
from models.score import Weights
from models.session import SessionModel, SessionOptions, SessionState, Tally

RATES = (0.001, 0.003, 0.01, 0.03, 0.1)
_WORDS = 6_000


@dataclass(frozen=True, slots=True)
class FoundLearning:
    """What was found.

    best:         the options with the lowest perplexity
    perplexities: of the accepted texts under the mixture, by options
    static:       the same with frozen weights
    """

    best: LearningOptions
    perplexities: Mapping[LearningOptions, float]
    static: float

    @property
    def helps(self) -> bool:
        """Whether learning lowered the perplexity at all."""
        return self.perplexities[self.best] < self.static


def search_learning(
    rescorer: Rescorer,
    weights: Weights,
    texts: Sequence[tuple[str, Sequence[int]]],
    *,
    rates: Sequence[float] = RATES,
    reaches: Sequence[int] = (1,),
    report: Callable[[LearningOptions, float], None] = lambda *_: None,
) -> FoundLearning:
    """Try every rate with every reach, in sessions that carry their state, on the first few thousand words.

    texts:  session and word ids of each accepted text, in order
    report: called with each combination and its perplexity

    Raises TuningError where no combination gives a perplexity, SessionError where nothing could learn.
    """
    beginning = _beginning(texts)
    found: dict[LearningOptions, float] = {}
    static = float("inf")
    for rate, tau in product(rates, reaches):
        options = LearningOptions(rate, tau)
        model = SessionModel(rescorer, weights, SessionOptions(learning=options))
        states: dict[str, SessionState] = {}
        for session, words in beginning:
            states[session] = model.accept(states.get(session) or model.fresh(), words, confirmed=False)
        tallies = [state.tallies["mixture"] for state in states.values()]
        both = _sum(tallies).perplexities()
        if both is not None:
            found[options], static = both
            report(options, found[options])
    if not found:
        raise TuningError("the accepted texts have no perplexity: no learning rate can be chosen")
    return FoundLearning(min(found, key=found.__getitem__), found, static)


def _beginning(texts: Sequence[tuple[str, Sequence[int]]]) -> list[tuple[str, Sequence[int]]]:
    out: list[tuple[str, Sequence[int]]] = []
    words = 0
    for session, text in texts:
        if words >= _WORDS:
            break
        out.append((session, text))
        words += len(text) + 1
    return out


def _sum(tallies: Sequence[Tally]) -> Tally:
    return Tally(
        sum(tally.events for tally in tallies),
        sum(tally.session for tally in tallies),
        sum(tally.static for tally in tallies),
    )
