import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.autograd_adaptation import AutogradElman
from models.class_factored import ClassFactored, ClassGroups
from models.dynamic import DynamicElman
from models.errors import ModelFailedError
from models.learning import LearningOptions, Start
from models.nbest import NBest
from models.normaliser import Normaliser
from models.prefix_tree import PrefixTree
from models.rescoring import Rescorer
from models.rnnlm import ElmanLM, ElmanWeights
from models.score import Weights
from models.session import SessionModel, SessionOptions, SessionState
from models.session_file import dump_state, load_state
from models.vocabulary import EOS_ID, Vocabulary

VOCABULARY = Vocabulary(("a", "b", "c", "d", "e"))
GROUPS = ClassGroups(np.array([1, 0, 0, 1, 1]))
TEXTS = [[2, 3, 4], [], [6, 0, 2, 2], [5]]


@pytest.fixture(scope="module")
def model(make: Any) -> ElmanLM:
    plain = make.elman(VOCABULARY, rare=("d", "e"))
    X = torch.randn(2, 6, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    weights = ElmanWeights(plain.weights.U, plain.weights.W, torch.cat([plain.weights.V, X]))
    return ElmanLM(weights, plain.classes, output=ClassFactored(weights.V, GROUPS))


def log_probs(model: ElmanLM, matrices: Sequence[Tensor], words: Sequence[int], s: Tensor) -> tuple[Tensor, Tensor]:
    """(T + 1,) ln P of classes by the formula, and the last hidden state; differentiable."""
    U, W, V = matrices
    C, out = model.classes.count, []
    classes = [int(model.classes.of_event[event]) for event in (EOS_ID, *words, EOS_ID)]
    for read, wanted in pairwise(classes):
        s = torch.sigmoid(U[read] + W @ s)
        logits, group = V @ s, int(GROUPS.of_class[wanted])
        members = torch.from_numpy(np.flatnonzero(GROUPS.of_class == group))
        inside = logits[wanted] - torch.logsumexp(logits[members], 0)
        out.append(inside + logits[C + group] - torch.logsumexp(logits[C:], 0))
    return torch.stack(out), s


def shares(model: ElmanLM, scores: Tensor, words: Sequence[int]) -> NDArray[np.float64]:
    """Ln P of events from that of their classes."""
    rare = [model.classes.of_event[event] == 1 for event in (*words, EOS_ID)]
    out: NDArray[np.float64] = scores.detach().numpy() - np.where(rare, math.log(model.classes.rare_members), 0.0)
    return out


@pytest.mark.parametrize("decay", [0.0, 2.0])
def test_it_is_one_step_of_autograd_an_utterance(model: ElmanLM, decay: float) -> None:
    options = LearningOptions(rate=0.1, decay=decay)
    learner, start = AutogradElman(model, options), Start.fresh(model)
    shared = list(model.weights.named().values())
    own, state = [matrix.clone() for matrix in shared], torch.full((6,), model.initial_state, dtype=torch.float64)
    for words in TEXTS * 3:
        leaves = [matrix.clone().requires_grad_() for matrix in own]
        scores, state = log_probs(model, leaves, words, state)
        state = state.detach()
        found, start = learner.learn(words, start)
        assert found == pytest.approx(shares(model, scores, words), abs=1e-10)
        gradients = torch.autograd.grad(-scores.sum(), leaves)
        own = [
            base + (1 - 0.1 * decay) * (matrix - base) - 0.1 * gradient
            for base, matrix, gradient in zip(shared, own, gradients, strict=True)
        ]
        for matrix, expected in zip(start.delta.applied(model.weights).named().values(), own, strict=True):
            assert matrix.numpy() == pytest.approx(expected.numpy(), abs=1e-10)
    assert start.delta.rank == 6
    assert start.hidden == pytest.approx(state.numpy(), abs=1e-10)


def test_lists_are_scored_under_the_weights_of_their_own_session(model: ElmanLM) -> None:
    learner = AutogradElman(model, LearningOptions())
    fresh = Start.fresh(model)
    starts = [fresh, learner.learn([2, 3], fresh)[1], learner.learn([6, 6, 4], fresh)[1]]
    sentences = [[2, 3], [2, 4], [], [2, 3, 5]]
    tree = PrefixTree.build(sentences * 3, [root for root in (2, 0, 1) for _ in sentences])
    found = learner.score(tree, starts)
    for number, (sentence, root) in enumerate((sentence, root) for root in (2, 0, 1) for sentence in sentences):
        matrices = list(starts[root].delta.applied(model.weights).named().values())
        scores, _ = log_probs(model, matrices, sentence, torch.from_numpy(starts[root].hidden))
        assert found[tree.sentences[number]] == pytest.approx(shares(model, scores, sentence), abs=1e-10)


def test_dynamic_evaluation_word_by_word_refuses_such_a_network(model: ElmanLM) -> None:
    with pytest.raises(ModelFailedError, match="full softmax"):
        DynamicElman(model, LearningOptions())


def sessions(model: ElmanLM, **options: Any) -> SessionModel:
    rescorer = Rescorer(VOCABULARY, Normaliser(), {"rnn": model})
    return SessionModel(rescorer, Weights({"rnn": 1.0}), SessionOptions(**options))


def taught(kind: SessionModel) -> SessionState:
    state = kind.fresh()
    for words in TEXTS:
        state = kind.accept(state, words, confirmed=False)
    return state


@pytest.mark.parametrize("weights", ["dynamic", "static"])
def test_a_session_replayed_has_the_same_bits(model: ElmanLM, weights: str) -> None:
    kind = sessions(model, weights=weights)
    assert dump_state(taught(kind), {}) == dump_state(taught(kind), {})


def test_a_session_put_away_comes_back_and_goes_on_alike(model: ElmanLM) -> None:
    kind = sessions(model)
    state = taught(kind)
    back = load_state(dump_state(state, {}), kind)
    assert back.words_learnt == sum(len(words) + 1 for words in TEXTS)
    one, other = (dump_state(kind.accept(each, [3, 3], confirmed=False), {}) for each in (state, back))
    assert one == other


def test_a_session_learns_and_the_network_stays_as_it_was(model: ElmanLM) -> None:
    before = {name: matrix.clone() for name, matrix in model.weights.named().items()}
    kind = sessions(model)
    state = kind.fresh()
    for _ in range(20):
        state = kind.accept(state, [2, 3, 4], confirmed=True)
    session, static = state.tallies["rnn"].perplexities() or (math.inf, 0.0)
    assert session < static
    assert all(torch.equal(matrix, before[name]) for name, matrix in model.weights.named().items())


def test_a_static_session_carries_its_state_as_rescoring_does(model: ElmanLM, make: Any) -> None:
    kind = sessions(model, weights="static")
    lists: list[NBest] = [make.nbest(str(i), ("a b", -1.0), ("c d", -1.5), session_id="s") for i in range(3)]
    prepared = [kind.rescorer.prepare(each) for each in lists]
    carried = kind.rescorer.rescore_carried(prepared, kind.weights)
    state = kind.fresh()
    for one, expected in zip(prepared, carried, strict=True):
        (found,) = kind.rescore([one], [state])
        assert found.ranking[0].lm == pytest.approx(expected.ranking[0].lm, abs=1e-10)  # type: ignore[union-attr] # a list fails only where a number is none
        state = kind.accept(state, one.ids[found.best.index], confirmed=False)  # type: ignore[union-attr] # the same
