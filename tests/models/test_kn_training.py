import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.errors import TrainingError
from models.kn_training import KneserNeyOptions, find_program, train_kneser_ney
from models.ngram import KenLMNgram
from models.perplexity import text_log_probs
from models.vocabulary import Vocabulary

SMALL = KneserNeyOptions(order=3, memory="50M")
FALLBACK = KneserNeyOptions(order=3, memory="50M", discount_fallback=True)


@pytest.mark.parametrize("program", ["lmplz", "build_binary"])
def test_kenlms_programs_are_there(program: str) -> None:
    assert Path(find_program(program)).is_file()


def test_a_program_that_is_not_there_is_named_with_what_builds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TrainingError, match=r"no-such-program.*build-kenlm\.sh"):
        find_program("no-such-program")


def test_a_program_beside_this_python_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = tmp_path / "lmplz"
    beside.touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert find_program("lmplz") == str(beside)


def test_three_words_are_too_few_and_the_message_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"too small.*--discount-fallback"):
        train_kneser_ney([("a", "b", "c")], Vocabulary(("a", "b", "c")), tmp_path / "kn.kenlm", SMALL)


def test_a_failed_training_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(TrainingError):
        train_kneser_ney([("a", "b", "c")], Vocabulary(("a", "b", "c")), tmp_path / "kn.kenlm", SMALL)
    assert list(tmp_path.iterdir()) == []


def test_three_words_make_a_model_with_the_fallback(tmp_path: Path) -> None:
    vocabulary = Vocabulary(("a", "b", "c"))
    train_kneser_ney([("a", "b", "c")], vocabulary, tmp_path / "kn.kenlm", FALLBACK)
    model = KenLMNgram(tmp_path / "kn.kenlm", vocabulary)
    seen, unseen = text_log_probs(model, [vocabulary.ids("abc"), vocabulary.ids("cba")])
    assert seen.sum() > unseen.sum()


def test_only_the_model_is_left_in_the_folder(tmp_path: Path) -> None:
    train_kneser_ney([("a", "b", "c")], Vocabulary(("a", "b", "c")), tmp_path / "kn.kenlm", FALLBACK)
    assert [path.name for path in tmp_path.iterdir()] == ["kn.kenlm"]


def test_words_outside_the_vocabulary_are_learnt_as_unknown(tmp_path: Path) -> None:
    vocabulary = Vocabulary(("a", "b"))
    train_kneser_ney([("a", "x", "b"), ("a", "y", "b")], vocabulary, tmp_path / "kn.kenlm", FALLBACK)
    model = KenLMNgram(tmp_path / "kn.kenlm", vocabulary)
    (after_a,) = text_log_probs(model, [vocabulary.ids(("a", "z"))])
    (after_b,) = text_log_probs(model, [vocabulary.ids(("b", "z"))])
    assert after_a[1] > after_b[1]


def test_a_text_that_lacks_words_of_the_vocabulary_is_refused_by_word(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"lacks 2 words.*'y'"):
        train_kneser_ney([("a",)], Vocabulary(("a", "z", "y")), tmp_path / "kn.kenlm", FALLBACK)


def test_what_lmplz_says_of_a_wrong_option_reaches_the_user_as_one_line(tmp_path: Path, make: Any) -> None:
    options = KneserNeyOptions(order=3, memory="much", discount_fallback=True)
    corpus = make.grammar(20)
    vocabulary = Vocabulary(tuple(sorted({word for sentence in corpus for word in sentence})))
    with pytest.raises(TrainingError, match="lmplz") as caught:
        train_kneser_ney(corpus, vocabulary, tmp_path / "kn.kenlm", options)
    assert "\n" not in str(caught.value)


def test_pruning_drops_rare_ngrams(tmp_path: Path, make: Any) -> None:
    corpus = make.grammar(300)
    vocabulary = Vocabulary(tuple(sorted({word for sentence in corpus for word in sentence})))
    pruned = KneserNeyOptions(order=3, memory="50M", discount_fallback=True, prune=(0, 40))
    train_kneser_ney(corpus, vocabulary, tmp_path / "whole.kenlm", FALLBACK)
    train_kneser_ney(corpus, vocabulary, tmp_path / "pruned.kenlm", pruned)
    assert (tmp_path / "pruned.kenlm").stat().st_size < (tmp_path / "whole.kenlm").stat().st_size


def test_an_n_gram_learns_the_grammar(train_kn: Callable[..., KenLMNgram], make: Any) -> None:
    model = train_kn(make.grammar(400, seed=1))
    vocabulary = Vocabulary(tuple(sorted({word for sentence in make.grammar(400, seed=1) for word in sentence})))
    right, wrong = text_log_probs(
        model, [vocabulary.ids(("the", "cat", "sat")), vocabulary.ids(("the", "cat", "sang"))]
    )
    assert right.sum() > wrong.sum() + 2
