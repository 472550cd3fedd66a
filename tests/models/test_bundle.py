import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.bundle import (
    Manifest,
    add_elman,
    add_kenlm,
    choose_device,
    create_bundle,
    load_bundle,
    weights_from_json,
    weights_to_json,
)
from models.errors import BundleError, InvalidWeightsError, RescoringError, UnknownModelError
from models.learning import LearningOptions
from models.normaliser import Normaliser
from models.perplexity import text_log_probs
from models.score import SCALES, Weights
from models.vocabulary import Vocabulary

IDS = [[2, 3], [4, 0, 2], []]


def test_save_then_load_scores_the_same(bundle_folder: Path, make: Any, tiny_vocabulary: Vocabulary) -> None:
    loaded = load_bundle(bundle_folder).rescorer
    network = make.elman(tiny_vocabulary, rare=("day",), seed=4, dtype=torch.float32)
    for name, original in (("rnn", network), ("ngram", load_bundle(bundle_folder).rescorer.models["ngram"])):
        one, other = (np.concatenate(text_log_probs(model, IDS)) for model in (original, loaded.models[name]))
        assert one.tolist() == other.tolist()


def test_save_then_load_is_the_same_bundle(bundle_folder: Path, tiny_vocabulary: Vocabulary) -> None:
    bundle = load_bundle(bundle_folder)
    assert bundle.rescorer.vocabulary == tiny_vocabulary
    assert bundle.rescorer.normaliser == Normaliser()
    assert bundle.weights == Weights({"ngram": 0.25, "rnn": 0.75}, lm_scale=2.0, word_bonus=0.5, oov_bonus=-1.0)
    assert list(bundle.rescorer.models) == ["ngram", "rnn"]


def test_a_bundle_can_be_moved(bundle_folder: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(bundle_folder, tmp_path / "elsewhere")
    assert load_bundle(moved).sha256 == load_bundle(bundle_folder).sha256


def test_a_bundle_is_known_by_all_it_holds(bundle_folder: Path, make: Any, tiny_vocabulary: Vocabulary) -> None:
    before = load_bundle(bundle_folder).sha256
    add_elman(bundle_folder, Manifest.read(bundle_folder), "rnn", make.elman(tiny_vocabulary, seed=9))
    assert load_bundle(bundle_folder).sha256 != before


def test_where_there_is_no_bundle_the_message_says_so(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no bundle here: bundle\.json is missing"):
        load_bundle(tmp_path)


def test_a_bundle_without_a_model_says_what_adds_one(tmp_path: Path, tiny_vocabulary: Vocabulary) -> None:
    create_bundle(tmp_path, Normaliser(), tiny_vocabulary)
    with pytest.raises(BundleError, match="nbest train"):
        load_bundle(tmp_path)


def test_some_models_can_be_loaded_alone_with_even_weights(bundle_folder: Path) -> None:
    bundle = load_bundle(bundle_folder, only=("rnn",))
    assert list(bundle.rescorer.models) == ["rnn"]
    assert bundle.weights.interpolation == {"rnn": 1.0}


def test_a_model_that_is_not_there_is_named_with_those_that_are(bundle_folder: Path) -> None:
    with pytest.raises(UnknownModelError, match="'lstm'; it has ngram, rnn"):
        load_bundle(bundle_folder, only=("lstm",))


def test_a_model_added_puts_the_weights_out_of_force(
    bundle_folder: Path, make: Any, tiny_vocabulary: Vocabulary
) -> None:
    add_elman(bundle_folder, Manifest.read(bundle_folder), "rnn", make.elman(tiny_vocabulary, seed=9))
    assert Manifest.read(bundle_folder).weights is None
    assert load_bundle(bundle_folder).weights.interpolation == {"ngram": 0.5, "rnn": 0.5}


def test_two_trainings_at_once_both_enter_their_model(tmp_path: Path, make: Any, tiny_vocabulary: Vocabulary) -> None:
    create_bundle(tmp_path, Normaliser(), tiny_vocabulary)
    one, other = Manifest.read(tmp_path), Manifest.read(tmp_path)
    add_elman(tmp_path, one, "rnn-1", make.elman(tiny_vocabulary, seed=1))
    add_elman(tmp_path, other, "rnn-2", make.elman(tiny_vocabulary, seed=2))
    assert list(load_bundle(tmp_path).rescorer.models) == ["rnn-1", "rnn-2"]


def test_provenance_survives(bundle_folder: Path, make: Any) -> None:
    manifest = Manifest.read(bundle_folder)
    shutil.copy(make.data / "tiny.arpa", bundle_folder / "two.kenlm")
    add_kenlm(bundle_folder, manifest, "two", {"order": 3, "text": ["caf\u00e9.txt"]})
    assert Manifest.read(bundle_folder).models["two"]["training"] == {"order": 3, "text": ["caf\u00e9.txt"]}


def test_describe_is_json_that_names_models_weights_and_vocabulary(bundle_folder: Path) -> None:
    said = json.loads(json.dumps(load_bundle(bundle_folder).describe(), allow_nan=False))
    assert [model["name"] for model in said["models"]] == ["ngram", "rnn"]
    assert said["vocabulary"]["words"] == 3
    assert said["weights"]["interpolation"] == {"ngram": 0.25, "rnn": 0.75}


def test_the_vocabulary_stands_beside_the_models_as_text(bundle_folder: Path) -> None:
    assert (bundle_folder / "vocab.txt").read_text() == "good\nmorning\nday\n"


def test_weights_survive_json() -> None:
    weights = Weights({"a": 0.25, "b": 0.75}, **{name: 0.5 + i for i, name in enumerate(SCALES)})
    assert weights_from_json(json.loads(json.dumps(weights_to_json(weights)))) == weights


@pytest.mark.parametrize("name", SCALES)
def test_a_weight_of_zero_in_json_overrides_the_base(name: str) -> None:
    base = Weights({"a": 1.0}, **dict.fromkeys(SCALES, 5.0))
    assert getattr(weights_from_json({name: 0}, base), name) == 0.0


def test_weights_without_an_interpolation_need_a_base() -> None:
    with pytest.raises(InvalidWeightsError, match="interpolation"):
        weights_from_json({"lm_scale": 1})


def test_a_device_that_is_none_is_refused() -> None:
    with pytest.raises(BundleError, match="no such device: 'abacus'"):
        choose_device("abacus")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_cuda_device_that_is_not_there_is_said_so() -> None:
    with pytest.raises(BundleError, match="no CUDA device"):
        choose_device("cuda")
    assert choose_device("auto").type == "cpu"


def test_every_error_of_the_package_is_one_of_its_tree() -> None:
    assert issubclass(BundleError, RescoringError)
    assert issubclass(InvalidWeightsError, RescoringError)


def test_without_tuning_sessions_learn_as_in_the_paper(bundle_folder: Path) -> None:
    assert load_bundle(bundle_folder).learning == LearningOptions(rate=0.1, tau=1, decay=0.0)


@pytest.mark.parametrize(
    ("learning", "complaint"),
    [
        ({"rate": -1, "tau": 1, "decay": 0}, "rate is -1"),
        ({"rate": "fast", "tau": 1, "decay": 0}, "learning.rate is 'fast'"),
        ({"rate": 0.1, "tau": 1.5, "decay": 0}, "learning.tau is 1.5"),
        ({"rate": 0.1, "tau": 1}, "'decay' is missing"),
        ("fast", "not of its type"),
    ],
)
def test_learning_options_that_are_none_are_named(bundle_folder: Path, learning: Any, complaint: str) -> None:
    path = bundle_folder / "bundle.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "learning": learning}))
    with pytest.raises(BundleError, match=r"bundle\.json") as raised:
        load_bundle(bundle_folder)
    assert complaint in str(raised.value)
