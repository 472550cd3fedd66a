"""What is begun, what is done meanwhile, and what is waited for."""

from typing import Any

import numpy as np
import pytest

from models.base import FloatArray
from models.errors import InvalidWeightsError, ModelFailedError
from models.nbest import Hypothesis, NBest
from models.normaliser import Normaliser
from models.pending import Begins, Later, Scores, score_all
from models.prefix_tree import PrefixTree
from models.rescoring import Rescorer
from models.rnnlm import ElmanLM
from models.score import Weights
from models.vocabulary import Vocabulary

VOCABULARY = Vocabulary(("a", "b"))


class Plain:
    """A model that gives ln 1/2 to everything, and notes when it is asked."""

    kind = "plain"

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self.calls = name, calls

    def score(self, tree: PrefixTree, start: FloatArray | None = None) -> Scores:
        self.calls.append(f"{self.name}: score{'' if start is None else ' from ' + str(start.shape)}")
        return np.full(tree.events, -np.log(2)), None

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind}


class Device(Plain):
    """The same on a device: it has states, too."""

    def begin(self, tree: PrefixTree, start: FloatArray | None = None) -> Later:
        self.calls.append(f"{self.name}: begin{'' if start is None else ' from ' + str(start.shape)}")

        def result() -> Scores:
            self.calls.append(f"{self.name}: result")
            return np.full(tree.events, -np.log(2)), np.zeros((tree.nodes, 3))

        return Later(result)


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def rescorer(calls: list[str]) -> Rescorer:
    models = {"net1": Device("net1", calls), "kn": Plain("kn", calls), "net2": Device("net2", calls)}
    return Rescorer(VOCABULARY, Normaliser(), models)


WEIGHTS = Weights({"net1": 0.25, "kn": 0.5, "net2": 0.25})
LIST = NBest("u", (Hypothesis("a b", -1.0), Hypothesis("b", -2.0)))


def test_networks_are_begun_first_then_the_n_gram_walks_then_results_are_awaited(
    rescorer: Rescorer, calls: list[str]
) -> None:
    rescorer.rescore([rescorer.prepare(LIST)], [WEIGHTS])
    assert calls == ["net1: begin", "net2: begin", "kn: score", "net1: result", "net2: result"]


def test_scores_stand_in_the_order_of_the_models_whatever_came_first(rescorer: Rescorer) -> None:
    scored = rescorer.score([rescorer.prepare(LIST)])
    assert list(scored.by_model) == ["net1", "kn", "net2"]
    assert list(scored.states) == ["net1", "net2"]
    # Two words and an end, one word and an end: three events of the first are all new, two of the second.
    assert [values.sum() for values in scored.by_model.values()] == pytest.approx([-5 * np.log(2)] * 3)


def test_models_of_no_weight_are_not_begun(rescorer: Rescorer, calls: list[str]) -> None:
    rescorer.rescore([rescorer.prepare(LIST)], [Weights({"kn": 0.5, "net2": 0.5})])
    assert calls == ["net2: begin", "kn: score", "net2: result"]


def test_what_is_begun_is_given_the_state_it_goes_on_from(rescorer: Rescorer, calls: list[str]) -> None:
    prepared = rescorer.prepare(LIST)
    rescorer.rescore_carried([prepared, prepared], WEIGHTS)
    assert calls[5:8] == ["net1: begin from (1, 3)", "net2: begin from (1, 3)", "kn: score"]


def broken(stage: str, error: Exception) -> Device:
    model = Device("net", [])

    def fail(*_: Any) -> Any:
        raise error

    if stage == "begin":
        model.begin = fail  # type: ignore[assignment]
    else:
        model.begin = lambda *_: Later(fail)  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize("stage", ["begin", "result"])
def test_a_failure_names_the_model_whenever_it_shows(stage: str) -> None:
    tree = PrefixTree.build([[2]])
    with pytest.raises(ModelFailedError, match=r"^model 'net' failed: RuntimeError$"):
        score_all({"net": broken(stage, RuntimeError("secret"))}, tree, {"net": None})
    with pytest.raises(InvalidWeightsError, match=r"^as it is$"):
        score_all({"net": broken(stage, InvalidWeightsError("as it is"))}, tree, {"net": None})


def test_a_network_on_a_processor_does_nothing_before_its_result_is_asked_for(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: ElmanLM = make.elman(VOCABULARY, seed=1)
    tree = PrefixTree.build([[2, 3], [3]])
    expected = model.score(tree)
    asked: list[str] = []
    real = model.score

    def noted(*arguments: Any) -> tuple[FloatArray, FloatArray]:
        asked.append("score")
        return real(*arguments)

    monkeypatch.setattr(model, "score", noted)
    assert isinstance(model, Begins)
    pending = model.begin(tree)
    assert asked == []
    log_probs, states = pending.result()
    assert asked == ["score"]
    assert (log_probs == expected[0]).all()
    assert states is not None
    assert (states == expected[1]).all()
