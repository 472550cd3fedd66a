import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kenlm
import numpy as np
import pytest

from models.errors import BundleError
from models.ngram import KenLMNgram
from models.perplexity import text_log_probs
from models.prefix_tree import PrefixTree
from models.vocabulary import UNK, UNK_ID, Vocabulary

LN_10 = math.log(10)


@pytest.mark.parametrize(
    ("sentence", "log10"),
    [
        # The first two words and the end are in the file as n-grams of their full length.
        ("good morning", [-0.5, -0.2, -0.35]),
        # day: back-off of "<s> good" + p(day | good). </s>: back-offs of "good day" and "day" + p(</s>).
        ("good day", [-0.5, -0.1 - 0.75, -0.05 - 0.2 - 1.0]),
        # morning: back-off of <s> + p(morning); "<s> morning" is not in the file, so it has no back-off.
        ("morning", [-0.3 - 0.8, -0.7]),
        ("", [-0.3 - 1.0]),
        # An unknown word backs off to p(<unk>), and nothing is known after it.
        ("evening good", [-0.3 - 2.0, -0.9, -0.25 - 1.0]),
    ],
)
def test_hand_computed_back_off(
    tiny: KenLMNgram, tiny_vocabulary: Vocabulary, sentence: str, log10: list[float]
) -> None:
    (scores,) = text_log_probs(tiny, [tiny_vocabulary.ids(sentence.split())])
    assert scores / LN_10 == pytest.approx(log10, abs=1e-6)


def random_sentences(words: tuple[str, ...], count: int, seed: int) -> list[list[str]]:
    draw = random.Random(seed)
    return [[draw.choice(words) for _ in range(draw.randrange(8))] for _ in range(count)]


def test_sentences_score_as_kenlm_itself_scores_them(make: Any, tiny: KenLMNgram, tiny_vocabulary: Vocabulary) -> None:
    reference = kenlm.Model(str(make.data / "tiny.arpa"))
    sentences = random_sentences((*make.tiny_words, "evening", "night"), 200, seed=1)
    scores = text_log_probs(tiny, [tiny_vocabulary.ids(sentence) for sentence in sentences])
    expected = [reference.score(" ".join(sentence)) for sentence in sentences]
    assert [row.sum() / LN_10 for row in scores] == pytest.approx(expected, rel=1e-6)


def test_words_score_as_kenlm_itself_scores_them(
    train_kn: Callable[..., KenLMNgram], make: Any, tmp_path: Path
) -> None:
    model = train_kn(make.grammar(200), order=4)
    vocabulary = Vocabulary(tuple(sorted({word for sentence in make.grammar(200) for word in sentence})))
    reference = kenlm.Model(str(shutil.copy(model.path, tmp_path)))
    sentences = random_sentences((*vocabulary.words, "zebra"), 200, seed=2)
    scores = text_log_probs(model, [vocabulary.ids(sentence) for sentence in sentences])
    for sentence, row in zip(sentences, scores, strict=True):
        expected = [score for score, _, _ in reference.full_scores(" ".join(sentence))]
        assert (row / LN_10).astype(np.float32) == pytest.approx(expected, rel=1e-6)


def test_all_sentences_together_score_as_each_alone(kn: KenLMNgram, kn_vocabulary: Vocabulary) -> None:
    sentences = [kn_vocabulary.ids(words) for words in random_sentences(kn_vocabulary.words, 60, seed=3)]
    together = text_log_probs(kn, sentences)
    alone = [text_log_probs(kn, [sentence])[0] for sentence in sentences]
    assert [row.tolist() for row in together] == [row.tolist() for row in alone]


def test_scoring_twice_is_identical(tiny: KenLMNgram) -> None:
    tree = PrefixTree.build([[2, 3], [2, 4, 0], []])
    assert tiny.score(tree)[0].tolist() == tiny.score(tree)[0].tolist()


def test_a_model_without_hidden_state_gives_none(tiny: KenLMNgram) -> None:
    assert tiny.score(PrefixTree.build([[2]]))[1] is None


def test_every_start_state_is_the_sentence_boundary(tiny: KenLMNgram) -> None:
    scores, _ = tiny.score(tree := PrefixTree.build([[2, 3], [2, 3]], [0, 1]), np.ones((2, 7)))
    assert scores[tree.sentences[0]].tolist() == scores[tree.sentences[1]].tolist()


def test_the_unknown_word_has_the_mass_of_its_stand_in_too(kn: KenLMNgram, kn_vocabulary: Vocabulary) -> None:
    # Every tenth word of the training text is <unk>, so it is a frequent word.
    (scores,) = text_log_probs(kn, [kn_vocabulary.ids(["the", "zebra", "ran"])])
    reference = kenlm.Model(str(kn.path))
    stand_in = list(reference.full_scores("the <oov> ran"))
    unknown = list(reference.full_scores("the zebra ran"))
    assert math.exp(scores[1]) == pytest.approx(10 ** stand_in[1][0] + 10 ** unknown[1][0])
    assert scores[2] / LN_10 == pytest.approx(stand_in[2][0], rel=1e-6)


def test_a_literal_unk_is_a_word_that_is_not_known(kn: KenLMNgram, kn_vocabulary: Vocabulary) -> None:
    literal, unknown = (text_log_probs(kn, [kn_vocabulary.ids(["the", word])])[0] for word in (UNK, "zebra"))
    assert literal.tolist() == unknown.tolist()


def test_describe_says_kind_and_order(tiny: KenLMNgram) -> None:
    assert tiny.describe() == {"kind": "kenlm", "order": 3}


ARPA = """\\data\\
ngram 1=4
ngram 2=1

\\1-grams:
-1\t<unk>
-99\t<s>\t-0.3
-0.5\t</s>
-0.4\ta\t-0.2

\\2-grams:
-0.3\t<s> a

\\end\\
"""


def test_the_file_that_the_next_tests_break_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "whole.arpa"
    path.write_text(ARPA)
    (scores,) = text_log_probs(KenLMNgram(path, Vocabulary(("a",))), [[2]])
    assert scores / LN_10 == pytest.approx([-0.3, -0.2 - 0.5])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ARPA, ""),
        (ARPA, "not a model\n"),
        ("\\data\\", "\ufeff\\data\\"),
        ("-99\t<s>", "-99\tb"),
        ("-0.5\t</s>", "0.5\t</s>"),
        ("-0.5\t</s>", "nan\t</s>"),
        ("-0.5\t</s>", "much\t</s>"),
        ("ngram 1=4", "ngram 1=9"),
        ("\\end\\\n", ""),
        ("<s> a", "<s> b"),
    ],
    ids=["empty", "text", "BOM", "no <s>", "positive", "NaN", "no number", "count", "cut short", "unknown word"],
)
def test_a_file_that_kenlm_cannot_load_is_refused_by_name_in_one_line(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "broken.arpa"
    assert before in ARPA
    path.write_text(ARPA.replace(before, after), encoding="utf-8")
    with pytest.raises(BundleError, match=r"broken\.arpa: KenLM cannot load this file: [^\n]+$"):
        KenLMNgram(path, Vocabulary(("a",)))


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"nowhere\.kenlm"):
        KenLMNgram(tmp_path / "nowhere.kenlm", Vocabulary(("a",)))


def test_a_binary_cut_short_is_refused_by_name(kn: KenLMNgram, kn_vocabulary: Vocabulary, tmp_path: Path) -> None:
    path = tmp_path / "cut.kenlm"
    path.write_bytes(kn.path.read_bytes()[:1000])
    with pytest.raises(BundleError, match=r"cut\.kenlm"):
        KenLMNgram(path, kn_vocabulary)


def test_a_model_that_lacks_a_word_of_the_vocabulary_is_refused_by_that_word(make: Any) -> None:
    with pytest.raises(BundleError, match="'evening'"):
        KenLMNgram(make.data / "tiny.arpa", Vocabulary(("good", "evening")))


def test_a_model_without_unk_in_its_file_gives_unknown_words_a_finite_score(tmp_path: Path) -> None:
    path = tmp_path / "no-unk.arpa"
    path.write_text(ARPA.replace("-1\t<unk>\n", "").replace("ngram 1=4", "ngram 1=3"))
    (scores,) = text_log_probs(KenLMNgram(path, Vocabulary(("a",))), [[UNK_ID]])
    # KenLM's stand-in for what the file does not say is 10 ** -100.
    assert scores / LN_10 == pytest.approx([-0.3 - 100, -0.5])
