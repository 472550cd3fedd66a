"""A development set scored in sessions: each list from where the lists before it have left its session."""

from collections.abc import Callable, Sequence

import numpy as np

from models.base import FloatArray
from models.evaluation_set import EvaluationSet
from models.ranking import rank_list
from models.score import Weights
from models.scored_lists import ScoredLists
from models.session import SessionModel, SessionState


def score_in_sessions(
    model: SessionModel, development: EvaluationSet, report: Callable[[int], None] = lambda _: None
) -> tuple[list[ScoredLists], dict[str, FloatArray]]:
    """Score lists in order; after each, its session accepts the winner under the model's weights.

    report: called with the number of lists done so far

    Returns the scored lists, one at a time, and by model (references' words and ends,) ln P of the references, each
    scored like one more hypothesis of its list: before anything of the list was accepted.
    """
    states: dict[str, SessionState] = {}
    scored: list[ScoredLists] = []
    references: list[dict[str, FloatArray]] = []
    for number, (prepared, extended) in enumerate(zip(development.lists, development.with_references(), strict=True)):
        session = development.sessions[number]
        state = states.get(session) or model.fresh()
        both = model.score([extended], [state])
        scored.append(ScoredLists((prepared,), both.tree, both.by_model, {}))
        events = both.tree.sentences[len(prepared.ids)]
        references.append({name: values[events] for name, values in both.by_model.items()})
        winner = rank_list(scored[-1], prepared, 0, model.weights, word_scores=False).best.index
        states[session] = model.accept(state, prepared.ids[winner], confirmed=False)
        report(number + 1)
    return scored, {name: np.concatenate([part[name] for part in references]) for name in references[0]}


def accepted_texts(
    scored: Sequence[ScoredLists], weights: Weights, development: EvaluationSet
) -> list[tuple[str, Sequence[int]]]:
    """Session and word ids of each list's winner under the weights, from scores that stand already."""
    out: list[tuple[str, Sequence[int]]] = []
    for batch in scored:
        for prepared, first in batch.each():
            winner = rank_list(batch, prepared, first, weights, word_scores=False).best.index
            out.append((development.sessions[len(out)], prepared.ids[winner]))
    return out
