import math
from typing import Any

import numpy as np
import pytest

from models.ngram import KenLMNgram
from models.perplexity import perplexity, text_events, text_log_probs
from models.vocabulary import EOS_ID, UNK_ID, Vocabulary


def test_by_hand() -> None:
    # Four events of probability 1/2, 1/4, 1/8 (the unknown word) and 1/2: 7 bits over 4, 4 bits over 3 without it.
    found = perplexity(np.log([1 / 2, 1 / 4, 1 / 8, 1 / 2]), np.array([2, 3, UNK_ID, EOS_ID]))
    assert found.with_oov == pytest.approx(2 ** (7 / 4))
    assert found.without_oov == pytest.approx(2 ** (4 / 3))
    assert (found.events, found.oov) == (4, 1)


def test_a_text_of_known_words_has_one_perplexity() -> None:
    found = perplexity(np.log([1 / 2, 1 / 8]), np.array([2, EOS_ID]))
    assert found.with_oov == found.without_oov == pytest.approx(4)


def test_a_sentence_end_counts_as_a_word_and_a_beginning_does_not() -> None:
    assert text_events([[2, 3], [], [4]]).tolist() == [2, 3, EOS_ID, EOS_ID, 4, EOS_ID]


def test_a_uniform_model_has_the_size_of_the_event_space_as_its_perplexity(make: Any) -> None:
    model = make.Unigram([math.log(1 / 5)] * 5)
    ids = [[2, 0, 4], [], [3]]
    found = perplexity(np.concatenate(text_log_probs(model, ids)), text_events(ids))
    assert (found.with_oov, found.without_oov) == pytest.approx((5, 5))


def test_an_n_gram_by_hand(tiny: KenLMNgram, tiny_vocabulary: Vocabulary) -> None:
    # "good morning" and "evening", see the back-offs in test_ngram: 1.05 and 2.3 + 1.0 over 5 events, 2.3 of it OOV
    ids = [tiny_vocabulary.ids(sentence.split()) for sentence in ("good morning", "evening")]
    found = perplexity(np.concatenate(text_log_probs(tiny, ids)), text_events(ids))
    assert found.with_oov == pytest.approx(10 ** ((1.05 + 3.3) / 5), rel=1e-5)
    assert found.without_oov == pytest.approx(10 ** ((1.05 + 1.0) / 4), rel=1e-5)


@pytest.mark.parametrize("carry", [False, True])
def test_more_sentences_than_are_scored_at_once_keep_their_order(make: Any, carry: bool) -> None:
    model = make.Unigram.drawn(5, seed=1)
    draw = np.random.default_rng(2)
    ids = [draw.choice([0, 2, 3, 4], draw.integers(0, 5)).tolist() for _ in range(700)]
    found = np.concatenate(text_log_probs(model, ids, carry_state=carry))
    assert found == pytest.approx(model.log_probs[text_events(ids)])
