import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.bundle import add_elman, create_bundle, load_bundle
from models.elman_files import load_elman
from models.errors import BundleError
from models.normaliser import Normaliser
from models.output_layer import FullSoftmax
from models.perplexity import text_log_probs
from models.prefix_tree import PrefixTree
from models.rnnlm import ElmanLM
from models.self_normalised import SelfNormalisation, SelfNormalised, with_normaliser
from models.vocabulary import Vocabulary

VOCABULARY = Vocabulary(("a", "b", "c", "d", "e"))
SENTENCES = [[2, 3, 0], [], [5, 5, 4, 6]]
MEASURED = SelfNormalisation(log_normaliser=1.5, deviation=0.25, largest=0.5, clamped=0.125)


def network(make: Any, **more: Any) -> ElmanLM:
    plain = make.elman(VOCABULARY, rare=("d", "e"), dtype=torch.float32)
    return ElmanLM(plain.weights, plain.classes, output=SelfNormalised(plain.weights.V, MEASURED, **more))


def test_a_logit_less_the_constant_by_hand() -> None:
    # s = 2: logits 1 and 4; less 1.5: -0.5, and 2.5 which is held at 0
    layer = SelfNormalised(torch.tensor([[0.5], [2.0]]), MEASURED)
    found = layer.log_probs(torch.full((1, 1), 2.0), torch.tensor([0, 0]), torch.tensor([0, 1]))
    assert found.tolist() == pytest.approx([-0.5, 0.0])


def test_with_the_constant_right_it_is_the_softmax() -> None:
    V, states = torch.randn(7, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([[0.2, 0.5, 0.9]])
    exact = SelfNormalisation(float(torch.logsumexp(states @ V.T, 1)), 0.0, 0.0, 0.0)
    histories, classes = torch.zeros(7, dtype=torch.int64), torch.arange(7)
    found = SelfNormalised(V, exact).log_probs(states, histories, classes)
    assert found.tolist() == pytest.approx(FullSoftmax(V).log_probs(states, histories, classes).tolist(), abs=1e-5)


def test_exact_is_the_full_softmax(make: Any) -> None:
    plain = make.elman(VOCABULARY, rare=("d", "e"), dtype=torch.float32)
    for one, other in zip(
        *(text_log_probs(model, SENTENCES) for model in (plain, network(make, exact=True))), strict=True
    ):
        assert one.tolist() == other.tolist()


def test_the_rare_class_is_shared_as_ever(make: Any) -> None:
    model = network(make)
    shares = make.every_event(model, [2], VOCABULARY.size)
    whole = float(
        model.output.log_probs(model.states(PrefixTree.build([[2]]))[1:2], torch.tensor([0]), torch.tensor([1]))
    )
    assert shares[0] == pytest.approx(whole - math.log(3), abs=1e-6)


def test_what_was_measured_by_hand() -> None:
    # ln Z of 1 and 3: mean 2, deviation 1; of the logits 1, 2.5 only the second exceeds 2
    found = SelfNormalisation.measured(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.5]))
    assert found == SelfNormalisation(2.0, 1.0, 1.0, 0.5)


@pytest.fixture
def folder(tmp_path: Path, make: Any) -> Path:
    bundle = tmp_path / "bundle"
    add_elman(bundle, create_bundle(bundle, Normaliser(), VOCABULARY), "rnn", network(make))
    return bundle


def test_save_then_load_scores_the_same_and_exactly_on_request(folder: Path, make: Any) -> None:
    for exact in (False, True):
        loaded = load_bundle(folder, exact_normaliser=exact).rescorer.models["rnn"]
        for one, other in zip(
            *(text_log_probs(model, SENTENCES) for model in (loaded, network(make, exact=exact))), strict=True
        ):
            assert one.tolist() == other.tolist()


def test_describe_says_that_scores_are_not_normalised(folder: Path) -> None:
    (said,) = load_bundle(folder).describe()["models"]
    assert said["normalised"] is False
    assert said["self_normalised"] == {"log_normaliser": 1.5, "deviation": 0.25, "largest": 0.5, "clamped": 0.125}
    (said,) = load_bundle(folder, exact_normaliser=True).describe()["models"]
    assert (said["normalised"], said["output"]) == (True, "softmax")


def test_with_normaliser_sums_to_1(folder: Path, make: Any) -> None:
    model = load_bundle(folder).rescorer.models["rnn"]
    assert np.exp(make.every_event(with_normaliser(model), [2, 3], VOCABULARY.size)).sum() == pytest.approx(1, abs=1e-5)
    assert np.exp(make.every_event(model, [2, 3], VOCABULARY.size)).sum() != pytest.approx(1, abs=1e-3)


def test_with_normaliser_leaves_other_models_as_they_are(make: Any) -> None:
    for model in (make.elman(VOCABULARY), make.Unigram.drawn(3, 1)):
        assert with_normaliser(model) is model


@pytest.mark.parametrize(
    "bad",
    [
        {"log_normaliser": "1"},
        {"log_normaliser": None},
        {"deviation": -1.0},
        {"clamped": 1.5},
        {"largest": True},
        {"log_normaliser": float("nan")},
        None,
        "yes",
    ],
)
def test_a_measurement_that_is_none_is_refused_by_file_and_field(folder: Path, bad: Any) -> None:
    path = folder / "rnn" / "config.json"
    config = json.loads(path.read_text())
    config["self_normalised"] = {**config["self_normalised"], **bad} if isinstance(bad, dict) else bad
    path.write_text(json.dumps(config))
    with pytest.raises(BundleError, match=r"config\.json.*self_normalised"):
        load_elman(folder / "rnn", VOCABULARY, torch.device("cpu"), {})
