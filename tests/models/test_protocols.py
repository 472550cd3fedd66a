"""The controlled experiment on sessions: that its cells differ in what their names say, and in nothing else."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import InvalidNBestError, InvalidOptionError, ModelFailedError, SessionError
from models.evaluation_set import EvaluationSet
from models.learning import LearningOptions
from models.nbest import Hypothesis, NBest
from models.protocols import BASE, CELLS, Cell, Pass, Protocols, ProtocolSettings, shuffled_orders
from models.ranking import RescoredList
from models.rescoring import Rescorer
from models.score import Weights, interpolate
from models.session import SessionModel, SessionOptions

WEIGHTS = Weights({"ngram": 0.25, "rnn": 0.75}, acoustic_scale=0.3, lm_scale=2.0)
# Fast enough that a few utterances move rankings.
LEARNING = LearningOptions(rate=0.5, tau=2)
SETTINGS = ProtocolSettings(LEARNING, shuffles=2)
UNLEARNT = [cell for cell in CELLS if cell.weights == "static"]
LEARNT = [cell for cell in CELLS if cell.weights == "dynamic"]


def drawn_lists(count: int = 8, seed: int = 3) -> list[NBest]:
    """Lists over the tiny vocabulary and a word outside it, with references, of two speakers."""
    draw = random.Random(seed)

    def text() -> str:
        return " ".join(draw.choices(("good", "morning", "day", "evening"), k=draw.randint(0, 4)))

    out = []
    for number in range(count):
        reference = f"good {text()}".strip()
        texts = [reference, *(text() for _ in range(4))]
        draw.shuffle(texts)
        hypotheses = tuple(Hypothesis(said, float(draw.randint(-9, 0))) for said in texts)
        speaker = "ab"[number % 2]
        out.append(NBest(f"u{number}", hypotheses, reference, session_id=speaker, speaker=speaker))
    return out


LISTS = drawn_lists()
IDENTITY = list(range(len(LISTS)))


def run_cells(
    rescorer: Rescorer,
    lists: Sequence[NBest] = LISTS,
    orders: Sequence[Sequence[int]] = (),
    settings: ProtocolSettings = SETTINGS,
    weights: Weights = WEIGHTS,
) -> dict[Cell, list[Pass]]:
    evaluated = EvaluationSet.prepare(rescorer, lists, settings.session_per)
    return Protocols(rescorer, weights, evaluated, settings).run(orders)


def by_hand(
    rescorer: Rescorer, cell: Cell, order: Sequence[int], settings: ProtocolSettings = SETTINGS
) -> dict[str, Any]:
    """A session over the lists in this order, one call after another, the reference scored as a list of its own."""
    learn_from: Any = "winner" if settings.accepted == "winner" else "confirmed"
    model = SessionModel(rescorer, WEIGHTS, SessionOptions(cell.state, cell.weights, learn_from, settings.learning))
    state = model.fresh()
    winners, log_likelihoods = np.zeros(len(LISTS), np.int64), np.zeros((2, len(LISTS)))
    for number in order:
        prepared = rescorer.prepare(LISTS[number])
        (result,) = model.rescore([prepared], [state])
        assert isinstance(result, RescoredList)
        winners[number] = result.best.index
        reference = rescorer.vocabulary.ids(str(LISTS[number].reference).split())
        scored = model.score([replace(prepared, ids=(reference,))], [state])
        events = scored.tree.sentences[0]
        both = np.stack([scored.by_model[name][events] for name in ("ngram", "rnn")])
        log_likelihoods[:, number] = interpolate(both, np.array([0.25, 0.75])).sum(), both[1].sum()
        confirmed = settings.accepted == "reference"
        accepted = reference if confirmed else prepared.ids[result.best.index]
        state = model.accept(state, accepted, confirmed=confirmed)
    return {"winners": winners, "log_likelihoods": log_likelihoods, "state": state}


def same(one: Pass, other: Pass) -> bool:
    return (
        np.array_equal(one.winners, other.winners)
        and np.array_equal(one.errors, other.errors)
        and all(np.array_equal(values, other.log_likelihoods[name]) for name, values in one.log_likelihoods.items())
        and (one.updates, one.undone) == (other.updates, other.undone)
    )


def test_there_are_eight_cells_and_each_differs_from_the_base_in_what_its_name_says() -> None:
    assert len(set(CELLS)) == 8
    assert BASE.name == "original, reset, static"
    assert len({cell.name for cell in CELLS}) == 8


def test_shuffled_by_the_identity_is_the_original_order_bit_for_bit(rescorer: Rescorer) -> None:
    passes = run_cells(rescorer, orders=[IDENTITY])
    for cell in CELLS:
        (original,) = passes[replace(cell, order="original")]
        (shuffled,) = passes[replace(cell, order="shuffled")]
        assert same(original, shuffled), cell.name


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.order == "original"], ids=lambda cell: cell.name)
@pytest.mark.parametrize("accepted", ["winner", "reference"])
def test_a_cell_is_a_session_run_by_hand(rescorer: Rescorer, cell: Cell, accepted: Any) -> None:
    settings = replace(SETTINGS, accepted=accepted)
    order = [5, 2, 7, 0, 1, 6, 4, 3]
    passes = run_cells(rescorer, orders=[order], settings=settings)
    for found, utterances in (
        (passes[cell][0], IDENTITY),
        (passes[replace(cell, order="shuffled")][0], order),
    ):
        expected = by_hand(rescorer, cell, utterances, settings)
        assert found.winners.tolist() == expected["winners"].tolist()
        assert found.updates == expected["state"].words_learnt
        sums = np.stack([found.log_likelihoods["mixture"], found.log_likelihoods["rnn"]])
        assert sums == pytest.approx(expected["log_likelihoods"], abs=1e-4)


def test_learning_and_carrying_each_move_something_or_the_cells_would_show_nothing(rescorer: Rescorer) -> None:
    passes = run_cells(rescorer, orders=[IDENTITY[::-1]])
    sums = {cell: passes[cell][0].log_likelihoods["rnn"].sum() for cell in CELLS}
    # The two cells that no order can touch are equal; no other two are.
    assert len({round(value, 6) for value in sums.values()}) == 7


def test_static_and_reset_are_the_rankings_of_plain_rescoring(rescorer: Rescorer) -> None:
    (found,) = run_cells(rescorer)[BASE]
    plain = rescorer.rescore([rescorer.prepare(nbest) for nbest in LISTS], [WEIGHTS] * len(LISTS))
    assert found.winners.tolist() == [result.best.index for result in plain if isinstance(result, RescoredList)]


def test_static_and_carried_are_the_rankings_of_carried_rescoring_a_session_a_speaker(rescorer: Rescorer) -> None:
    settings = replace(SETTINGS, session_per="speaker")
    (found,) = run_cells(rescorer, settings=settings)[Cell("original", "carried", "static")]
    plain = rescorer.rescore_carried([rescorer.prepare(nbest) for nbest in LISTS], WEIGHTS)
    assert found.winners.tolist() == [result.best.index for result in plain if isinstance(result, RescoredList)]


@given(st.permutations(IDENTITY))
def test_without_state_and_learning_an_utterance_does_not_feel_the_order_of_the_file(
    rescorer: Rescorer, order: list[int]
) -> None:
    (straight,) = run_static(rescorer, LISTS)
    (permuted,) = run_static(rescorer, [LISTS[number] for number in order])
    assert permuted.winners.tolist() == straight.winners[order].tolist()
    assert permuted.errors.tolist() == straight.errors[order].tolist()
    assert permuted.log_likelihoods["rnn"] == pytest.approx(straight.log_likelihoods["rnn"][order], abs=1e-5)


def run_static(rescorer: Rescorer, lists: Sequence[NBest]) -> list[Pass]:
    evaluated = EvaluationSet.prepare(rescorer, lists)
    return [Protocols(rescorer, WEIGHTS, evaluated, SETTINGS)._independent(lambda _: None)]


def test_without_state_and_learning_every_shuffle_is_the_original_exactly(rescorer: Rescorer) -> None:
    passes = run_cells(rescorer, orders=shuffled_orders(len(LISTS), SETTINGS))
    for shuffled in passes[replace(BASE, order="shuffled")]:
        assert same(shuffled, passes[BASE][0])


def test_errors_are_those_of_the_winner_and_first_pass_and_oracle_stand_beside_them(
    rescorer: Rescorer, make: Any
) -> None:
    # Against "good day": "good" lacks a word, "day day day" has a wrong and a further one.
    nbest = make.nbest("u", ("good", -1.0), ("day day day", 0.0), ("good day", -9.0), reference="good day")
    evaluated = EvaluationSet.prepare(rescorer, [nbest])
    assert evaluated.errors[0].tolist() == [1, 2, 0]
    assert (evaluated.first_pass_errors.tolist(), evaluated.oracle_errors.tolist()) == ([1], [0])
    acoustic = replace(WEIGHTS, acoustic_scale=1e6)
    (found,) = run_cells(rescorer, [nbest], weights=acoustic)[BASE]
    assert (found.winners.tolist(), found.errors.tolist()) == ([1], [2])


def test_every_accepted_word_is_learnt_once_and_the_sentence_end_with_it(rescorer: Rescorer) -> None:
    passes = run_cells(rescorer, orders=shuffled_orders(len(LISTS), SETTINGS))
    for cell in LEARNT:
        for found in passes[cell]:
            texts = [nbest.hypotheses[w].text.split() for nbest, w in zip(LISTS, found.winners, strict=True)]
            assert found.undone == 0
            assert found.updates == sum(len(words) + 1 for words in texts)
    assert all(found.updates == 0 for cell in UNLEARNT for found in passes[cell])


def test_learning_references_costs_every_dynamic_cell_the_same_updates(rescorer: Rescorer) -> None:
    settings = replace(SETTINGS, accepted="reference")
    passes = run_cells(rescorer, orders=shuffled_orders(len(LISTS), settings), settings=settings)
    words = sum(len(str(nbest.reference).split()) + 1 for nbest in LISTS)
    assert {found.updates for cell in LEARNT for found in passes[cell]} == {words}


def test_a_lesson_that_was_undone_is_no_update(rescorer: Rescorer) -> None:
    settings = ProtocolSettings(LearningOptions(rate=7.0), accepted="reference")
    (found,) = run_cells(rescorer, settings=settings)[Cell("original", "carried", "dynamic")]
    model = SessionModel(rescorer, WEIGHTS, SessionOptions(learn_from="confirmed", learning=settings.learning))
    state, learnt = model.fresh(), []
    for nbest in LISTS:
        words = rescorer.vocabulary.ids(str(nbest.reference).split())
        after = model.accept(state, words, confirmed=True)
        if after.undone == state.undone:
            learnt.append(len(words) + 1)
        state = after
    assert 0 < len(learnt) < len(LISTS)
    assert (found.updates, found.undone) == (sum(learnt), len(LISTS) - len(learnt))


def test_a_rate_of_nothing_learns_nothing(rescorer: Rescorer) -> None:
    passes = run_cells(rescorer, settings=ProtocolSettings(LearningOptions(rate=0.0)))
    for cell in LEARNT:
        for learnt, frozen in zip(passes[cell], passes[replace(cell, weights="static")], strict=True):
            assert learnt.winners.tolist() == frozen.winners.tolist()
            assert learnt.log_likelihoods["rnn"] == pytest.approx(frozen.log_likelihoods["rnn"], abs=1e-5)


def test_a_speaker_s_session_knows_nothing_of_the_other_speaker(rescorer: Rescorer) -> None:
    settings = replace(SETTINGS, session_per="speaker")
    together = run_cells(rescorer, settings=settings)
    for first in (0, 1):
        alone = run_cells(rescorer, LISTS[first::2], settings=settings)
        for cell in (cell for cell in CELLS if cell.order == "original"):
            mine, whole = alone[cell][0], together[cell][0]
            assert mine.winners.tolist() == whole.winners[first::2].tolist()
            assert mine.log_likelihoods["rnn"] == pytest.approx(whole.log_likelihoods["rnn"][first::2], abs=1e-5)


def test_the_part_of_words_outside_the_vocabulary_is_theirs_alone(rescorer: Rescorer, make: Any) -> None:
    nbest = make.nbest("u", ("good", 0.0), reference="evening good evening")
    evaluated = EvaluationSet.prepare(rescorer, [nbest])
    assert (evaluated.words.tolist(), evaluated.oov.tolist()) == ([3], [2])
    (found,) = run_cells(rescorer, [nbest])[BASE]
    words, _ = make.plain_elman(rescorer.models["rnn"], evaluated.references[0])
    assert found.log_likelihoods["rnn"] == pytest.approx([words.sum()], abs=1e-4)
    assert found.oov_log_likelihoods["rnn"] == pytest.approx([words[0] + words[2]], abs=1e-4)


def test_orders_are_permutations_and_the_seed_s_own() -> None:
    orders = shuffled_orders(50, ProtocolSettings(shuffles=3, seed=4))
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert orders == shuffled_orders(50, ProtocolSettings(shuffles=3, seed=4))
    assert orders[:2] == shuffled_orders(50, ProtocolSettings(shuffles=2, seed=4))
    assert orders[0] not in shuffled_orders(50, ProtocolSettings(shuffles=3, seed=5))


def test_progress_is_reported_as_often_as_announced(rescorer: Rescorer) -> None:
    protocols = Protocols(rescorer, WEIGHTS, EvaluationSet.prepare(rescorer, LISTS), SETTINGS)
    seen: list[str] = []
    protocols.run(shuffled_orders(len(LISTS), SETTINGS), seen.append)
    assert {name: seen.count(name) for name in ("static", "dynamic")} == protocols.steps(SETTINGS.shuffles)


def test_a_network_without_weight_can_neither_carry_nor_learn(rescorer: Rescorer) -> None:
    with pytest.raises(SessionError, match="nothing that could learn"):
        run_cells(rescorer, weights=Weights({"ngram": 1.0}))


def test_learning_that_blows_up_names_cell_and_utterance(rescorer: Rescorer) -> None:
    with pytest.raises(ModelFailedError, match=r"cell original, reset, dynamic, utterance 'u\d': .*"):
        run_cells(rescorer, settings=ProtocolSettings(LearningOptions(rate=1e30)))


def test_a_set_that_cannot_be_evaluated_is_refused_by_name(rescorer: Rescorer, make: Any) -> None:
    unknown = make.nbest("u-1", ("good", 0.0))
    silent = make.nbest("u-2", ("good", 0.0), reference="")
    with pytest.raises(InvalidNBestError, match=r"'u-1' has no reference"):
        EvaluationSet.prepare(rescorer, [*LISTS, unknown])
    with pytest.raises(InvalidNBestError, match="hold no word"):
        EvaluationSet.prepare(rescorer, [silent])
    with pytest.raises(InvalidNBestError, match=r"'u-2' has no speaker"):
        EvaluationSet.prepare(rescorer, [*LISTS, silent], "speaker")


@pytest.mark.parametrize(
    ("make_settings", "field"),
    [
        (lambda: ProtocolSettings(accepted="oracle"), "accepted"),
        (lambda: ProtocolSettings(session_per="book"), "session_per"),
        (lambda: ProtocolSettings(shuffles=0), "shuffles"),
        (lambda: ProtocolSettings(seed=-1), "seed"),
        (lambda: ProtocolSettings(LearningOptions(rate=math.nan)), "rate"),
    ],
)
def test_a_setting_out_of_range_is_named(make_settings: Callable[[], Any], field: str) -> None:
    with pytest.raises(InvalidOptionError, match=field):
        make_settings()
