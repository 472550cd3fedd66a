import math
import tracemalloc
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.confidence import ConfidenceMap
from models.decision import Decision, Verdict, decide
from models.errors import InvalidOptionError
from models.nbest import NBest
from models.outcomes import Outcomes
from models.ranking import RescoredList
from models.rescoring import Rescorer
from models.score import Weights, posteriors, rank
from models.wire import result_to_json

Words = tuple[str, ...]

HYPOTHESES = st.lists(
    st.tuples(st.lists(st.sampled_from("abc"), max_size=4).map(tuple), st.integers(-6, 0)), min_size=1, max_size=7
)
MBR, CONSENSUS = Decision("mbr"), Decision("consensus")

# No two positions go wrong together, so that the best words of each make a text that nobody proposed.
SPREAD = {"a x c": 0.4, "a b y": 0.3, "z b c": 0.3}


@cache
def distance(one: Words, other: Words) -> int:
    """Word errors by their recursive definition."""
    if not one or not other:
        return len(one) + len(other)
    return min(
        distance(one[1:], other[1:]) + (one[0] != other[0]),
        distance(one[1:], other) + 1,
        distance(one, other[1:]) + 1,
    )


def risk_by_definition(candidate: Words, shares: dict[Words, float]) -> float:
    return math.fsum(share * distance(candidate, words) for words, share in shares.items())


def shares_by_definition(hypotheses: Sequence[tuple[Words, float]], scale: float) -> dict[Words, float]:
    """Each text once, with the softmax of its best total."""
    best: dict[Words, float] = {}
    for words, total in hypotheses:
        best[words] = max(total, best.get(words, -math.inf))
    whole = math.fsum(math.exp(scale * total) for total in best.values())
    return {words: math.exp(scale * total) / whole for words, total in best.items()}


def decided(hypotheses: Sequence[tuple[Words, float]], decision: Decision, scale: float = 1.0) -> Verdict:
    return decide([words for words, _ in hypotheses], np.array([float(t) for _, t in hypotheses]), scale, decision)


def with_shares(shares: dict[str, float]) -> list[tuple[Words, float]]:
    """Hypotheses of known posteriors under a posterior scale of 1."""
    return [(tuple(text.split()), math.log(share)) for text, share in shares.items()]


@given(HYPOTHESES, st.sampled_from([0.0, 0.3, 1.0, 5.0]))
def test_expected_errors_are_those_of_the_definition(hypotheses: list[tuple[Words, float]], scale: float) -> None:
    expected = decided(hypotheses, MBR, scale).expected_errors
    shares = shares_by_definition(hypotheses, scale)
    assert expected == pytest.approx([risk_by_definition(words, shares) for words, _ in hypotheses], abs=1e-9)


@given(HYPOTHESES)
def test_mbr_ranks_by_expected_errors_then_total_then_input_order(hypotheses: list[tuple[Words, float]]) -> None:
    verdict = decided(hypotheses, MBR)
    assert verdict.expected_errors is not None
    keys = [(verdict.expected_errors[i], -hypotheses[i][1], i) for i in verdict.order]
    assert keys == sorted(keys)
    assert sorted(verdict.order) == list(range(len(hypotheses)))


@given(HYPOTHESES)
def test_no_hypothesis_has_a_smaller_risk_than_the_mbr_winner(hypotheses: list[tuple[Words, float]]) -> None:
    shares = shares_by_definition(hypotheses, 1.0)
    risks = [risk_by_definition(words, shares) for words, _ in hypotheses]
    assert risks[decided(hypotheses, MBR).order[0]] == pytest.approx(min(risks), abs=1e-9)


def ranked_by(hypotheses: Sequence[tuple[Words, float]], verdict: Verdict) -> list[tuple[float, float]]:
    """What the ranking was made by, best first."""
    errors = verdict.expected_errors or [0.0] * len(hypotheses)
    return [(errors[i], hypotheses[i][1]) for i in verdict.order]


@given(HYPOTHESES, st.randoms(use_true_random=False))
def test_permuting_a_list_changes_nothing_but_the_order_of_ties(
    hypotheses: list[tuple[Words, float]], draw: Any
) -> None:
    turned = list(hypotheses)
    draw.shuffle(turned)
    for rule in (Decision("total", True), Decision("mbr", True), Decision("consensus", True)):
        one, other = decided(hypotheses, rule), decided(turned, rule)
        # Not nearly equal: the very same numbers.
        assert one.consensus == other.consensus
        assert ranked_by(hypotheses, one) == ranked_by(turned, other)
        if hypotheses[one.order[0]][0] == turned[other.order[0]][0]:
            assert one.word_confidences == other.word_confidences


@given(HYPOTHESES, st.data())
def test_a_repeated_hypothesis_changes_nothing(hypotheses: list[tuple[Words, float]], data: st.DataObject) -> None:
    words, total = data.draw(st.sampled_from(hypotheses))
    again = [*hypotheses, (words, total - data.draw(st.integers(0, 2)))]
    for rule in (Decision("mbr", True), Decision("consensus", True)):
        once, twice = decided(hypotheses, rule), decided(again, rule)
        assert [i for i in twice.order if i < len(hypotheses)] == once.order
        assert twice.consensus == once.consensus
        assert twice.word_confidences == once.word_confidences
        if once.expected_errors is not None and twice.expected_errors is not None:
            assert twice.expected_errors[:-1] == once.expected_errors


@given(HYPOTHESES)
def test_by_total_and_with_a_consensus_the_ranking_is_the_one_by_total(hypotheses: list[tuple[Words, float]]) -> None:
    order = rank(np.array([float(total) for _, total in hypotheses]))
    for rule in (Decision(), Decision("total", True), CONSENSUS):
        assert decided(hypotheses, rule).order == order


@given(HYPOTHESES, st.integers(0, 6))
def test_where_one_hypothesis_has_all_the_posterior_every_rule_chooses_it(
    hypotheses: list[tuple[Words, float]], place: int
) -> None:
    hypotheses = [*hypotheses[:place], (("a", "b"), 1000.0), *hypotheses[place:]]
    for rule in (Decision(), MBR, CONSENSUS):
        verdict = decided(hypotheses, rule)
        assert hypotheses[verdict.order[0]][0] == ("a", "b")
    assert verdict.consensus is not None
    assert verdict.consensus.word_confidences.words == ("a", "b")
    assert verdict.consensus.word_confidences.posteriors == (1.0, 1.0)
    assert verdict.consensus.expected_errors == 0


@given(HYPOTHESES, st.sampled_from([0.1, 1.0, 20.0]))
def test_the_merged_posteriors_are_those_of_the_ranking(hypotheses: list[tuple[Words, float]], scale: float) -> None:
    texts, total = [words for words, _ in hypotheses], np.array([float(t) for _, t in hypotheses])
    outcomes = Outcomes.merged(texts, total, scale)
    merged = np.bincount(outcomes.of, posteriors(total, scale, texts), len(outcomes.words))
    assert outcomes.posteriors == pytest.approx(merged, abs=1e-11)
    assert [outcomes.words[i] for i in outcomes.of] == texts


def test_mbr_by_hand_prefers_the_text_in_the_middle() -> None:
    # Of "the cat sat" (0.4), "a cat sad" (0.3) and "the cat sad" (0.3) the last is one word from either of the others:
    # 0.4 + 0.3 = 0.7. The first pays 2 * 0.3 + 1 * 0.3 = 0.9, the second 2 * 0.4 + 1 * 0.3 = 1.1.
    verdict = decided(with_shares({"the cat sat": 0.4, "a cat sad": 0.3, "the cat sad": 0.3}), MBR)
    assert verdict.order == [2, 0, 1]
    assert verdict.expected_errors == pytest.approx([0.9, 1.1, 0.7])


def test_equal_risks_are_told_apart_by_total() -> None:
    # Two hypotheses alone: each is one error from the other, but not from itself.
    verdict = decided(with_shares({"a": 0.5, "b": 0.5}), MBR)
    assert verdict.order == [0, 1]
    # Four corners of a square, two of which are as good as impossible: all pay exactly 1.
    verdict = decided([(("a", "a"), -900.0), (("a", "b"), 0.0), (("b", "a"), 0.0), (("b", "b"), -800.0)], MBR)
    assert verdict.expected_errors == [1.0, 1.0, 1.0, 1.0]
    assert verdict.order == [1, 2, 3, 0]


def test_a_consensus_by_hand_is_a_text_that_nobody_proposed() -> None:
    # Slots: a 0.7, z 0.3; b 0.6, x 0.4; c 0.7, y 0.3. Each hypothesis is one word from "a b c".
    consensus = decided(with_shares(SPREAD), CONSENSUS).consensus
    assert consensus is not None
    assert consensus.word_confidences.words == ("a", "b", "c")
    assert consensus.word_confidences.posteriors == pytest.approx((0.7, 0.6, 0.7))
    assert consensus.expected_errors == pytest.approx(1.0)
    # The best of the list, "a x c", pays 2 * 0.3 + 2 * 0.3.
    expected = decided(with_shares(SPREAD), MBR).expected_errors
    assert expected is not None
    assert min(expected) == pytest.approx(1.2)


@given(HYPOTHESES)
def test_the_expected_errors_of_the_consensus_are_those_of_the_definition(
    hypotheses: list[tuple[Words, float]],
) -> None:
    consensus = decided(hypotheses, CONSENSUS).consensus
    assert consensus is not None
    risk = risk_by_definition(consensus.word_confidences.words, shares_by_definition(hypotheses, 1.0))
    assert consensus.expected_errors == pytest.approx(risk, abs=1e-9)


def test_the_words_of_the_winner_by_total_have_their_posteriors() -> None:
    found = decided(with_shares({"a b c": 0.5, "a x c": 0.3, "a c": 0.2}), Decision(word_confidences=True))
    assert found.word_confidences is not None
    assert found.word_confidences.words == ("a", "b", "c")
    assert found.word_confidences.posteriors == pytest.approx((1.0, 0.5, 1.0))
    assert found.word_confidences.confidences == found.word_confidences.posteriors
    assert not found.word_confidences.calibrated


def test_a_winner_without_posterior_has_the_support_of_the_others() -> None:
    # "a b c" is as good as impossible, and still one word from each of the others.
    hypotheses = [*with_shares(SPREAD), (("a", "b", "c"), -1000.0)]
    found = decided(hypotheses, Decision("mbr", True))
    assert found.order[0] == 3
    assert found.word_confidences is not None
    assert found.word_confidences.posteriors == pytest.approx((0.7, 0.6, 0.7))


def test_a_calibration_maps_the_posteriors_and_is_said() -> None:
    # Half the log odds: of 0.9, ln 9, become ln 3, that is 0.75.
    decision = Decision("consensus", True, ConfidenceMap(0.0, 0.5))
    verdict = decided(with_shares({"a": 0.9, "b": 0.1}), decision)
    assert verdict.consensus is not None
    for found in (verdict.word_confidences, verdict.consensus.word_confidences):
        assert found is not None
        assert found.posteriors == pytest.approx((0.9,))
        assert found.confidences == pytest.approx((0.75,))
        assert found.calibrated


@pytest.mark.parametrize("rule", ["total", "mbr", "consensus"])
@pytest.mark.parametrize("words", [(), ("a",), ("a", "b", "a")])
def test_a_list_of_one_is_itself_and_certain(rule: Any, words: Words) -> None:
    verdict = decided([(words, -3.0)], Decision(rule, True))
    assert verdict.order == [0]
    assert verdict.word_confidences is not None
    assert (verdict.word_confidences.words, verdict.word_confidences.posteriors) == (words, (1.0,) * len(words))
    if verdict.consensus is not None:
        assert verdict.consensus.word_confidences == verdict.word_confidences
        assert verdict.consensus.expected_errors == 0


def test_totals_that_differ_by_more_than_a_number_can_hold_are_told_apart() -> None:
    verdict = decided([(("a",), -1.7e308), (("b",), 1.7e308)], Decision("mbr", True))
    assert verdict.order == [1, 0]
    assert verdict.expected_errors == [1.0, 0.0]


def test_a_rule_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(InvalidOptionError, match="decision is 'rover'; it must be one of total, mbr, consensus"):
        Decision("rover")  # type: ignore[arg-type]  # as from a file


def test_a_list_of_2000_takes_little_memory() -> None:
    draw = np.random.default_rng(1)
    hypotheses = [(tuple(map(str, draw.integers(0, 30, 12))), float(-number)) for number in range(2000)]
    tracemalloc.start()
    try:
        decided(hypotheses, MBR, 0.001)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # All distances at once would take 32 MB as whole numbers of 64 bits.
    assert peak < 20 * 2**20


TEXTS = ("good morning", "good day", "day", "good morning day", "")


@pytest.mark.parametrize("rule", ["mbr", "consensus"])
def test_as_many_hypotheses_come_out_as_went_in(rescorer: Rescorer, make: Any, rule: Any) -> None:
    nbest: NBest = make.nbest("u", *((text, -9.0 - number) for number, text in enumerate(TEXTS)))
    weights = Weights({"ngram": 0.5, "rnn": 0.5}, lm_scale=1.0, posterior_scale=0.5)
    plain, decided_on = (
        rescorer.rescore([rescorer.prepare(nbest, Decision(chosen, True))], [weights])[0] for chosen in ("total", rule)
    )
    assert isinstance(plain, RescoredList)
    assert isinstance(decided_on, RescoredList)
    assert {h.index: (h.text, h.total) for h in decided_on.ranking} == {
        h.index: (h.text, h.total) for h in plain.ranking
    }
    assert (decided_on.consensus is None) == (rule == "mbr")
    assert [h.word_confidences is None for h in decided_on.ranking] == [False, True, True, True, True]
    assert all((h.expected_errors is None) == (rule != "mbr") for h in decided_on.ranking)


def test_a_compact_result_keeps_what_was_decided(rescorer: Rescorer, make: Any) -> None:
    nbest: NBest = make.nbest("u", *((text, -9.0 - number) for number, text in enumerate(TEXTS)))
    weights = Weights({"ngram": 1.0}, lm_scale=1.0, posterior_scale=0.5)
    for rule in ("mbr", "consensus"):
        (result,) = rescorer.rescore([rescorer.prepare(nbest, Decision(rule, True))], [weights])
        assert isinstance(result, RescoredList)
        full, compact = result_to_json(result), result_to_json(result, compact=True, best_only=True)
        kept = ("index", "total", "posterior", "expected_errors", "word_confidences")
        assert compact["ranking"] == [{name: v for name, v in full["ranking"][0].items() if name in kept}]
        if rule == "consensus":
            assert compact["consensus"] == {name: v for name, v in full["consensus"].items() if name != "slots"}
