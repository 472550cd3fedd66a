import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from models import class_factored
from models.bundle import add_elman, create_bundle, load_bundle
from models.class_factored import ClassFactored, ClassGroups
from models.elman_files import load_elman
from models.errors import BundleError, TrainingError
from models.ngram import KenLMNgram
from models.normaliser import Normaliser
from models.perplexity import text_log_probs
from models.prefix_tree import PrefixTree
from models.rnnlm import ElmanLM, ElmanWeights
from models.score import interpolate
from models.vocabulary import EOS_ID, UNK_ID, Vocabulary

VOCABULARY = Vocabulary(tuple("abcdefghij"))
EVENTS = [event for event in range(VOCABULARY.size) if event != EOS_ID]
SENTENCES = st.lists(st.lists(st.sampled_from(EVENTS), max_size=6), min_size=1, max_size=8)


def factored(
    make: Any,
    vocabulary: Vocabulary = VOCABULARY,
    *,
    groups: int = 3,
    spread: float = 1.0,
    seed: int = 1,
    dtype: torch.dtype = torch.float64,
    hidden: int = 6,
) -> ElmanLM:
    """A network with random weights and groups drawn at random, none of them empty."""
    plain = make.elman(
        vocabulary, rare=vocabulary.words[-2:], seed=seed, spread=spread, dtype=torch.float64, hidden=hidden
    )
    C = plain.classes.count
    draw = random.Random(seed)
    of_class = [*range(groups), *(draw.randrange(groups) for _ in range(C - groups))]
    draw.shuffle(of_class)
    generator = torch.Generator().manual_seed(seed + 100)
    X = torch.randn(groups, hidden, generator=generator, dtype=torch.float64) * spread
    weights = ElmanWeights(
        plain.weights.U.to(dtype), plain.weights.W.to(dtype), torch.cat([plain.weights.V, X]).to(dtype)
    )
    layer = ClassFactored(weights.V, ClassGroups(np.array(of_class, np.int64)))
    return ElmanLM(weights, plain.classes, plain.initial_state, output=layer)


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = np.exp(logits - logits.max())
    return shares / shares.sum()


def by_formula(model: ElmanLM, sentence: list[int], state: NDArray[np.float64] | None = None) -> list[float]:
    """Word by word in NumPy, each probability a product of two softmaxes as the paper writes it."""
    assert isinstance(model.output, ClassFactored)
    U, W, V = (matrix.double().numpy() for matrix in model.weights.named().values())
    C, of_class = model.classes.count, model.output.groups.of_class
    s = np.full(len(W), model.initial_state) if state is None else state
    read, out = 0, []
    for event in (*sentence, EOS_ID):
        s = 1 / (1 + np.exp(-(U[read] + W @ s)))
        wanted = int(model.classes.of_event[event])
        group = of_class[wanted]
        members = np.flatnonzero(of_class == group)
        inside = softmax(V[members] @ s)[list(members).index(wanted)]
        share = model.classes.rare_members if wanted == 1 else 1
        out.append(float(np.log(softmax(V[C:] @ s)[group] * inside / share)))
        read = wanted
    return out


def test_two_groups_by_hand() -> None:
    # s = 1: groups' logits 0 and ln 3, so 1/4 and 3/4; in the second group logits 0 and ln 2, so 1/3 and 2/3
    V = torch.tensor([1.0, 2.0, 5.0, 1.0, 3.0]).log()[:, None]
    layer = ClassFactored(V, ClassGroups(np.array([1, 1, 0])))
    found = layer.log_probs(torch.ones(1, 1), torch.tensor([0, 0, 0]), torch.tensor([0, 1, 2]))
    assert found.exp().tolist() == pytest.approx([3 / 4 * 1 / 3, 3 / 4 * 2 / 3, 1 / 4])


@pytest.mark.parametrize("groups", [1, 2, 3, 10])
@given(SENTENCES)
def test_a_batch_equals_the_formula_word_by_word(make: Any, groups: int, sentences: list[list[int]]) -> None:
    model = factored(make, groups=groups)
    for row, sentence in zip(text_log_probs(model, sentences), sentences, strict=True):
        assert row == pytest.approx(by_formula(model, sentence), abs=1e-10)


def test_float32_is_close_to_the_formula(make: Any) -> None:
    model = factored(make, dtype=torch.float32, hidden=32)
    draw = random.Random(3)
    for length in (0, 1, 5, 40):
        sentence = draw.choices(EVENTS, k=length)
        (row,) = text_log_probs(model, [sentence])
        assert row == pytest.approx(by_formula(model, sentence), abs=1e-4)


@pytest.mark.parametrize("spread", [30.0, 100.0])
def test_logits_too_large_to_be_raised_are_no_trouble(make: Any, spread: float) -> None:
    for kind in (torch.float32, torch.float64):
        model = factored(make, spread=spread, dtype=kind)
        (row,) = text_log_probs(model, [[2, 5, 7, 0]])
        assert row == pytest.approx(by_formula(model, [2, 5, 7, 0]), rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("logits", [1, 3, 8, 100])
@pytest.mark.parametrize("rows", [1, 4])
def test_scores_do_not_depend_on_how_the_work_is_cut(
    make: Any, monkeypatch: pytest.MonkeyPatch, logits: int, rows: int
) -> None:
    draw = random.Random(2)
    sentences = [draw.choices(EVENTS, k=draw.randrange(6)) for _ in range(20)]
    whole = np.concatenate(text_log_probs(factored(make), sentences))
    monkeypatch.setattr(class_factored, "_LOGITS", logits)
    monkeypatch.setattr(class_factored, "_ROWS", rows)
    assert np.concatenate(text_log_probs(factored(make), sentences)) == pytest.approx(whole, abs=1e-12)


def test_events_may_come_in_any_order(make: Any) -> None:
    model = factored(make)
    draw = np.random.default_rng(1)
    states = torch.from_numpy(draw.uniform(0, 1, (5, 6)))
    histories, classes = (torch.from_numpy(draw.integers(0, top, 60)) for top in (5, model.classes.count))
    together = model.output.log_probs(states, histories, classes)
    for event in range(60):
        alone = model.output.log_probs(states, histories[event : event + 1], classes[event : event + 1])
        assert float(alone) == pytest.approx(float(together[event]), abs=1e-12)


def test_no_events_are_no_trouble(make: Any) -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert len(factored(make).output.log_probs(torch.zeros(2, 6, dtype=torch.float64), none, none)) == 0


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("spread", [1.0, 3.0])
def test_it_sums_to_1(make: Any, groups: int, spread: float) -> None:
    model = factored(make, groups=groups, spread=spread)
    draw = random.Random(7)
    for history in ([], [UNK_ID], *(draw.choices(EVENTS, k=draw.randrange(1, 7)) for _ in range(20))):
        assert np.exp(make.every_event(model, history, VOCABULARY.size)).sum() == pytest.approx(1, abs=1e-12)


def test_a_mixture_with_an_n_gram_sums_to_1(make: Any, kn: KenLMNgram, kn_vocabulary: Vocabulary) -> None:
    models = [kn, factored(make, kn_vocabulary), make.elman(kn_vocabulary)]
    for history in ([], [UNK_ID, 2], [3, 4, 5]):
        parts = np.stack([make.every_event(model, history, kn_vocabulary.size) for model in models])
        assert np.exp(interpolate(parts, np.array([0.5, 0.3, 0.2]))).sum() == pytest.approx(1, abs=1e-5)


def test_carried_state_is_running_on(make: Any) -> None:
    model = factored(make)
    first, second = text_log_probs(model, [[2, 3], [4, 2]], carry_state=True)
    _, states = model.score(tree := PrefixTree.build([[2, 3]]))
    assert first == pytest.approx(by_formula(model, [2, 3]), abs=1e-10)
    assert second == pytest.approx(by_formula(model, [4, 2], states[tree.last_nodes()[0]]), abs=1e-10)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60), st.integers(0, 60))
def test_every_group_has_a_member_and_commoner_classes_come_in_earlier_groups(counts: list[int], wanted: int) -> None:
    if wanted > len(counts):
        with pytest.raises(TrainingError, match="more than"):
            ClassGroups.by_frequency(np.array(counts), wanted)
        return
    groups = ClassGroups.by_frequency(np.array(counts), wanted)
    assert groups.count <= (wanted or round(len(counts) ** 0.5))
    for one, first in zip(groups.of_class, counts, strict=True):
        assert all(one <= other for other, second in zip(groups.of_class, counts, strict=True) if first > second)


def test_groups_have_about_equal_shares_of_the_text() -> None:
    counts = (100_000 / np.arange(1, 1001)).astype(np.int64)
    groups = ClassGroups.by_frequency(counts)
    shares = np.bincount(groups.of_class, counts) / counts.sum()
    # The commonest class alone is 13 % of the text, four of 32 shares; after it, groups are about a share each.
    assert (groups.of_class == 0).sum() == 1
    assert 24 <= groups.count < 32
    assert shares[4:].max() < 0.05


@pytest.mark.parametrize("bad", [[0, 2, 2], [-1, 0, 1], [0, 1, 7], []])
def test_groups_that_are_none_are_refused(bad: list[int]) -> None:
    with pytest.raises(BundleError, match="group"):
        ClassGroups(np.array(bad, np.int64))


def test_a_matrix_that_does_not_fit_the_groups_is_refused() -> None:
    with pytest.raises(BundleError, match=r"3 classes in 2 groups need 5 rows"):
        ClassFactored(torch.zeros(4, 2), ClassGroups(np.array([0, 1, 1])))


def test_a_layer_of_other_classes_than_the_networks_is_refused(make: Any) -> None:
    model = factored(make)
    layer = ClassFactored(torch.zeros(5, 6, dtype=torch.float64), ClassGroups(np.array([0, 1, 1])))
    with pytest.raises(BundleError, match="3 classes, not 10"):
        ElmanLM(model.weights, model.classes, output=layer)


@pytest.fixture
def folder(tmp_path: Path, make: Any) -> Path:
    """A bundle of one factored network."""
    bundle = tmp_path / "bundle"
    add_elman(bundle, create_bundle(bundle, Normaliser(), VOCABULARY), "rnn", factored(make, dtype=torch.float32))
    return bundle


def test_save_then_load_scores_the_same(folder: Path, make: Any) -> None:
    sentences = [[2, 3], [4, 0, 2], []]
    loaded = load_bundle(folder).rescorer.models["rnn"]
    for one, other in zip(
        *(text_log_probs(model, sentences) for model in (loaded, factored(make, dtype=torch.float32))), strict=True
    ):
        assert one.tolist() == other.tolist()


def test_describe_says_the_layer(folder: Path) -> None:
    (model,) = load_bundle(folder).describe()["models"]
    assert (model["kind"], model["output"], model["groups"]) == ("elman", "class-factored", 3)


def test_a_reader_that_knows_no_groups_refuses_the_network(folder: Path) -> None:
    tensors = load_file(folder / "rnn" / "model.safetensors")
    model = load_bundle(folder).rescorer.models["rnn"]
    assert isinstance(model, ElmanLM)
    with pytest.raises(BundleError, match="matrix V has shape"):
        ElmanLM(ElmanWeights(tensors["U"], tensors["W"], tensors["V"]), model.classes)


def _without_groups(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["group_of_class"]


def _empty_group(tensors: dict[str, torch.Tensor]) -> None:
    tensors["group_of_class"][tensors["group_of_class"] == 1] = 2


def _floats(tensors: dict[str, torch.Tensor]) -> None:
    tensors["group_of_class"] = tensors["group_of_class"].float()


def _too_few(tensors: dict[str, torch.Tensor]) -> None:
    tensors["group_of_class"] = tensors["group_of_class"][:-1].clone()


def _no_rows(tensors: dict[str, torch.Tensor]) -> None:
    tensors["V"] = tensors["V"][:-1].clone()


def _not_finite(tensors: dict[str, torch.Tensor]) -> None:
    tensors["V"][-1, 0] = torch.nan


def _scalar(tensors: dict[str, torch.Tensor]) -> None:
    tensors["V"] = torch.tensor(1.0)


@pytest.mark.parametrize("spoil", [_without_groups, _empty_group, _floats, _too_few, _no_rows, _not_finite, _scalar])
def test_a_broken_file_is_named(folder: Path, spoil: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = folder / "rnn" / "model.safetensors"
    tensors = load_file(path)
    spoil(tensors)
    save_file(tensors, path)
    with pytest.raises(BundleError, match=r"rnn/model\.safetensors"):
        load_elman(folder / "rnn", VOCABULARY, torch.device("cpu"), {})


@pytest.mark.parametrize("output", ["hierarchical", None, 3])
def test_an_output_layer_that_is_not_known_is_refused(folder: Path, output: Any) -> None:
    path = folder / "rnn" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "output": output}))
    with pytest.raises(BundleError, match=r"config\.json.*output"):
        load_elman(folder / "rnn", VOCABULARY, torch.device("cpu"), {})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_cuda_scores_as_the_cpu_does(folder: Path) -> None:
    here, there = (load_bundle(folder, device=device).rescorer.models["rnn"] for device in ("cpu", "cuda"))
    for one, other in zip(*(text_log_probs(model, [[2, 3, 4], [5]]) for model in (here, there)), strict=True):
        assert one == pytest.approx(other, abs=1e-4)
