"""What the cells come to: sums by hand, and intervals against the bootstrap of `nbest evaluate`."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from clients.evaluation.bootstrap import resample
from models.evaluation_set import EvaluationSet
from models.protocols import BASE, CELLS, Cell, Pass
from models.protocols_statistics import summarise
from models.scored_lists import PreparedList
from models.vocabulary import UNK_ID

WORD = 2
LEARNT, SHUFFLED = Cell("original", "carried", "dynamic"), Cell("shuffled", "carried", "dynamic")


def set_of(words: Sequence[int], oov: Sequence[int] = ()) -> EvaluationSet:
    """Utterances whose references have so many words, so many of them outside the vocabulary."""
    unknown = list(oov) or [0] * len(words)
    lists: tuple[PreparedList, ...] = ()
    references = tuple([WORD] * (n - k) + [UNK_ID] * k for n, k in zip(words, unknown, strict=True))
    return EvaluationSet(lists, references, (), ())


def a_pass(errors: Sequence[int], nats: Sequence[float] | None = None, oov: Sequence[float] | None = None) -> Pass:
    """A pass with these errors, and these sums of ln P under both the mixture and the network."""
    zeros = np.zeros(len(errors))
    sums = zeros if nats is None else np.array(nats)
    unknown = zeros if oov is None else np.array(oov)
    names = ("mixture", "rnn")
    counts = np.array(errors)
    return Pass(np.zeros_like(counts), counts, dict.fromkeys(names, sums), dict.fromkeys(names, unknown), 0, 0, 0.0)


def test_rates_are_of_summed_counts_and_several_passes_are_their_mean() -> None:
    # base: (1 + 3) / (4 + 16); shuffled: orders of 2 and of 5 errors on 20 words
    passes = {BASE: [a_pass([1, 3])], SHUFFLED: [a_pass([1, 1]), a_pass([4, 1])]}
    found = summarise(passes, set_of([4, 16]), seed=1, resamples=100)
    assert found[BASE].wer.value == pytest.approx(20.0)
    assert found[SHUFFLED].wer.value == pytest.approx(17.5)
    assert found[SHUFFLED].wer.by_pass == pytest.approx((10.0, 25.0))
    assert found[SHUFFLED].wer.difference == pytest.approx(-2.5)


def test_perplexity_counts_sentence_ends_and_without_oov_leaves_out_the_unknown_words() -> None:
    # 2 + 3 words and two ends are 7 events, ln P -14 in all: e^2. One unknown word has -5 of it: e^(9/6)
    passes = {BASE: [a_pass([0, 0], nats=[-4.0, -10.0], oov=[0.0, -5.0])]}
    found = summarise(passes, set_of([2, 3], oov=[0, 1]), seed=1, resamples=100)[BASE]
    for source in ("mixture", "rnn"):
        assert found.perplexities[source].value == pytest.approx(math.exp(2))
        assert found.without_oov[source].value == pytest.approx(math.exp(1.5))


def test_intervals_and_p_values_are_those_of_nbest_evaluate() -> None:
    rng = np.random.default_rng(5)
    words, errors = rng.integers(0, 12, 40), rng.integers(0, 5, (2, 40))
    passes = {BASE: [a_pass(errors[0].tolist())], LEARNT: [a_pass(errors[1].tolist())]}
    found = summarise(passes, set_of(words.tolist()), seed=7, resamples=2000)[LEARNT].wer
    plain = resample(errors, words, resamples=2000, seed=7)
    interval, difference = plain.interval(1), plain.difference(1, 0)
    assert (found.interval.low, found.interval.high) == pytest.approx((interval.low, interval.high))
    assert found.difference == pytest.approx(difference.points)
    spread = found.difference_interval
    assert (spread.low, spread.high) == pytest.approx((difference.interval.low, difference.interval.high))
    assert found.p_value == pytest.approx(difference.p_value)


def test_of_two_utterances_the_interval_of_perplexity_spans_both() -> None:
    # One event each, of ln P -1 and -3: a resample has a perplexity of e, e^2 or e^3
    found = summarise({BASE: [a_pass([0, 0], nats=[-2.0, -6.0])]}, set_of([1, 1]), seed=1, resamples=1000)[BASE]
    interval = found.perplexities["mixture"].interval
    assert (interval.low, interval.high) == pytest.approx((math.e, math.e**3))


def test_copies_of_the_base_differ_by_nothing_at_all() -> None:
    # A mean of three equal numbers may differ from them in the last bit; that is no difference.
    rng = np.random.default_rng(2)
    one = a_pass(rng.integers(0, 4, 30).tolist(), nats=(-50 * rng.random(30)).tolist())
    passes = {BASE: [one], replace(BASE, order="shuffled"): [one] * 3}
    found = summarise(passes, set_of([5] * 30), seed=1, resamples=500)
    summary = found[replace(BASE, order="shuffled")]
    for measure in (summary.wer, *summary.perplexities.values(), *summary.without_oov.values()):
        spread = measure.difference_interval
        assert (measure.difference, spread.low, spread.high, measure.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_a_cell_that_is_better_everywhere_is_better_on_every_resample() -> None:
    passes = {BASE: [a_pass([2] * 20)], LEARNT: [a_pass([1] * 20)]}
    found = summarise(passes, set_of([10] * 20), seed=1, resamples=999)[LEARNT].wer
    assert (found.difference_interval.low, found.difference_interval.high) == pytest.approx((-10.0, -10.0))
    assert found.p_value == pytest.approx(2 / 1000)


def test_the_base_may_stand_anywhere_among_the_cells() -> None:
    passes = {LEARNT: [a_pass([1, 0])], BASE: [a_pass([2, 0])]}
    found = summarise(passes, set_of([5, 5]), seed=1, resamples=100)
    assert found[LEARNT].wer.difference == pytest.approx(-10.0)
    assert found[BASE].wer.difference == 0


def test_utterances_without_a_word_are_never_the_whole_of_a_resample() -> None:
    passes = {cell: [a_pass([1, 0, 0, 0])] for cell in CELLS}
    found = summarise(passes, set_of([2, 0, 0, 0]), seed=1, resamples=300)
    assert {(m.wer.interval.low, m.wer.interval.high) for m in found.values()} == {(50.0, 50.0)}


def test_more_utterances_than_are_drawn_at_once_give_the_same_interval_as_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes = {BASE: [a_pass([0, 1, 2, 3])]}
    whole = summarise(passes, set_of([4] * 4), seed=3, resamples=400)[BASE].wer
    monkeypatch.setattr("models.bootstrap._DRAWS_AT_ONCE", 12)
    assert summarise(passes, set_of([4] * 4), seed=3, resamples=400)[BASE].wer == whole
