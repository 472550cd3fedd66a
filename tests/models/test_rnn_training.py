import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models import checkpoint, recipe_mikolov2010
from models.checkpoint import load_checkpoint, save_checkpoint
from models.errors import TrainingError
from models.perplexity import perplexity, text_events, text_log_probs
from models.recipe_fast import FastOptions
from models.recipe_mikolov2010 import Mikolov2010Options
from models.rnn_training import Interrupted, Options, Progress, TrainingText, train_elman
from models.rnnlm import ElmanLM, WordClasses
from models.training_text import ClassStream
from models.validation import stream_perplexity
from models.vocabulary import Vocabulary

CPU = torch.device("cpu")


FAST = FastOptions(epochs=3, rate=0.05, streams=4, tau=5, samples=6, dropout=0.1, input_dropout=0.1)


PAPER = Mikolov2010Options(max_epochs=3, tau=3)


RECIPES = pytest.mark.parametrize("options", [FAST, PAPER], ids=["fast", "mikolov2010"])


def text_of(train: list[tuple[str, ...]], valid: list[tuple[str, ...]], rare_threshold: int = 0) -> TrainingText:
    counts = Counter(word for sentence in train for word in sentence)
    vocabulary = Vocabulary.from_counts(counts)
    classes = WordClasses.from_counts(vocabulary, counts, rare_threshold)
    streams = [ClassStream.from_sentences(sentences, vocabulary, classes) for sentences in (train, valid)]
    return TrainingText(streams[0], streams[1], classes, vocabulary.sha256)


@pytest.fixture(scope="module")
def text(make: Any) -> TrainingText:
    return text_of(make.grammar(60, seed=1), make.grammar(20, seed=2))


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe_mikolov2010, "_WORDS_PER_YIELD", 50)


def train(text: TrainingText, folder: Path, options: Options, **more: Any) -> ElmanLM:
    return train_elman(text, options, folder, **{"hidden_size": 8, "seed": 1, "device": CPU, **more})


def stop_at(step: int) -> Callable[[], bool]:
    """Asks to stop at one step, from 1."""
    steps: Iterator[int] = iter(range(1, 1_000_000))
    return lambda: next(steps) == step


def same(one: ElmanLM, other: ElmanLM) -> bool:
    pairs = zip(one.weights.named().values(), other.weights.named().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@RECIPES
@pytest.mark.parametrize("step", [1, 4, 6, 7, 13])
def test_stopped_and_resumed_is_bit_for_bit_as_uninterrupted(
    text: TrainingText, tmp_path: Path, options: Options, step: int
) -> None:
    # 60 sentences are about 300 words: 15 steps of recipe fast an epoch, 6 of mikolov2010.
    whole = train(text, tmp_path / "whole", options)
    with pytest.raises(Interrupted):
        train(text, tmp_path / "parts", options, stop=stop_at(step))
    resumed = train(text, tmp_path / "parts", options, resume=True)
    assert same(whole, resumed)
    assert resumed.training == whole.training


@RECIPES
def test_stopped_many_times_is_as_uninterrupted(text: TrainingText, tmp_path: Path, options: Options) -> None:
    whole = train(text, tmp_path / "whole", options)
    resume = False
    while True:
        try:
            resumed = train(text, tmp_path / "parts", options, resume=resume, stop=stop_at(4))
            break
        except Interrupted:
            resume = True
    assert same(whole, resumed)


@RECIPES
def test_the_log_of_a_resumed_training_has_each_epoch_once(
    text: TrainingText, tmp_path: Path, options: Options
) -> None:
    with pytest.raises(Interrupted):
        train(text, tmp_path, options, stop=stop_at(17 if options is FAST else 8))
    train(text, tmp_path, options, resume=True)
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [entry["epoch"] for entry in entries] == [1, 2, 3]


def test_a_stop_on_request_ends_a_command_as_an_interrupt_and_names_the_way_on(
    text: TrainingText, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted, match="--resume") as caught:
        train(text, tmp_path, FAST, stop=stop_at(1))
    assert caught.value.exit_code == 130


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("seed", {"seed": 2}),
    ("hidden size", {"hidden_size": 9}),
    ("options", {"options": replace(FAST, rate=0.01)}),
    ("recipe", {"options": PAPER}),
]


@pytest.mark.parametrize(("named", "change"), CHANGES, ids=[named for named, _ in CHANGES])
def test_resuming_with_another_setting_is_refused_by_name(
    text: TrainingText, tmp_path: Path, named: str, change: dict[str, Any]
) -> None:
    with pytest.raises(Interrupted):
        train(text, tmp_path, FAST, stop=stop_at(1))
    with pytest.raises(TrainingError, match=f"another ({named}|options)"):
        train(text, tmp_path, **{"options": FAST, "resume": True, **change})


@pytest.mark.parametrize("part", ["vocabulary", "train", "valid"])
def test_resuming_with_another_text_is_refused_by_name(
    text: TrainingText, tmp_path: Path, make: Any, part: str
) -> None:
    with pytest.raises(Interrupted):
        train(text, tmp_path, FAST, stop=stop_at(1))
    other = text_of(make.grammar(61, seed=1), make.grammar(21, seed=2))
    changes: dict[str, Any] = {part: "0" * 64 if part == "vocabulary" else getattr(other, part)}
    named = {"vocabulary": "vocabulary", "train": "train text", "valid": "valid text"}[part]
    with pytest.raises(TrainingError, match=f"another {named}"):
        train(replace(text, **changes), tmp_path, FAST, resume=True)


def test_resuming_a_finished_training_gives_its_network(text: TrainingText, tmp_path: Path) -> None:
    finished = train(text, tmp_path, FAST)
    again = train(text, tmp_path, FAST, resume=True)
    assert all(torch.equal(matrix, again.weights.named()[name]) for name, matrix in finished.weights.named().items())


def test_word_by_word_training_can_be_given_more_epochs(text: TrainingText, tmp_path: Path) -> None:
    at_once = train(text, tmp_path / "at once", replace(PAPER, max_epochs=3))
    train(text, tmp_path / "in two", replace(PAPER, max_epochs=2))
    in_two = train(text, tmp_path / "in two", replace(PAPER, max_epochs=3), resume=True)
    assert all(torch.equal(matrix, in_two.weights.named()[name]) for name, matrix in at_once.weights.named().items())


def test_without_a_checkpoint_there_is_nothing_to_resume(text: TrainingText, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"checkpoint\.safetensors: cannot be resumed from"):
        train(text, tmp_path, FAST, resume=True)


@pytest.mark.parametrize("damage", ["empty", "cut", "garbage", "foreign"])
def test_a_damaged_checkpoint_is_refused_by_name(text: TrainingText, tmp_path: Path, damage: str) -> None:
    with pytest.raises(Interrupted):
        train(text, tmp_path, FAST, stop=stop_at(1))
    path = tmp_path / "checkpoint.safetensors"
    whole = path.read_bytes()
    if damage == "foreign":
        save_checkpoint(path, {"x": torch.zeros(1)}, {"identity": {}})
    else:
        path.write_bytes({"empty": b"", "cut": whole[:-10], "garbage": b"\x80\x04" + whole[2:]}[damage])
    with pytest.raises(TrainingError, match=r"checkpoint\.safetensors"):
        train(text, tmp_path, FAST, resume=True)


def test_a_checkpoint_gives_back_what_was_saved(tmp_path: Path) -> None:
    tensors = {"a": torch.rand(3, 2), "b": torch.tensor([1, 2], dtype=torch.int64), "c": torch.rand(4, 2).T}
    save_checkpoint(tmp_path / "c", tensors, {"rate": 0.1 + 0.2, "none": None, "list": [1, 2]})
    loaded, values = load_checkpoint(tmp_path / "c")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    assert values == {"rate": 0.1 + 0.2, "none": None, "list": [1, 2]}


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path / "c", {"a": torch.ones(1)}, {"epoch": 1})

    def half_a_file(tensors: object, filename: Path, metadata: object) -> None:
        del tensors, metadata
        filename.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", half_a_file)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path / "c", {"a": torch.zeros(1)}, {"epoch": 2})
    tensors, values = load_checkpoint(tmp_path / "c")
    assert (tensors["a"].item(), values) == (1.0, {"epoch": 1})


def test_only_whole_checkpoints_stand_in_the_folder(text: TrainingText, tmp_path: Path) -> None:
    train(text, tmp_path, FAST)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.safetensors", "log.jsonl"]


@pytest.mark.parametrize(
    "options",
    [
        replace(FAST, rate=1e6),
        replace(FAST, rate=1e30),
        replace(PAPER, rate=1e4),
        replace(PAPER, rate=1e30),
    ],
    ids=["fast 1e6", "fast 1e30", "mikolov2010 1e4", "mikolov2010 1e30"],
)
def test_a_training_that_diverges_says_so(text: TrainingText, tmp_path: Path, options: Options) -> None:
    with pytest.raises(TrainingError, match=r"diverged.*lower the learning rate"):
        train(text, tmp_path, options)


# A sentence of the grammar has 2 + 1 + 1 + 1/2 bits and 5 words on average, sentence ends counted.
GRAMMAR_PERPLEXITY = 2 ** (4.5 / 5)


@pytest.mark.slow
@RECIPES
def test_training_comes_near_the_entropy_of_a_grammar(make: Any, tmp_path: Path, options: Options) -> None:
    text = text_of(make.grammar(400, seed=1), make.grammar(200, seed=2))
    longer = replace(options, **({"epochs": 4, "rate": 0.2, "dropout": 0.0} if options is FAST else {"max_epochs": 6}))
    model = train(text, tmp_path, longer, hidden_size=16)
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert entries[-1]["valid_perplexity"] < entries[0]["valid_perplexity"]
    assert model.training["valid_perplexity"] < 1.05 * GRAMMAR_PERPLEXITY


def test_words_of_the_rare_class_have_a_share_of_its_probability(make: Any, tmp_path: Path) -> None:
    text = text_of(make.grammar(60), make.grammar(20), rare_threshold=20)
    assert text.classes.rare_members > 1
    model = train(text, tmp_path, FAST)
    log_probs = make.every_event(model, [2], len(text.classes.of_event))
    assert len(set(log_probs[text.classes.of_event == 1].tolist())) == 1
    assert np.exp(log_probs).sum() == pytest.approx(1, abs=1e-5)


def test_the_provenance_says_how_to_repeat_the_training(text: TrainingText, tmp_path: Path) -> None:
    said = train(text, tmp_path, FAST).training
    assert (said["recipe"], said["seed"], said["hidden_size"]) == ("fast", 1, 8)
    assert said["options"]["epochs"] == 3
    assert said["train_text"] == text.train.sha256


def test_progress_counts_words_and_epochs(text: TrainingText, tmp_path: Path) -> None:
    seen: list[Progress] = []
    train(text, tmp_path, FAST, report=seen.append)
    assert {p.epoch for p in seen} <= {1, 2, 3}
    assert all(0 < p.words <= p.words_in_epoch == len(text.train) for p in seen)
    assert seen[0].valid_perplexity is None


def test_validation_is_the_perplexity_of_running_text(text: TrainingText, make: Any, tmp_path: Path) -> None:
    model = train(text, tmp_path, FAST)
    counts = Counter(word for sentence in make.grammar(60, seed=1) for word in sentence)
    ids = [Vocabulary.from_counts(counts).ids(sentence) for sentence in make.grammar(20, seed=2)]
    log_probs = np.concatenate(text_log_probs(model, ids, carry_state=True))
    # A running text begins after a boundary, as the first sentence does, and each boundary is read once.
    expected = perplexity(log_probs, text_events(ids)).with_oov
    assert stream_perplexity(model.weights, text.valid, text.classes, model.initial_state) == pytest.approx(expected)
