"""The commands that train, as a user types them."""

import hashlib
import json
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from models import recipe_mikolov2010, rnn_training
from models.bundle import load_bundle
from models.checkpoint import save_checkpoint

RNN = ("--hidden", "8", "--rare", "0", "--epochs", "2", "--device", "cpu")


FAST = (*RNN, "--streams", "2", "--tau", "5", "--samples", "5")


Run = Callable[..., Any]


@pytest.fixture
def text(tmp_path: Path, make: Any) -> Path:
    path = tmp_path / "train.txt"
    path.write_text("".join(" ".join(words) + "\n" for words in make.grammar(120, seed=1)))
    return path


@pytest.fixture
def valid(tmp_path: Path, make: Any) -> Path:
    path = tmp_path / "valid.txt"
    path.write_text("".join(" ".join(words) + "\n" for words in make.grammar(30, seed=2)))
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_commands_make_a_bundle_that_loads(trained: Path) -> None:
    loaded = load_bundle(trained)
    assert list(loaded.rescorer.models) == ["kn5", "rnn"]
    assert loaded.describe()["models"][0]["order"] == 5


def test_nothing_but_the_bundle_is_left(trained: Path) -> None:
    names = sorted(path.name for path in trained.rglob("*") if path.is_file())
    assert names == ["bundle.json", "config.json", "kn5.kenlm", "model.safetensors", "training-log.jsonl", "vocab.txt"]


def test_the_provenance_says_what_the_models_were_trained_on(trained: Path) -> None:
    models = json.loads((trained / "bundle.json").read_text())["models"]
    for name in ("kn5", "rnn"):
        training = models[name]["training"]
        assert (training["text"], training["sentences"]) == (["train.txt"], 120)
    assert models["rnn"]["training"]["recipe"] == "fast"
    assert len((trained / "rnn" / "training-log.jsonl").read_text().splitlines()) == 2


def test_three_words_are_too_few_for_an_n_gram_and_the_message_names_the_way_out(tmp_path: Path, run: Run) -> None:
    (tmp_path / "tiny.txt").write_text("three words only\n")
    answer = run("train", "kn", tmp_path / "bundle", "--text", tmp_path / "tiny.txt", "--memory", "50M")
    assert answer.code == 1
    assert "--discount-fallback" in answer.complaint


def test_three_words_make_an_n_gram_with_the_fallback(tmp_path: Path, run: Run) -> None:
    (tmp_path / "tiny.txt").write_text("three words only\n")
    arguments = ("--text", tmp_path / "tiny.txt", "--discount-fallback", "--memory", "50M")
    assert run("train", "kn", tmp_path / "bundle", *arguments).code == 0
    assert load_bundle(tmp_path / "bundle").rescorer.vocabulary.words == ("only", "three", "words")


def test_a_training_that_failed_does_not_bind_the_next_to_its_vocabulary(tmp_path: Path, run: Run, text: Path) -> None:
    (tmp_path / "tiny.txt").write_text("three words only\n")
    folder = tmp_path / "bundle"
    assert run("train", "kn", folder, "--text", tmp_path / "tiny.txt", "--memory", "50M").code == 1
    assert run("train", "kn", folder, "--text", text, "--discount-fallback", "--memory", "50M").code == 0
    assert "cat" in load_bundle(folder).rescorer.vocabulary.words


def test_three_words_are_too_rare_for_a_network_and_the_message_says_so(tmp_path: Path, run: Run) -> None:
    (tmp_path / "tiny.txt").write_text("three words only\n")
    paths = ("--text", tmp_path / "tiny.txt", "--valid", tmp_path / "tiny.txt")
    answer = run("train", "rnn", tmp_path / "bundle", *paths)
    assert answer.code == 1
    assert "every word occurs at most 3 times" in answer.complaint


@pytest.mark.parametrize("recipe", ["fast", "mikolov2010"])
def test_three_words_make_a_network_when_none_is_rare(tmp_path: Path, run: Run, recipe: str) -> None:
    (tmp_path / "tiny.txt").write_text("three words only\n")
    paths = ("--text", tmp_path / "tiny.txt", "--valid", tmp_path / "tiny.txt")
    assert run("train", "rnn", tmp_path / "bundle", *paths, *RNN, "--recipe", recipe).code == 0
    assert load_bundle(tmp_path / "bundle").rescorer.vocabulary.words == ("only", "three", "words")


def test_a_network_shares_the_vocabulary_that_the_bundle_has(tmp_path: Path, trained: Path, run: Run) -> None:
    (tmp_path / "other.txt").write_text("the cat saw a zebra\n" * 5)
    paths = ("--text", tmp_path / "other.txt", "--valid", tmp_path / "other.txt")
    assert run("train", "rnn", trained, *paths, *FAST, "--name", "other").code == 0
    rescorer = load_bundle(trained).rescorer
    assert "zebra" not in rescorer.vocabulary.words


def test_an_n_gram_of_a_text_that_lacks_the_bundles_words_is_refused(tmp_path: Path, trained: Path, run: Run) -> None:
    (tmp_path / "other.txt").write_text("the cat saw a zebra\n" * 5)
    arguments = ("--text", tmp_path / "other.txt", "--discount-fallback", "--memory", "50M", "--name", "other")
    answer = run("train", "kn", trained, *arguments)
    assert answer.code == 1
    assert "lacks" in answer.complaint
    assert list(load_bundle(trained).rescorer.models) == ["kn5", "rnn"]


def test_several_seeds_make_several_networks(tmp_path: Path, run: Run, text: Path, valid: Path) -> None:
    seeds = ("--seed", 1, "--seed", 7)
    assert run("train", "rnn", tmp_path / "bundle", "--text", text, "--valid", valid, *FAST, *seeds).code == 0
    assert list(load_bundle(tmp_path / "bundle").rescorer.models) == ["rnn-1", "rnn-7"]


class Interrupt:
    """Presses Ctrl-C after a checkpoint, once."""

    def __init__(self, after: int) -> None:
        self._left = after

    def __call__(self, path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        save_checkpoint(path, tensors, values)
        self._left -= 1
        if self._left == 0:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("recipe", [FAST, (*RNN, "--recipe", "mikolov2010")], ids=["fast", "mikolov2010"])
def test_ctrl_c_then_resume_is_the_training_that_was_not_interrupted(
    tmp_path: Path, run: Run, text: Path, valid: Path, monkeypatch: pytest.MonkeyPatch, recipe: tuple[str, ...]
) -> None:
    monkeypatch.setattr(recipe_mikolov2010, "_WORDS_PER_YIELD", 100)
    paths = ("--text", text, "--valid", valid)
    assert run("train", "rnn", tmp_path / "whole", *paths, *recipe).code == 0
    monkeypatch.setattr(rnn_training, "save_checkpoint", Interrupt(after=1))
    stopped = run("train", "rnn", tmp_path / "parts", *paths, *recipe)
    assert stopped.code == 130
    assert "--resume" in stopped.err
    assert run("train", "rnn", tmp_path / "parts", *paths, *recipe, "--resume").code == 0
    whole, parts = (tmp_path / name / "rnn" / "model.safetensors" for name in ("whole", "parts"))
    assert digest(whole) == digest(parts)


@pytest.mark.slow
def test_several_seeds_are_resumed_where_they_stopped(
    tmp_path: Path, run: Run, text: Path, valid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--text", text, "--valid", valid, *FAST, "--seed", 1, "--seed", 2, "--seed", 3)
    assert run("train", "rnn", tmp_path / "whole", *arguments).code == 0
    # Each training of two epochs writes two checkpoints: the third is in the midst of the second.
    monkeypatch.setattr(rnn_training, "save_checkpoint", Interrupt(after=3))
    assert run("train", "rnn", tmp_path / "parts", *arguments).code == 130
    assert run("train", "rnn", tmp_path / "parts", *arguments, "--resume").code == 0
    for name in ("rnn-1", "rnn-2", "rnn-3"):
        whole, parts = (tmp_path / folder / name / "model.safetensors" for folder in ("whole", "parts"))
        assert digest(whole) == digest(parts)


def test_resuming_what_was_never_begun_is_an_error(tmp_path: Path, run: Run, text: Path, valid: Path) -> None:
    answer = run("train", "rnn", tmp_path / "bundle", "--text", text, "--valid", valid, *FAST, "--resume")
    assert answer.code == 1
    assert "checkpoint.safetensors" in answer.complaint


def test_resuming_on_another_text_is_an_error_that_says_so(
    tmp_path: Path, run: Run, text: Path, valid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rnn_training, "save_checkpoint", Interrupt(after=1))
    assert run("train", "rnn", tmp_path / "bundle", "--text", text, "--valid", valid, *FAST).code == 130
    answer = run("train", "rnn", tmp_path / "bundle", "--text", valid, "--valid", valid, *FAST, "--resume")
    assert answer.code == 1
    assert "another train text" in answer.complaint


def test_an_option_of_the_other_recipe_is_refused_by_name(tmp_path: Path, run: Run, text: Path, valid: Path) -> None:
    arguments = ("--text", text, "--valid", valid, "--recipe", "mikolov2010", "--streams", 3)
    answer = run("train", "rnn", tmp_path / "bundle", *arguments)
    assert answer.code == 1
    assert "no option --streams" in answer.complaint


@pytest.mark.parametrize("content", [None, "", "good <s> day\n", "a\0b\n", "<unk> <unk>\n"])
def test_a_text_that_cannot_be_trained_on_is_one_line(tmp_path: Path, run: Run, content: str | None) -> None:
    path = tmp_path / "bad.txt"
    if content is not None:
        path.write_text(content)
    for command in (("train", "kn"), ("train", "rnn", "--valid", path)):
        answer = run(*command, tmp_path / "bundle", "--text", path)
        assert answer.code == 1
        assert answer.complaint
    assert not (tmp_path / "bundle" / "bundle.json").exists()


def test_an_empty_validation_text_is_named(tmp_path: Path, run: Run, text: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    answer = run("train", "rnn", tmp_path / "bundle", "--text", text, "--valid", tmp_path / "empty.txt", *FAST)
    assert answer.code == 1
    assert "empty.txt: the validation text is empty" in answer.complaint


def test_a_bundle_can_have_a_normaliser_of_its_own_when_it_is_begun(tmp_path: Path, run: Run, text: Path) -> None:
    (tmp_path / "normaliser.json").write_text('{"case": "keep"}')
    arguments = ("--text", text, "--discount-fallback", "--memory", "50M", "--normaliser", tmp_path / "normaliser.json")
    assert run("train", "kn", tmp_path / "bundle", *arguments).code == 0
    assert load_bundle(tmp_path / "bundle").manifest.normaliser.case == "keep"
    again = run("train", "kn", tmp_path / "bundle", *arguments)
    assert again.code == 1
    assert "has its normaliser already" in again.complaint


def test_a_normaliser_that_is_none_is_refused_by_file(tmp_path: Path, run: Run, text: Path) -> None:
    (tmp_path / "normaliser.json").write_text('{"case": "upper"}')
    answer = run("train", "kn", tmp_path / "bundle", "--text", text, "--normaliser", tmp_path / "normaliser.json")
    assert answer.code == 1
    assert "normaliser.json" in answer.complaint


@pytest.mark.parametrize("name", ["mixture", "../rnn", "", ".hidden"])
def test_a_name_that_no_model_may_have_is_refused(tmp_path: Path, run: Run, text: Path, name: str) -> None:
    answer = run("train", "kn", tmp_path / "bundle", "--text", text, "--name", name)
    assert answer.code == 2
    assert "--name" in answer.err
