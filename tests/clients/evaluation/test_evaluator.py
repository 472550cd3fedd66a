import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.errors import EvaluationError
from clients.evaluation.alignment import count_errors
from clients.evaluation.counts import ErrorCounts
from clients.evaluation.evaluator import Choices, Evaluator
from clients.evaluation.kinds import By
from clients.evaluation.normalisation import Normalisation
from clients.evaluation.result import Evaluation
from clients.evaluation.summary import summarise
from clients.evaluation.utterance import Utterance

WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=5)
QUICK = Choices(resamples=100, worst=3)


@st.composite
def utterances(draw: st.DrawFn, systems: int = 2) -> list[Utterance]:
    """Some utterances with lists and rankings of their own, the first with a word in its reference."""
    out = []
    for number in range(draw(st.integers(1, 6))):
        hypotheses = draw(st.lists(WORDS, min_size=1, max_size=7))
        rankings = [draw(st.permutations(range(len(hypotheses)))) for _ in range(systems)]
        reference = draw(WORDS) if number else ["a", *draw(WORDS)]
        speaker = draw(st.sampled_from([None, "s1", "s2"]))
        out.append(Utterance(f"u{number}", reference, hypotheses, rankings, speaker))
    return out


def evaluated(given_utterances: list[Utterance], choices: Choices = QUICK) -> Evaluation:
    evaluator = Evaluator(choices)
    for number in range(len(given_utterances[0].rankings)):
        evaluator.add_system(f"system {number}")
    for utterance in given_utterances:
        evaluator.add(utterance)
    return summarise(evaluator, set_name="test", normalised=True)


def errors(utterance: Utterance, index: int) -> int:
    return count_errors(utterance.reference, utterance.hypotheses[index]).errors


@given(utterances())
@settings(deadline=None, max_examples=50)
def test_systems_are_their_first_ranked_hypotheses(given_utterances: list[Utterance]) -> None:
    result = evaluated(given_utterances)
    for place, system in enumerate(result.systems[:-1]):
        chosen = [u.rankings[place - 1][0] if place else 0 for u in given_utterances]
        counts = [count_errors(u.reference, u.hypotheses[i]) for u, i in zip(given_utterances, chosen, strict=True)]
        assert system.counts == sum(counts, ErrorCounts())
    best = sum(min(errors(u, i) for i in range(len(u.hypotheses))) for u in given_utterances)
    assert result.systems[-1].counts.errors == best


@given(utterances())
@settings(deadline=None, max_examples=50)
def test_the_oracle_curve_is_the_best_of_the_first_n_of_each_ranking(given_utterances: list[Utterance]) -> None:
    result = evaluated(given_utterances)
    for place, oracle in enumerate(result.oracles):
        rankings = [u.rankings[place - 1] if place else range(len(u.hypotheses)) for u in given_utterances]
        assert oracle.curve[-1].depth == result.depth
        for point in oracle.curve:
            best = [
                min(errors(u, i) for i in list(ranking)[: point.depth])
                for u, ranking in zip(given_utterances, rankings, strict=True)
            ]
            assert point.errors == sum(best)
            assert point.wer == pytest.approx(100 * sum(best) / result.systems[0].counts.words)
        ranks = []
        for u, ranking in zip(given_utterances, rankings, strict=True):
            by_rank = [errors(u, i) for i in ranking]
            ranks.append(1 + by_rank.index(min(by_rank)))
        assert oracle.mean_rank == pytest.approx(sum(ranks) / len(ranks))
        assert sum(group.utterances for group in oracle.ranks) == len(ranks)


@given(utterances(1))
@settings(deadline=None)
def test_a_curve_falls_from_the_systems_wer_to_the_oracles(given_utterances: list[Utterance]) -> None:
    result = evaluated(given_utterances)
    for oracle, system in zip(result.oracles, result.systems[:-1], strict=True):
        assert oracle.curve[0].errors == system.counts.errors
        assert oracle.curve[-1].errors == result.systems[-1].counts.errors
        assert all(one.errors >= other.errors for one, other in pairwise(oracle.curve))


@given(utterances())
@settings(deadline=None, max_examples=50)
def test_what_rescoring_did_adds_up(given_utterances: list[Utterance]) -> None:
    result = evaluated(given_utterances)
    first = result.systems[0].counts.errors
    for system in result.rescored:
        effect = system.effect
        assert effect is not None
        assert effect.helped + effect.hurt + effect.as_many + effect.unchanged == len(given_utterances)
        assert first - effect.errors_removed + effect.errors_added == system.counts.errors


def test_what_rescoring_did_by_hand() -> None:
    # 2 errors to 1, 0 to 1, other words with 1 error, the same words; the oracle is without error but for the third
    rows = [
        Utterance("helped", ["a", "b"], [["x", "y"], ["a", "y"], ["a", "b"]], [[1, 0, 2]]),
        Utterance("hurt", ["a"], [["a"], ["x"]], [[1, 0]]),
        Utterance("as many", ["a"], [["x"], ["y"]], [[1, 0]]),
        Utterance("same words", ["a"], [["a"], ["a"]], [[1, 0]]),
    ]
    effect = evaluated(rows).rescored[0].effect
    assert effect is not None
    assert (effect.helped, effect.hurt, effect.as_many, effect.unchanged) == (1, 1, 1, 1)
    assert (effect.errors_removed, effect.errors_added) == (1, 1)
    # first pass 3 errors, rescored 3, oracle 1: nothing of the gap of 2
    assert effect.gap_closed_percent == 0.0


def test_without_a_gap_to_the_oracle_no_share_of_it_is_closed() -> None:
    effect = evaluated([Utterance("u", ["a"], [["a"], ["b"]], [[0, 1]])]).rescored[0].effect
    assert effect is not None
    assert effect.gap_closed_percent is None


@given(utterances())
@settings(deadline=None, max_examples=50)
def test_groups_add_up_to_the_whole(given_utterances: list[Utterance]) -> None:
    result = evaluated(given_utterances)
    for breakdown in result.breakdowns:
        for place, system in enumerate(result.systems):
            assert sum((group.counts[place] for group in breakdown.groups), ErrorCounts()) == system.counts


def test_groups_by_hand() -> None:
    rows = [
        Utterance("u1", ["a"], [["x"]], speaker="t", session="m"),
        Utterance("u2", list("abcdef"), [list("abcdef")], speaker="s", session="m"),
        Utterance("u3", ["b"], [["b"]], session="n"),
    ]
    groups = {
        b.by: [(g.name, g.counts[0].errors, g.counts[0].words) for g in b.groups] for b in evaluated(rows).breakdowns
    }
    assert groups == {
        By.SPEAKER: [("s", 0, 6), ("t", 1, 1), (None, 0, 1)],
        By.SESSION: [("m", 1, 7), ("n", 0, 1)],
        By.LENGTH: [("1-5", 1, 2), ("6-10", 0, 6)],
        By.POSITION: [("1-10", 1, 8)],
    }


def test_positions_are_counted_in_each_session() -> None:
    rows = [Utterance(f"{s}{i}", ["a"], [["a"]], session=s) for s in "mn" for i in range(12)]
    (groups,) = [b.groups for b in evaluated(rows).breakdowns if b.by == By.POSITION]
    assert [(group.name, group.counts[0].utterances) for group in groups] == [("1-10", 20), ("11-30", 4)]


def test_without_speakers_and_sessions_there_are_no_such_groups() -> None:
    assert [b.by for b in evaluated([Utterance("u", ["a"], [["a"]])]).breakdowns] == [By.LENGTH, By.POSITION]


@given(utterances(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=50)
def test_systems_may_come_one_after_the_other_in_any_order(rows: list[Utterance], shuffle: random.Random) -> None:
    together = evaluated(rows)
    evaluator = Evaluator(QUICK)
    for number in range(2):
        system = evaluator.add_system(f"system {number}")
        for row in rows:
            evaluator.add(replace(row, rankings=[row.rankings[number]]), [system])
        rows = shuffle.sample(rows, len(rows))
    apart = summarise(evaluator, set_name="test", normalised=True)
    assert apart.comparisons == together.comparisons
    assert apart.oracles == together.oracles
    assert [s.counts for s in apart.systems] == [s.counts for s in together.systems]
    assert [s.effect for s in apart.systems] == [s.effect for s in together.systems]


def test_the_worst_come_with_the_alignments_of_first_pass_system_and_oracle() -> None:
    row = Utterance("u", ["a", "b"], [["x", "y"], ["a", "y"], ["a", "b"]], [[1, 0, 2]], "s")
    (worst,) = evaluated([row]).rescored[0].worst
    assert (worst.utterance_id, worst.speaker, worst.errors) == ("u", "s", 1)
    assert {name: a.operations for name, a in worst.alignments.items()} == {
        "first pass": "SS",
        "system 0": "CS",
        "oracle": "CC",
    }


def test_normalisation_is_done_to_both_sides_and_the_errors_before_it_are_told() -> None:
    row = Utterance("u", ["Yes,", "uh", "no"], [["yes", "no"], ["Yes,", "uh", "so"]], [[1, 0]])
    choices = replace(
        QUICK, normalisation=Normalisation(None, lowercase=True, strip_punctuation=True, dropped=frozenset({"uh"}))
    )
    first, rescored, oracle = evaluated([row], choices).systems
    assert [(s.counts.errors, s.counts.words) for s in (first, rescored, oracle)] == [(0, 2), (1, 2), (0, 2)]
    # before: "Yes, uh no" against "yes no" 2 errors, against "Yes, uh so" 1, of 3 words
    before = [s.before for s in (first, rescored, oracle)]
    assert [(b.errors, b.words) for b in before if b] == [(2, 3), (1, 3), (1, 3)]


def test_without_a_normalisation_there_is_no_before() -> None:
    assert [s.before for s in evaluated([Utterance("u", ["A"], [["a"]])]).systems] == [None, None]


def test_holms_correction_is_over_all_comparisons() -> None:
    rows = [Utterance(f"u{i}", ["a", "b"], [["a", "x"], ["a", "b"]], [[1, 0], [1, 0]]) for i in range(9)]
    comparisons = evaluated(rows).comparisons
    assert [(c.system, c.against) for c in comparisons] == [
        ("system 0", "first pass"),
        ("system 1", "first pass"),
        ("system 1", "system 0"),
    ]
    p = 2 / 101  # better on every resample of 100
    assert [c.bootstrap.p_value for c in comparisons] == pytest.approx([p, p, 1.0])
    assert [c.bootstrap_p_corrected for c in comparisons] == pytest.approx([3 * p, 3 * p, 1.0])


def test_memory_of_an_utterance_does_not_grow_with_its_list() -> None:
    def numbers(depth: int) -> int:
        evaluator = Evaluator(QUICK)
        evaluator.add_system("s")
        evaluator.add(Utterance("u", ["a", "b"], [["a", str(i)] for i in range(depth)], [range(depth)]))
        return sum(len(t.slots) + len(t.substitutions) + len(t.best_rank) for t in evaluator.tallies())

    assert numbers(2) == numbers(500)


@pytest.mark.parametrize("ranking", [[0], [0, 0], [1, 2], [0, 1, 2]])
def test_a_ranking_that_is_no_permutation_is_refused_by_name(ranking: list[int]) -> None:
    with pytest.raises(EvaluationError, match="utterance 'u': a ranking must hold the indices 0 to 1"):
        Utterance("u", ["a"], [["a"], ["b"]], [ranking])


def test_an_empty_list_is_refused_by_name() -> None:
    with pytest.raises(EvaluationError, match="utterance 'u': the list is empty"):
        Utterance("u", ["a"], [])


def test_misuse_is_refused_by_name() -> None:
    evaluator = Evaluator(QUICK)
    system = evaluator.add_system("s")
    with pytest.raises(EvaluationError, match="two systems are called 's'"):
        evaluator.add_system("s")
    with pytest.raises(EvaluationError, match="two systems are called 'oracle'"):
        evaluator.add_system("oracle")
    with pytest.raises(EvaluationError, match="utterance 'u': 0 rankings for 1 systems"):
        evaluator.add(Utterance("u", ["a"], [["a"]]))
    evaluator.add(Utterance("u", ["a"], [["a"]], [[0]]))
    with pytest.raises(EvaluationError, match="utterance 'u' came before"):
        evaluator.add(Utterance("u", ["a"], [["a"]], [[0]]), [system])
    evaluator.add(Utterance("v", ["a"], [["a"]]), [])
    with pytest.raises(EvaluationError, match="s: lacks utterances: 'v'"):
        summarise(evaluator, set_name="test", normalised=True)


def test_nothing_to_evaluate_is_an_error() -> None:
    with pytest.raises(EvaluationError, match="no utterance"):
        summarise(Evaluator(QUICK), set_name="test", normalised=True)


@given(utterances(), st.data())
@settings(deadline=None, max_examples=50)
def test_an_answer_of_its_own_counts_as_it_stands_and_leaves_ranking_and_oracle_alone(
    given_utterances: list[Utterance], drawn: st.DataObject
) -> None:
    answered = [replace(u, answers=[None, drawn.draw(WORDS)]) for u in given_utterances]
    result, without = evaluated(answered), evaluated(given_utterances)
    expected = sum((count_errors(u.reference, u.answers[1] or []) for u in answered), ErrorCounts())
    assert result.systems[2].counts == expected
    assert [result.systems[i].counts for i in (0, 1, 3)] == [without.systems[i].counts for i in (0, 1, 3)]
    assert result.oracles == without.oracles


def test_as_many_answers_as_rankings() -> None:
    with pytest.raises(EvaluationError, match="'u': 1 answers for 2 rankings"):
        Utterance("u", ["a"], [["a"]], [[0], [0]], answers=[["a"]])
