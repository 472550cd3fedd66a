import jiwer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.errors import EvaluationError
from clients.evaluation.alignment import count_errors
from clients.evaluation.counts import CharacterCounts, ErrorCounts, kaldi_lines
from clients.evaluation.evaluator import Choices, Evaluator
from clients.evaluation.result import Evaluation
from clients.evaluation.summary import summarise
from clients.evaluation.utterance import Utterance

WORD = st.sampled_from(["a", "bb", "abc", "ab", "c"])
PAIRS = st.lists(st.tuples(st.lists(WORD, min_size=1, max_size=6), st.lists(WORD, max_size=6)), min_size=1, max_size=5)


def evaluated(*pairs: tuple[list[str], list[str]]) -> Evaluation:
    evaluator = Evaluator(Choices(resamples=100))
    for number, (reference, hypothesis) in enumerate(pairs):
        evaluator.add(Utterance(f"u{number}", reference, [hypothesis]))
    return summarise(evaluator, set_name="test", normalised=False)


def test_mer_and_wil_by_hand() -> None:
    # 4 reference words, 1 substituted, 1 deleted, 2 inserted: 2 hits, 5 hypothesis words, 6 columns
    counts = ErrorCounts(4, 1, 1, 2, 1, 1)
    assert counts.hits == 2
    assert counts.mer == pytest.approx(100 * 4 / 6)
    assert counts.wil == pytest.approx(100 * (1 - (2 / 4) * (2 / 5)))


def test_where_one_side_is_empty_all_is_lost() -> None:
    for counts in (ErrorCounts(3, 0, 3, 0, 1, 1), ErrorCounts(0, 0, 0, 3, 1, 1)):
        assert (counts.mer, counts.wil) == (100.0, 100.0)


def test_rates_of_no_word_at_all_are_errors() -> None:
    for rate in ("mer", "wil"):
        with pytest.raises(EvaluationError, match="on either side"):
            getattr(ErrorCounts(utterances=1), rate)
    with pytest.raises(EvaluationError, match="no character"):
        _ = CharacterCounts(0, 3).cer


@given(PAIRS)
def test_rates_of_summed_counts_are_those_of_jiwer(pairs: list[tuple[list[str], list[str]]]) -> None:
    references, hypotheses = [" ".join(r) for r, _ in pairs], [" ".join(h) for _, h in pairs]
    counts = sum((count_errors(*pair) for pair in pairs), ErrorCounts())
    found = jiwer.process_words(references, hypotheses)
    assert (counts.wer, counts.mer, counts.wil) == pytest.approx((100 * found.wer, 100 * found.mer, 100 * found.wil))


@given(PAIRS)
def test_the_character_error_rate_is_jiwers(pairs: list[tuple[list[str], list[str]]]) -> None:
    first = evaluated(*pairs).systems[0]
    found = jiwer.process_characters([" ".join(r) for r, _ in pairs], [" ".join(h) for _, h in pairs])
    assert first.cer.percent == pytest.approx(100 * found.cer)


def test_a_space_between_words_counts_as_a_character() -> None:
    # "ab" against "a b": one space inserted into 2 characters; as words, one substituted and one inserted of one
    first = evaluated((["ab"], ["a", "b"])).systems[0]
    assert first.cer.percent == 50.0
    assert first.wer.percent == 200.0


def test_of_one_utterance_every_interval_is_its_rate() -> None:
    first = evaluated((["a", "b", "c"], ["a", "x"])).systems[0]
    for rate in (first.wer, first.cer, first.ser, first.mer, first.wil):
        assert (rate.interval.low, rate.interval.high) == pytest.approx((rate.percent, rate.percent))


def test_every_rate_lies_in_its_interval_on_many_alike_utterances() -> None:
    rng = np.random.default_rng(1)
    pairs = [(["a", "b", "c", "d"], [str(word) for word in rng.choice(list("abcd"), 4)]) for _ in range(80)]
    first = evaluated(*pairs).systems[0]
    for rate in (first.wer, first.cer, first.ser, first.mer, first.wil):
        assert rate.interval.low <= rate.percent <= rate.interval.high


def test_resamples_without_a_recognised_word_lose_all_information_and_stay_numbers() -> None:
    # Half of the resamples of two utterances hold one of them twice: of the second no word at all is recognised.
    first = evaluated((["a"], ["a"]), (["b"], [])).systems[0]
    assert (first.wil.interval.low, first.wil.interval.high) == (0.0, 100.0)


def test_kaldis_lines_by_hand() -> None:
    assert kaldi_lines(ErrorCounts(900, 70, 20, 10, 10, 5)) == (
        "%WER 11.11 [ 100 / 900, 10 ins, 20 del, 70 sub ]",
        "%SER 50.00 [ 5 / 10 ]",
    )
