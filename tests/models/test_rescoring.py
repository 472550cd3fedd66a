import copy
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.nbest import Hypothesis, NBest
from models.normaliser import Normaliser
from models.ranking import RescoredList
from models.rescoring import Rescorer
from models.score import Weights
from models.vocabulary import Vocabulary

LN_10 = math.log(10)

EVEN = Weights({"ngram": 0.5, "rnn": 0.5}, first_pass_scale=0.5, lm_scale=3.0, word_bonus=0.25, oov_bonus=-2.0)


NOTHING = Weights({"ngram": 1.0}, acoustic_scale=0.0, lm_scale=0.0)


TEXTS = st.lists(st.sampled_from(("good", "morning", "day", "evening")), max_size=4).map(" ".join)


HYPOTHESES = st.builds(Hypothesis, TEXTS, st.integers(-20, 0).map(float), st.integers(-9, 0).map(float))


LISTS = st.lists(HYPOTHESES, min_size=1, max_size=7)


def rescore(
    rescorer: Rescorer, lists: list[NBest], weights: Weights | list[Weights] = EVEN, *, word_scores: bool = False
) -> list[RescoredList]:
    each = weights if isinstance(weights, list) else [weights] * len(lists)
    out = []
    for result in rescorer.rescore([rescorer.prepare(nbest) for nbest in lists], each, word_scores=word_scores):
        assert isinstance(result, RescoredList), result
        out.append(result)
    return out


def by_index(result: RescoredList) -> dict[int, Any]:
    return {h.index: h for h in result.ranking}


@given(LISTS)
def test_n_hypotheses_in_n_out_each_with_its_index_and_text(rescorer: Rescorer, hypotheses: list[Hypothesis]) -> None:
    (result,) = rescore(rescorer, [NBest("u", tuple(hypotheses))])
    assert sorted(h.index for h in result.ranking) == list(range(len(hypotheses)))
    assert all(h.text == hypotheses[h.index].text for h in result.ranking)


@given(LISTS)
def test_totals_fall_and_ties_keep_the_input_order(rescorer: Rescorer, hypotheses: list[Hypothesis]) -> None:
    (result,) = rescore(rescorer, [NBest("u", tuple(hypotheses))])
    assert all((-a.total, a.index) < (-b.total, b.index) for a, b in pairwise(result.ranking))


@given(st.permutations(range(5)), LISTS)
def test_permuting_a_list_permutes_its_result_and_changes_nothing_else(
    rescorer: Rescorer, order: list[int], hypotheses: list[Hypothesis]
) -> None:
    order = [i for i in order if i < len(hypotheses)] + list(range(5, len(hypotheses)))
    (result,) = rescore(rescorer, [NBest("u", tuple(hypotheses))], word_scores=True)
    (permuted,) = rescore(rescorer, [NBest("u", tuple(hypotheses[i] for i in order))], word_scores=True)
    before, after = by_index(result), by_index(permuted)
    for place, index in enumerate(order):
        same = replace(after[place], index=index, posterior=before[index].posterior)
        assert same == before[index]
        assert after[place].posterior == pytest.approx(before[index].posterior)


@given(LISTS, st.integers(0, 6), st.integers(1, 3))
def test_the_same_words_several_times_in_a_list_score_the_same(
    rescorer: Rescorer, hypotheses: list[Hypothesis], which: int, times: int
) -> None:
    again = replace(hypotheses[which % len(hypotheses)], acoustic=-3.0)
    (result,) = rescore(rescorer, [NBest("u", (*hypotheses, *[again] * times))], word_scores=True)
    alike = [h for h in result.ranking if h.words == tuple(again.text.split())]
    assert len({(h.lm, *h.word_scores.mixture) for h in alike if h.word_scores}) == 1


@given(LISTS)
def test_word_scores_sum_to_the_sentence_score_of_each_model_and_of_the_mixture(
    rescorer: Rescorer, hypotheses: list[Hypothesis]
) -> None:
    (result,) = rescore(rescorer, [NBest("u", tuple(hypotheses))], word_scores=True)
    for h in result.ranking:
        assert h.word_scores is not None
        assert h.word_scores.words == (*h.words, "</s>")
        assert sum(h.word_scores.mixture) == pytest.approx(h.lm, abs=1e-10)
        for name, values in h.word_scores.by_model.items():
            assert sum(values) == pytest.approx(h.lm_by_model[name], abs=1e-10)


@given(LISTS)
def test_the_mixture_of_each_word_is_the_logarithm_of_the_mean_probability(
    rescorer: Rescorer, hypotheses: list[Hypothesis]
) -> None:
    weights = Weights({"rnn": 0.75, "ngram": 0.25})
    (result,) = rescore(rescorer, [NBest("u", tuple(hypotheses))], weights, word_scores=True)
    for h in result.ranking:
        assert h.word_scores is not None
        ngram, rnn = (np.exp(h.word_scores.by_model[name]) for name in ("ngram", "rnn"))
        assert np.exp(h.word_scores.mixture) == pytest.approx(0.25 * ngram + 0.75 * rnn)


@given(LISTS)
def test_contributions_sum_to_the_total(rescorer: Rescorer, hypotheses: list[Hypothesis]) -> None:
    (result,) = rescore(rescorer, [NBest("u", tuple(hypotheses))])
    for h in result.ranking:
        assert sum(h.contributions.values()) == pytest.approx(h.total)


def test_the_total_of_a_whole_sentence_by_hand(rescorer: Rescorer, make: Any) -> None:
    # p(good | <s>) = -0.5, p(evening) = back-offs of "<s> good" and "good" + p(<unk>) = -0.1 - 0.25 - 2.0,
    # p(</s>) = -1.0; all log10
    lm = (-0.5 - 2.35 - 1.0) * LN_10
    weights = Weights({"ngram": 1.0}, acoustic_scale=2, first_pass_scale=0.5, lm_scale=4, word_bonus=1.5, oov_bonus=-7)
    (result,) = rescore(rescorer, [make.nbest("u", ("Good evening!", -100.0, -20.0))], weights)
    assert result.best.lm == pytest.approx(lm, abs=1e-5)
    assert result.best.total == pytest.approx(2 * -100 + 0.5 * -20 + 4 * lm + 1.5 * 2 - 7 * 1, abs=1e-4)


def test_the_old_language_model_inside_a_total_can_be_taken_out_by_its_weight(rescorer: Rescorer, make: Any) -> None:
    # The recogniser's acoustic score holds 0.5 times its own LM score; first_pass_scale -0.5 takes it out.
    whole = make.nbest("u", ("good", -10.0 + 0.5 * -8.0, -8.0), ("morning", -11.0 + 0.5 * -2.0, -2.0))
    bare = make.nbest("u", ("good", -10.0), ("morning", -11.0))
    (split,) = rescore(rescorer, [whole], replace(EVEN, first_pass_scale=-0.5))
    (expected,) = rescore(rescorer, [bare], replace(EVEN, first_pass_scale=0.0))
    assert [h.total for h in split.ranking] == pytest.approx([h.total for h in expected.ranking])


def test_an_empty_hypothesis_scores_the_sentence_end_after_its_beginning(rescorer: Rescorer, make: Any) -> None:
    # back-off of <s> + p(</s>) = -0.3 - 1.0
    (result,) = rescore(rescorer, [make.nbest("u", ("", -5.0), ("good", -5.0))], Weights({"ngram": 1.0}))
    assert by_index(result)[0].lm == pytest.approx(-1.3 * LN_10, abs=1e-6)
    assert by_index(result)[0].words == ()


def test_an_empty_hypothesis_can_win(rescorer: Rescorer, make: Any) -> None:
    (result,) = rescore(rescorer, [make.nbest("u", ("good morning", -5.0), ("<sil>", 100.0))])
    assert (result.best.index, result.best.words, result.best.contributions["word_bonus"]) == (1, (), 0.0)


def test_a_word_bonus_favours_the_longer_of_two(rescorer: Rescorer, make: Any) -> None:
    nbest = make.nbest("u", ("good", -5.0), ("good good", -5.0))
    off, on = (rescore(rescorer, [nbest], replace(NOTHING, word_bonus=bonus))[0] for bonus in (0.0, 1.0))
    assert (off.best.index, on.best.index) == (0, 1)


def test_an_unknown_word_is_less_likely_than_a_known_one(make: Any) -> None:
    # theanolm#24: both were as likely, since <unk> was frequent. Here <unk> has one share of the rare class.
    vocabulary = Vocabulary(("a", "glad", "sad"))
    model = make.elman(vocabulary, rare=("sad",), seed=2)
    rescorer = Rescorer(vocabulary, Normaliser(), {"rnn": model})
    nbest = make.nbest("u", ("a glads", -5.0), ("a sad", -5.0))
    (result,) = rescore(rescorer, [nbest], Weights({"rnn": 1.0}, acoustic_scale=0, oov_bonus=-0.1))
    entries = by_index(result)
    assert entries[0].lm_by_model["rnn"] == pytest.approx(entries[1].lm_by_model["rnn"])
    assert (entries[0].oov, entries[1].oov) == (1, 0)
    assert result.best.text == "a sad"


def test_an_n_gram_of_a_text_with_glad_prefers_it_to_an_unknown_word(train_kn: Any, make: Any) -> None:
    corpus = [("i", "am", "a", "glad", "man"), ("a", "glad", "man", "am", "i"), ("you", "are", "a", "sad", "man")]
    vocabulary = Vocabulary(tuple(sorted({word for sentence in corpus for word in sentence})))
    rescorer = Rescorer(vocabulary, Normaliser(), {"kn": train_kn(corpus)})
    (result,) = rescore(rescorer, [make.nbest("u", ("a glads", 0.0), ("a glad", 0.0))], Weights({"kn": 1.0}))
    assert result.best.text == "a glad"
    assert result.ranking[0].lm > result.ranking[1].lm


def test_an_unknown_word_that_the_audio_insists_on_can_win(rescorer: Rescorer, make: Any) -> None:
    (result,) = rescore(rescorer, [make.nbest("u", ("good morning", -500.0), ("good evening", -400.0))])
    assert result.best.text == "good evening"


def test_the_oov_bonus_is_counted_once_a_word(rescorer: Rescorer, make: Any) -> None:
    (result,) = rescore(rescorer, [make.nbest("u", ("new <unk> day", -5.0))])
    assert (result.best.oov, result.best.contributions["oov_bonus"]) == (2, -4.0)


@given(LISTS)
def test_weights_of_zero_leave_the_input_order(rescorer: Rescorer, hypotheses: list[Hypothesis]) -> None:
    (result,) = rescore(rescorer, [NBest("u", tuple(hypotheses))], NOTHING)
    assert [h.index for h in result.ranking] == list(range(len(hypotheses)))


@given(LISTS)
def test_without_the_new_model_the_order_is_that_of_the_recognisers_own_total(
    rescorer: Rescorer, hypotheses: list[Hypothesis]
) -> None:
    own = Weights({"rnn": 1.0}, acoustic_scale=1.0, first_pass_scale=2.0, lm_scale=0.0)
    (result,) = rescore(rescorer, [NBest("u", tuple(hypotheses))], own)
    expected = sorted(
        range(len(hypotheses)), key=lambda i: -(hypotheses[i].acoustic + 2 * (hypotheses[i].first_pass or 0))
    )
    assert [h.index for h in result.ranking] == expected


@given(st.lists(LISTS, min_size=1, max_size=4))
def test_a_list_scores_alone_as_it_does_in_company(rescorer: Rescorer, lists: list[list[Hypothesis]]) -> None:
    utterances = [NBest(f"u{i}", tuple(hypotheses)) for i, hypotheses in enumerate(lists)]
    for together, utterance in zip(rescore(rescorer, utterances), utterances, strict=True):
        (alone,) = rescore(rescorer, [utterance])
        apart = by_index(alone)
        for h in together.ranking:
            assert h.lm == pytest.approx(apart[h.index].lm, abs=1e-5)
            assert h.lm_by_model.keys() == apart[h.index].lm_by_model.keys()


def test_each_list_has_its_own_weights(rescorer: Rescorer, make: Any) -> None:
    nbest = make.nbest("u", ("good", -5.0))
    first, second = rescore(rescorer, [nbest, nbest], [Weights({"ngram": 1.0}), Weights({"rnn": 1.0})])
    assert (list(first.best.lm_by_model), list(second.best.lm_by_model)) == (["ngram"], ["rnn"])
    assert first.best.lm == first.best.lm_by_model["ngram"]
    assert second.best.lm == second.best.lm_by_model["rnn"]


@given(LISTS)
def test_scoring_twice_is_identical(rescorer: Rescorer, hypotheses: list[Hypothesis]) -> None:
    nbest = NBest("u", tuple(hypotheses))
    assert rescore(rescorer, [nbest], word_scores=True) == rescore(rescorer, [nbest], word_scores=True)


@given(LISTS)
def test_the_callers_list_is_left_as_it_was(rescorer: Rescorer, hypotheses: list[Hypothesis]) -> None:
    nbest = NBest("u", tuple(hypotheses), reference="good day")
    before = copy.deepcopy(nbest)
    (result,) = rescore(rescorer, [nbest])
    assert nbest == before
    assert result.nbest is nbest


def test_threads_that_score_at_once_do_not_disturb_one_another(rescorer: Rescorer, make: Any) -> None:
    texts = ("good day", "good morning", "day", "", "evening good")
    lists = [make.nbest("u", *[(text, -float(i)) for i, text in enumerate(texts[k:])]) for k in range(5)] * 8
    alone = [rescore(rescorer, [nbest]) for nbest in lists]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda nbest: rescore(rescorer, [nbest]), lists))
    assert together == alone


def test_the_mapping_of_weights_is_left_as_it_was(rescorer: Rescorer, make: Any) -> None:
    shares = {"ngram": 1.0, "rnn": 0.0}
    rescore(rescorer, [make.nbest("u", ("good", -5.0))], Weights(shares))
    assert shares == {"ngram": 1.0, "rnn": 0.0}


def test_the_reference_goes_through_the_same_normaliser(rescorer: Rescorer, make: Any) -> None:
    (result,) = rescore(rescorer, [make.nbest("u", ("Good, day!", -5.0), reference="GOOD day")])
    assert result.reference_words == result.best.words == ("good", "day")


def test_the_reference_is_never_used_for_scoring(rescorer: Rescorer, make: Any) -> None:
    hypotheses = [("good day", -5.0), ("good", -6.0)]
    plain, told = (rescore(rescorer, [make.nbest("u", *hypotheses, reference=r)])[0] for r in (None, "good"))
    assert plain.ranking == told.ranking


def test_hypotheses_that_normalise_alike_are_one_outcome(rescorer: Rescorer, make: Any) -> None:
    (once,) = rescore(rescorer, [make.nbest("u", ("good day", -5.0), ("morning", -5.0))])
    (often,) = rescore(rescorer, [make.nbest("u", ("good day", -5.0), ("morning", -5.0), ("Good, day!", -5.0))])
    entries = by_index(often)
    assert entries[0].posterior + entries[2].posterior == pytest.approx(by_index(once)[0].posterior)


@given(LISTS)
def test_posteriors_are_shares_of_the_list(rescorer: Rescorer, hypotheses: list[Hypothesis]) -> None:
    (result,) = rescore(rescorer, [NBest("u", tuple(hypotheses))])
    assert all(0 <= h.posterior <= 1 for h in result.ranking)
    assert sum(h.posterior for h in result.ranking) == pytest.approx(1)


def test_ids_are_returned_as_they_came(rescorer: Rescorer, make: Any) -> None:
    (result,) = rescore(rescorer, [make.nbest("spk-01-utt-1", ("good", -5.0), session_id="s-1", speaker="spk-01")])
    assert (result.nbest.utterance_id, result.nbest.session_id) == ("spk-01-utt-1", "s-1")


def test_the_first_word_of_a_text_is_a_word(rescorer: Rescorer, make: Any) -> None:
    # kaldi#364: lines without ids lost their first word to the id.
    (result,) = rescore(rescorer, [make.nbest("u", ("good morning day", -5.0))])
    assert result.best.words == ("good", "morning", "day")
