import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.confusion_network import NOTHING, ConfusionNetwork, GrowingNetwork
from models.outcomes import Outcomes
from models.word_errors import word_errors

LN_2 = math.log(2)
Words = tuple[str, ...]
SHARES = st.lists(
    st.tuples(st.lists(st.sampled_from("abc"), max_size=5).map(tuple), st.integers(-4, 0)), min_size=1, max_size=6
)


def outcomes_of(hypotheses: Sequence[tuple[Words, float]]) -> Outcomes:
    return Outcomes.merged([words for words, _ in hypotheses], np.array([float(t) for _, t in hypotheses]), 1.0)


def outcomes_with(shares: dict[str, float]) -> Outcomes:
    return outcomes_of([(tuple(text.split()), math.log(share)) for text, share in shares.items()])


def rows(network: ConfusionNetwork) -> list[dict[str, float]]:
    """Each slot as one mapping, - for no word, what nobody says left out."""
    return [
        {word: round(share, 9) for word, share in {**slot.words, "-": slot.deletion}.items() if share}
        for slot in network.slots
    ]


def test_substitutions_and_deletions_by_hand() -> None:
    network = ConfusionNetwork.build(outcomes_with({"a b c": 0.5, "a x c": 0.3, "a c": 0.2}))
    assert rows(network) == [{"a": 1.0}, {"b": 0.5, "x": 0.3, "-": 0.2}, {"c": 1.0}]
    assert network.consensus() == [("a", 1.0), ("b", pytest.approx(0.5)), ("c", 1.0)]


def test_an_insertion_opens_a_slot_that_the_others_leave_empty() -> None:
    network = ConfusionNetwork.build(outcomes_with({"a c": 0.6, "a b c": 0.4}))
    assert rows(network) == [{"a": 1.0}, {"b": 0.4, "-": 0.6}, {"c": 1.0}]
    assert [word for word, _ in network.consensus()] == ["a", "c"]


def test_words_inserted_twice_meet_in_one_slot() -> None:
    network = ConfusionNetwork.build(outcomes_with({"a c": 0.4, "a b c": 0.35, "a b d": 0.25}))
    assert rows(network) == [{"a": 1.0}, {"b": 0.6, "-": 0.4}, {"c": 0.75, "d": 0.25}]
    assert [word for word, _ in network.consensus()] == ["a", "b", "c"]


def test_an_insertion_at_either_end() -> None:
    network = ConfusionNetwork.build(outcomes_with({"b": 0.5, "a b": 0.3, "b c": 0.2}))
    assert rows(network) == [{"a": 0.3, "-": 0.7}, {"b": 1.0}, {"c": 0.2, "-": 0.8}]


def test_silence_against_words() -> None:
    network = ConfusionNetwork.build(outcomes_with({"": 0.6, "a b": 0.4}))
    assert rows(network) == [{"a": 0.4, "-": 0.6}, {"b": 0.4, "-": 0.6}]
    assert network.consensus() == []
    assert ConfusionNetwork.build(outcomes_with({"": 1.0})).slots == ()


def test_a_tie_goes_to_what_the_more_probable_outcome_says() -> None:
    # 0.5 say b and 0.25 + 0.25 say x, in the last slot.
    network = ConfusionNetwork.build(outcomes_of([(("b",), 0.0), (("y", "x"), -LN_2), (("z", "x"), -LN_2)]))
    assert rows(network) == [{"y": 0.25, "z": 0.25, "-": 0.5}, {"b": 0.5, "x": 0.5}]
    assert network.slots[1].best == "b"
    # Equally probable outcomes come in the order of their words, whatever the order of the list.
    for order in itertools.permutations(("a", "b")):
        assert ConfusionNetwork.build(outcomes_with(dict.fromkeys(order, 0.5))).slots[0].best == "a"


def test_a_pivot_as_good_as_impossible_is_still_aligned_word_by_word() -> None:
    outcomes = outcomes_of([(("b",), 0.0), (("b", "a"), -1000.0)])
    assert ConfusionNetwork.build(outcomes, 1).pivot_posteriors(("b", "a")) == pytest.approx([1, 0], abs=1e-9)


@given(SHARES)
def test_the_posteriors_of_each_slot_sum_to_1(hypotheses: list[tuple[Words, float]]) -> None:
    for slot in ConfusionNetwork.build(outcomes_of(hypotheses)).slots:
        assert math.fsum([*slot.words.values(), slot.deletion]) == pytest.approx(1, abs=1e-12)
        assert all(0 <= share <= 1 for share in (*slot.words.values(), slot.deletion))
        assert list(slot.words.values()) == sorted(slot.words.values(), reverse=True)


@given(SHARES)
def test_every_word_of_every_outcome_stands_in_the_network_once(hypotheses: list[tuple[Words, float]]) -> None:
    outcomes = outcomes_of(hypotheses)
    network = ConfusionNetwork.build(outcomes)
    for word in "abc":
        said = math.fsum(p * words.count(word) for p, words in zip(outcomes.posteriors, outcomes.words, strict=True))
        assert math.fsum(slot.words.get(word, 0.0) for slot in network.slots) == pytest.approx(said, abs=1e-9)


@given(SHARES, st.integers(0, 5))
def test_each_word_of_the_pivot_has_a_slot_in_its_order(hypotheses: list[tuple[Words, float]], number: int) -> None:
    outcomes = outcomes_of(hypotheses)
    pivot = number % len(outcomes.words)
    network = ConfusionNetwork.build(outcomes, pivot)
    assert list(network.pivot) == sorted(set(network.pivot))
    shares = network.pivot_posteriors(outcomes.words[pivot])
    assert len(shares) == len(outcomes.words[pivot])
    assert all(outcomes.posteriors[pivot] - 1e-9 <= share <= 1 for share in shares)


@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), max_size=6))
def test_two_outcomes_are_aligned_with_the_fewest_errors(one: list[str], other: list[str]) -> None:
    if one == other:
        return
    network = ConfusionNetwork.build(outcomes_of([(tuple(one), 0.0), (tuple(other), -1.0)]))
    # A slot on which the two agree holds one thing, any other two.
    disagreeing = sum(len(row) > 1 for row in rows(network))
    assert disagreeing == word_errors(one, [other])[0]


@given(SHARES)
def test_the_network_foretells_no_fewer_errors_than_there_are(hypotheses: list[tuple[Words, float]]) -> None:
    # Each outcome is a path, and its alignment with the consensus along the slots is one of all alignments.
    outcomes = outcomes_of(hypotheses)
    network = ConfusionNetwork.build(outcomes)
    consensus = [word for word, _ in network.consensus()]
    along = math.fsum(1 - max([*slot.words.values(), slot.deletion]) for slot in network.slots)
    errors = word_errors(consensus, outcomes.words)
    assert along >= math.fsum(outcomes.posteriors * errors) - 1e-9


def every_cost(slots: Sequence[dict[int, int]], whole: int, codes: Sequence[int]) -> Iterator[int]:
    """The cost of each way to align words with slots."""
    if not slots and not codes:
        yield 0
    if slots and codes:
        yield from (whole - slots[0].get(codes[0], 0) + rest for rest in every_cost(slots[1:], whole, codes[1:]))
    if slots:
        yield from (whole - slots[0].get(NOTHING, 0) + rest for rest in every_cost(slots[1:], whole, codes))
    if codes:
        yield from (whole + rest for rest in every_cost(slots, whole, codes[1:]))


CODES = st.lists(st.integers(0, 3), max_size=4)


@given(st.lists(st.tuples(CODES, st.integers(1, 4)), min_size=1, max_size=3), CODES)
def test_no_alignment_is_cheaper_than_the_one_made(outcomes: list[tuple[list[int], int]], codes: list[int]) -> None:
    network = GrowingNetwork()
    for said, mass in outcomes:
        network.add(said, mass)
    before, mass = dict(zip(network.order, network.slots(), strict=True)), network.mass
    cheapest = min(every_cost(list(before.values()), mass, codes))
    assert network.add(codes, 1) == cheapest
    paid, read = 0, []
    for slot, now in zip(network.order, network.slots(), strict=True):
        was = before.get(slot, {NOTHING: mass})
        (code,) = (code for code in now if now[code] != was.get(code, 0))
        assert now == {**was, code: was.get(code, 0) + 1}
        paid += mass - was.get(code, 0) if slot in before else mass
        read.append(code)
    assert paid == cheapest
    assert [code for code in read if code != NOTHING] == codes
    assert [slot for slot in network.order if slot in before] == list(before)
