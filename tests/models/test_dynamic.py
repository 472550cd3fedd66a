import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from models import dynamic, taught_output
from models.base import FloatArray
from models.bundle import load_bundle
from models.dynamic import DynamicElman
from models.errors import InvalidOptionError, ModelFailedError
from models.learning import HiddenState, LearningOptions, Start
from models.prefix_tree import PrefixTree
from models.rnnlm import RARE_CLASS, ElmanLM, ElmanWeights, WordClasses
from models.vocabulary import EOS_ID, FIRST_WORD_ID, UNK_ID, Vocabulary
from models.weight_delta import WeightDelta

Text = list[int]
TAUS = pytest.mark.parametrize("tau", [1, 3, 5])
VOCABULARY = Vocabulary(("a", "b", "c", "d", "e", "f"))
RARE = ("e", "f")
LN_3 = math.log(3)


class Loop:
    """The paper's dynamic model as its formulas stand: one word at a time, in float64, on matrices of its own."""

    def __init__(self, learner: DynamicElman) -> None:
        model, self.options = learner.model, learner.options
        self.classes = model.classes
        self.base = [matrix.double().numpy() for matrix in model.weights.named().values()]
        self.matrices = [matrix.copy() for matrix in self.base]
        # inputs[i] is read between states[i] and states[i + 1].
        self.states: list[NDArray[np.float64]] = [np.full(model.hidden_size, model.initial_state)]
        self.inputs: list[int] = []

    def run(self, words: Sequence[int]) -> FloatArray:
        read, wanted = (self.classes.of_event[ids] for ids in ([EOS_ID, *words], [*words, EOS_ID]))
        log_probs = np.array([self.word(x, w) for x, w in zip(read, wanted, strict=True)])
        return log_probs - np.where(wanted == RARE_CLASS, math.log(self.classes.rare_members), 0.0)

    def word(self, read: int, wanted: int) -> float:
        U, W, V = self.matrices
        s = 1 / (1 + np.exp(-(U[read] + W @ self.states[-1])))
        self.inputs.append(read)
        self.states.append(s)
        z = V @ s
        log_y = z - z.max() - math.log(np.exp(z - z.max()).sum())
        self.learn(np.exp(log_y), wanted)
        return float(log_y[wanted])

    def learn(self, y: NDArray[np.float64], wanted: int) -> None:
        U, W, V = self.matrices
        g, s = y - np.eye(len(y))[wanted], self.states[-1]
        dU, dW, dV = np.zeros_like(U), np.zeros_like(W), np.outer(g, s)
        error = (V.T @ g) * s * (1 - s)
        for back in range(1, min(self.options.tau, len(self.inputs)) + 1):
            before = self.states[-1 - back]
            dU[self.inputs[-back]] += error
            dW += np.outer(error, before)
            error = (W.T @ error) * before * (1 - before)
        for now, step, base in zip(self.matrices, (dU, dW, dV), self.base, strict=True):
            now[:] -= self.options.rate * (step + self.options.decay * (now - base))


class AutogradLoop:
    """The same for tau = 1 with gradients that torch derives, the state before a word taken as given."""

    def __init__(self, learner: DynamicElman) -> None:
        model, self.options = learner.model, learner.options
        self.classes = model.classes
        self.base = [matrix.double() for matrix in model.weights.named().values()]
        self.matrices = [matrix.clone().requires_grad_() for matrix in self.base]
        self.before = torch.full((model.hidden_size,), model.initial_state, dtype=torch.float64)

    def run(self, words: Sequence[int]) -> FloatArray:
        out, read = [], EOS_ID
        for word in (*words, EOS_ID):
            U, W, V = self.matrices
            s = torch.sigmoid(U[self.classes.of_event[read]] + W @ self.before)
            wanted = self.classes.of_event[word]
            log_prob = torch.log_softmax(V @ s, 0)[wanted]
            out.append(log_prob.item() - (math.log(self.classes.rare_members) if wanted == RARE_CLASS else 0.0))
            steps = torch.autograd.grad(-log_prob, self.matrices)
            with torch.no_grad():
                for now, step, base in zip(self.matrices, steps, self.base, strict=True):
                    now[:] -= self.options.rate * (step + self.options.decay * (now - base))
            self.before, read = s.detach(), word
        return np.array(out)


def fresh(model: ElmanLM) -> Start:
    return Start(WeightDelta.none(model.weights), HiddenState.initial(model))


def taught(dynamic_model: DynamicElman, texts: Sequence[Text]) -> Start:
    start = fresh(dynamic_model.model)
    for text in texts:
        _, start = dynamic_model.learn(text, start)
    return start


def score(dynamic_model: DynamicElman, texts: Sequence[Text], *starts: Start) -> list[list[FloatArray]]:
    """Per start, ln P of each word of each text; all scored together."""
    roots = [root for root in range(len(starts)) for _ in texts]
    tree = PrefixTree.build([*texts] * len(starts), roots)
    log_probs = dynamic_model.score(tree, starts)
    rows = [log_probs[events] for events in tree.sentences]
    return [rows[first : first + len(texts)] for first in range(0, len(rows), len(texts))]


def same(found: Sequence[FloatArray], expected: Sequence[FloatArray], within: float = 1e-12) -> None:
    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, wanted, rtol=0, atol=within)


def same_weights(start: Start, loop: Loop) -> None:
    weights = ElmanWeights(*(torch.from_numpy(matrix) for matrix in loop.base))
    same([matrix.numpy() for matrix in start.delta.applied(weights).named().values()], loop.matrices, within=1e-10)


def tensors(start: Start) -> list[torch.Tensor]:
    return [*start.delta.named().values(), start.state.states, start.state.inputs]


def drawn(seed: int, count: int, longest: int = 8) -> list[Text]:
    """Texts of random words, <unk> and rare ones among them."""
    draw = np.random.default_rng(seed)
    words = [UNK_ID, *range(FIRST_WORD_ID, VOCABULARY.size)]
    return [draw.choice(words, length).tolist() for length in draw.integers(0, longest + 1, count)]


@st.composite
def cases(draw: st.DrawFn, make: Any, tau: int) -> tuple[DynamicElman, list[Text], list[Text]]:
    """A random network that learns, the lessons of a session, and a list."""
    vocabulary = Vocabulary(VOCABULARY.words[: draw(st.integers(1, 6))])
    rare = draw(st.lists(st.sampled_from(vocabulary.words), unique=True, max_size=2))
    sizes = {"hidden": draw(st.integers(1, 7)), "seed": draw(st.integers(1, 99)), "spread": draw(st.floats(0.2, 1.5))}
    words = st.sampled_from([UNK_ID, *range(FIRST_WORD_ID, vocabulary.size)])
    hypotheses = draw(st.lists(st.lists(words, max_size=6), min_size=1, max_size=4))
    # What a list holds besides: the same words again, another end to the same beginning, no words at all.
    hypotheses += [hypotheses[0], [*hypotheses[-1][:3], *draw(st.lists(words, max_size=3))], []]
    rate = draw(st.sampled_from((0.05, 0.1, 0.5)))
    decay = draw(st.sampled_from((0.0, 0.3, 1.0))) / rate
    lessons = draw(st.lists(st.lists(words, max_size=9), min_size=1, max_size=4))
    learner = DynamicElman(make.elman(vocabulary, rare=rare, **sizes), LearningOptions(rate, tau, decay))
    return learner, lessons, draw(st.permutations(hypotheses))


@pytest.fixture(scope="module")
def learner(make: Any) -> DynamicElman:
    return DynamicElman(make.elman(VOCABULARY, rare=RARE, hidden=20, seed=2), LearningOptions(rate=0.2, tau=3))


def check_against_loop(learner: DynamicElman, lessons: list[Text], hypotheses: list[Text]) -> None:
    untaught, learnt = fresh(learner.model), taught(learner, lessons)
    starts = [Start(weights.delta, text.state) for weights in (untaught, learnt) for text in (untaught, learnt)]
    loops = [Loop(learner) for _ in starts]
    for lesson in lessons:
        loops[3].run(lesson)
    loops[1].states, loops[1].inputs = loops[3].states, loops[3].inputs
    loops[2].matrices = loops[3].matrices
    for rows, loop in zip(score(learner, hypotheses, *starts), loops, strict=True):
        same(rows, [deepcopy(loop).run(hypothesis) for hypothesis in hypotheses])


@TAUS
@given(drawn_case=st.data())
def test_a_list_is_scored_as_by_the_loop_fresh_and_taught_with_state_reset_and_carried(
    make: Any, tau: int, drawn_case: st.DataObject
) -> None:
    check_against_loop(*drawn_case.draw(cases(make, tau)))


@given(st.data())
def test_a_list_is_scored_as_by_gradients_that_torch_derives(make: Any, drawn_case: st.DataObject) -> None:
    learner, lessons, hypotheses = drawn_case.draw(cases(make, tau=1))
    loop = AutogradLoop(learner)
    for lesson in lessons:
        loop.run(lesson)
    (rows,) = score(learner, hypotheses, taught(learner, lessons))
    same(rows, [deepcopy(loop).run(hypothesis) for hypothesis in hypotheses])


@pytest.mark.slow
@TAUS
def test_a_trained_network_scores_lists_of_its_language_as_the_loop(trained_once: Path, make: Any, tau: int) -> None:
    rescorer = load_bundle(trained_once, only=("rnn",)).rescorer
    trained = rescorer.models["rnn"]
    assert isinstance(trained, ElmanLM)
    model = ElmanLM(ElmanWeights(*(M.double() for M in trained.weights.named().values())), trained.classes)
    texts = [rescorer.vocabulary.ids(sentence) for sentence in make.grammar(100, seed=9)]
    check_against_loop(DynamicElman(model, LearningOptions(tau=tau)), texts[:80], [*texts[80:], [UNK_ID, *texts[0]]])


@pytest.mark.parametrize(("tau", "decay"), [(1, 0.0), (3, 0.2), (5, 0.0)])
def test_weights_after_500_words_are_the_loops(learner: DynamicElman, tau: int, decay: float) -> None:
    model, words = learner.model, 0
    learner = DynamicElman(model, LearningOptions(0.1, tau, decay))
    loop, start = Loop(learner), fresh(model)
    for text in drawn(seed=7, count=75, longest=12):
        log_probs, start = learner.learn(text, start)
        same([log_probs], [loop.run(text)])
        words += len(text) + 1
        assert start.delta.rank == min(words, model.hidden_size)
        same_weights(start, loop)
    assert words > 500
    same([start.hidden], [loop.states[-1]])


@settings(max_examples=10)
@given(st.permutations(range(8)))
def test_the_order_of_a_list_does_not_matter(learner: DynamicElman, order: list[int]) -> None:
    texts, start = drawn(seed=5, count=8), taught(learner, drawn(seed=6, count=3))
    (rows,), (permuted,) = score(learner, texts, start), score(learner, [texts[i] for i in order], start)
    same(permuted, [rows[i] for i in order])


def test_what_else_is_scored_does_not_matter(learner: DynamicElman) -> None:
    starts = [taught(learner, drawn(seed, count)) for seed, count in ((1, 0), (2, 1), (3, 9))]
    lists = [drawn(seed, count=4, longest=seed) for seed in (11, 0, 13)]
    tree = PrefixTree.build([text for texts in lists for text in texts], [root for root in range(3) for _ in range(4)])
    log_probs = learner.score(tree, starts)
    alone = [row for texts, start in zip(lists, starts, strict=True) for row in score(learner, texts, start)[0]]
    same([log_probs[events] for events in tree.sentences], alone)


def test_the_same_words_score_the_same_wherever_they_stand(learner: DynamicElman) -> None:
    texts = drawn(seed=5, count=4)
    (rows,) = score(learner, texts + texts[::-1], taught(learner, texts))
    assert all(np.array_equal(row, again) for row, again in zip(rows[:4], rows[:3:-1], strict=True))


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 9])
def test_threads_that_share_the_sessions_change_nothing(
    learner: DynamicElman, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    starts = [taught(learner, drawn(seed, count=seed)) for seed in range(5)]
    lists = [drawn(seed, count, longest=seed) for seed, count in ((3, 9), (7, 1), (0, 2), (4, 3), (8, 8))]
    alone = [row for texts, start in zip(lists, starts, strict=True) for row in score(learner, texts, start)[0]]
    tree = PrefixTree.build(list(chain(*lists)), [root for root, texts in enumerate(lists) for _ in texts])
    monkeypatch.setattr(dynamic, "thread_count", lambda: threads)
    log_probs = learner.score(tree, starts)
    same([log_probs[events] for events in tree.sentences], alone)


@pytest.mark.parametrize("block", [1, 2, 3, 7])
def test_however_few_classes_are_worked_on_at_a_time_a_list_is_scored_as_by_the_loop(
    learner: DynamicElman, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(taught_output, "_BLOCK", block)
    check_against_loop(learner, drawn(seed=6, count=4), drawn(seed=5, count=8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_whose_exponentials_are_out_of_range_are_scored_as_by_the_loop(make: Any, dtype: torch.dtype) -> None:
    # Classes d and f, the rare one, have logits of about 1,000 and -2,000 at every history.
    model = make.elman(VOCABULARY, rare=RARE, hidden=20, seed=2, dtype=dtype)
    model.weights.V[5] += 100
    model.weights.V[1] -= 200
    learner, texts = DynamicElman(model, LearningOptions(rate=0.01)), drawn(seed=5, count=8)
    (rows,) = score(learner, texts, fresh(model))
    assert min(row.min() for row in rows) < -1000
    same(rows, [Loop(learner).run(text) for text in texts], within=1e-10 if dtype == torch.float64 else 1e-2)


def test_an_empty_batch_has_no_scores(learner: DynamicElman) -> None:
    assert learner.score(PrefixTree.build([]), [fresh(learner.model)]).shape == (0,)


def test_scoring_and_learning_change_nothing_they_are_given(learner: DynamicElman) -> None:
    model, texts, start = learner.model, drawn(seed=5, count=6), taught(learner, drawn(seed=6, count=9))
    weights_before, start_before = deepcopy(model.weights), deepcopy(start)
    (first,) = score(learner, texts, start)
    _, learnt = learner.learn(texts[-1], start)
    learner.read(texts[-1], start)
    (again,) = score(learner, texts, start)
    assert all(np.array_equal(row, repeated) for row, repeated in zip(first, again, strict=True))
    assert all(torch.equal(*pair) for pair in zip(tensors(start), tensors(start_before), strict=True))
    assert not torch.equal(learnt.delta.G, start.delta.G)
    assert all(torch.equal(M, weights_before.named()[name]) for name, M in model.weights.named().items())


def test_with_rate_0_a_session_is_its_network_frozen(learner: DynamicElman) -> None:
    frozen, texts = DynamicElman(learner.model, replace(learner.options, rate=0.0)), drawn(seed=5, count=8)
    tree = PrefixTree.build(texts)
    for start in (fresh(learner.model), taught(learner, drawn(seed=6, count=9))):
        static = ElmanLM(start.delta.applied(learner.model.weights), learner.model.classes)
        expected, states = static.score(tree, start.hidden[None])
        same([frozen.score(tree, [start])], [expected])
        for text, events, node in zip(texts, tree.sentences, tree.last_nodes(), strict=True):
            log_probs, after = learner.read(text, start)
            same([log_probs, after.hidden], [expected[events], states[node]])
            assert after.delta is start.delta


def test_an_error_reaches_back_into_a_text_that_was_only_read(learner: DynamicElman) -> None:
    read, learnt = drawn(seed=9, count=2)
    loop = Loop(DynamicElman(learner.model, replace(learner.options, rate=0.0)))
    loop.run(read)
    loop.options = learner.options
    log_probs, start = learner.learn(learnt, learner.read(read, fresh(learner.model))[1])
    same([log_probs], [loop.run(learnt)])
    same_weights(start, loop)


@given(rate=st.floats(0.0, 1e3))
def test_a_first_word_is_scored_before_anything_is_learnt(learner: DynamicElman, rate: float) -> None:
    model, tree = learner.model, PrefixTree.build([[word] for word in range(VOCABULARY.size) if word != EOS_ID])
    log_probs = DynamicElman(model, LearningOptions(rate)).score(tree, [fresh(model)])
    first = tree.histories == 0
    same([log_probs[first]], [model.score(tree)[0][first]])


def test_a_word_is_scored_before_it_or_what_follows_is_learnt(learner: DynamicElman) -> None:
    start, (text,) = taught(learner, drawn(seed=6, count=2)), drawn(seed=4, count=1, longest=80)
    log_probs, _ = learner.learn(text, start)
    for known in (0, 1, 31, 32, 33, 50):
        # The score of the next word stands on the first `known` alone, whatever else follows.
        ((one, other),) = score(learner, [text[: known + 1], [*text[:known], UNK_ID, UNK_ID]], start)
        same([one[: known + 1], other[:known]], [log_probs[: known + 1], log_probs[:known]])


@pytest.mark.parametrize("history", [[], [2], [5, 0, 7, 7, 3]])
def test_what_is_learnt_stays_a_distribution_in_which_rare_words_share_evenly(
    learner: DynamicElman, make: Any, history: Text
) -> None:
    start = taught(learner, drawn(seed=6, count=9))
    session = SimpleNamespace(score=lambda tree, _: (learner.score(tree, [start]), None))
    log_probs = make.every_event(session, history, VOCABULARY.size)
    assert np.exp(log_probs).sum() == pytest.approx(1, abs=1e-12)
    assert {log_probs[UNK_ID]} == set(log_probs[VOCABULARY.ids(RARE)])


def test_float32_is_close_to_the_loop(make: Any) -> None:
    model = make.elman(VOCABULARY, rare=RARE, hidden=32, seed=5, dtype=torch.float32)
    learner, lessons, texts = DynamicElman(model, LearningOptions(tau=3)), drawn(2, count=20), drawn(3, count=10)
    loop, start = Loop(learner), taught(learner, lessons)
    for lesson in lessons:
        loop.run(lesson)
    same(score(learner, texts, start)[0], [deepcopy(loop).run(text) for text in texts], within=1e-4)


def two_classes(U: float, W: float, rate: float = 1.0, tau: int = 1) -> DynamicElman:
    """One hidden unit; </s> is class 0 and <unk>, the only word, class 1; s_0 = 1/2 and V = (2 ln 3, 0)."""
    matrices = (torch.tensor(rows, dtype=torch.float64) for rows in ([[U], [U]], [[W]], [[2 * LN_3], [0]]))
    model = ElmanLM(ElmanWeights(*matrices), WordClasses(np.array([1, 0]), 1), initial_state=0.5)
    return DynamicElman(model, LearningOptions(rate, tau))


def test_one_update_by_hand() -> None:
    # s_1 = sigmoid(0) = 1/2, V s_1 = (ln 3, 0), y = (3/4, 1/4). <unk> comes: g = (3/4, -3/4), V^T g = 3/2 ln 3,
    # d = 3/2 ln 3 * 1/4. V' = V - g/2 = (2 ln 3 - 3/8, 3/8) and W' = 0 - d/2 = -3/16 ln 3. <unk> is read:
    # s_2 = sigmoid(W' / 2) = 1 / (1 + 3^(3/32)), and </s> has the probability 1 / (1 + exp(s_2 (V'_1 - V'_0))).
    learner = two_classes(U=0, W=0)
    ((row,),) = score(learner, [[UNK_ID]], fresh(learner.model))
    s = 1 / (1 + 3 ** (3 / 32))
    assert row == pytest.approx([-math.log(4), -math.log(1 + math.exp(s * (3 / 4 - 2 * LN_3)))], abs=1e-14)


def test_what_one_update_leaves_behind_by_hand() -> None:
    # As above, but </s> comes: g = (-1/4, 1/4), V^T g = -1/2 ln 3, d = -1/8 ln 3. With rate 2, V' = V - 2 g/2,
    # W' = -2 d/2 and U' = -2 d where </s> was read.
    learner = two_classes(U=0, W=0, rate=2.0)
    log_probs, start = learner.learn([], fresh(learner.model))
    assert log_probs == pytest.approx([math.log(3 / 4)], abs=1e-14)
    left = [matrix.flatten().tolist() for matrix in start.delta.applied(learner.model.weights).named().values()]
    assert left[0] == pytest.approx([LN_3 / 4, 0], abs=1e-14)
    assert left[1] == pytest.approx([LN_3 / 8], abs=1e-14)
    assert left[2] == pytest.approx([2 * LN_3 + 1 / 4, -1 / 4], abs=1e-14)


def test_an_error_two_steps_back_by_hand() -> None:
    # U = -1 and W = 2 keep s at sigmoid(-1 + 2/2) = 1/2. </s> was read twice when <unk> comes: d = 3/8 ln 3 as above,
    # one step earlier it is 2 d / 4 = 3/16 ln 3, each beside a state of 1/2. So W' = 2 - 9/32 ln 3, and <unk> is read:
    # s_2 = sigmoid(-1 + W' / 2) = 1 / (1 + 3^(9/64)).
    learner = two_classes(U=-1, W=2, tau=2)
    half = torch.full((2, 1), 0.5, dtype=torch.float64)
    ((row,),) = score(learner, [[UNK_ID]], Start(fresh(learner.model).delta, HiddenState(half, torch.tensor([0]))))
    s = 1 / (1 + 3 ** (9 / 64))
    assert row[-1] == pytest.approx(-math.log(1 + math.exp(s * (3 / 4 - 2 * LN_3))), abs=1e-14)


OUT_OF_RANGE = [("rate", -0.1), ("rate", math.inf), ("rate", math.nan), ("tau", 0), ("tau", -1)]
OUT_OF_RANGE += [("decay", -0.1), ("decay", math.inf), ("decay", math.nan), ("decay", 10.1)]


@pytest.mark.parametrize(("field", "value"), OUT_OF_RANGE)
def test_an_option_out_of_range_is_refused_by_name(field: str, value: float) -> None:
    chosen: dict[str, Any] = {field: value}
    with pytest.raises(InvalidOptionError, match=f"^{field} is {value}"):
        LearningOptions(**chosen)


def test_the_defaults_are_the_papers() -> None:
    assert LearningOptions() == LearningOptions(rate=0.1, tau=1, decay=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rate", [1e30, 1e38, 1e150, 1e307])
def test_a_rate_that_overflows_gives_an_error_or_finite_scores(make: Any, dtype: torch.dtype, rate: float) -> None:
    learner = DynamicElman(make.elman(VOCABULARY, dtype=dtype), LearningOptions(rate))
    for lessons in ([], drawn(seed=6, count=1)):
        try:
            rows = score(learner, drawn(seed=5, count=6), taught(learner, lessons))[0]
        except ModelFailedError:
            continue
        assert all(np.isfinite(row).all() for row in rows)
