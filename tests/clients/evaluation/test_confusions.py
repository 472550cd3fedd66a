from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from clients.evaluation.alignment import align
from clients.evaluation.confusions import Confusion, ConfusionTally
from clients.evaluation.worst import WorstTally, WorstUtterance


def test_each_kind_is_counted_and_ordered_by_frequency_then_by_words() -> None:
    tally = ConfusionTally()
    for reference, hypothesis in (("a b", "a x"), ("b", "x"), ("c", "y"), ("a", ""), ("", "z"), ("", "q"), ("d", "d")):
        tally.add(align(reference.split(), hypothesis.split()))
    found = tally.most_frequent(5)
    assert found.substitutions == (Confusion("b", "x", 2), Confusion("c", "y", 1))
    assert found.deletions == (Confusion("a", None, 1),)
    assert found.insertions == (Confusion(None, "q", 1), Confusion(None, "z", 1))
    assert found.short_by_at_most == 0


def test_no_more_are_told_than_asked_for() -> None:
    tally = ConfusionTally()
    tally.add(align(list("abc"), list("xyz")))
    assert len(tally.most_frequent(2).substitutions) == 2


@given(st.lists(st.sampled_from("abcdefghijkl"), max_size=200), st.integers(2, 8))
def test_with_too_many_kinds_counts_are_short_by_no_more_than_is_said(words: list[str], most: int) -> None:
    tally = ConfusionTally(most)
    for word in words:
        tally.add(align([word], []))
    found = tally.most_frequent(100)
    counted = {confusion.reference: confusion.count for confusion in found.deletions}
    assert len(counted) <= most
    for word, true in Counter(words).items():
        assert true - found.short_by_at_most <= counted.get(word, 0) <= true


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(0, 6))
def test_the_worst_are_kept_worst_first_and_of_equal_ones_the_earlier(errors: list[int], most: int) -> None:
    tally = WorstTally(most)
    for row, number in enumerate(errors):
        if tally.wants(number):
            tally.add(row, WorstUtterance(str(row), None, number, {}))
    expected = sorted((-number, row) for row, number in enumerate(errors) if number)[:most]
    assert [(u.errors, u.utterance_id) for u in tally.worst_first()] == [(-n, str(row)) for n, row in expected]
