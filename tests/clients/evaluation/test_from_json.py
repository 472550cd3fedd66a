"""A result read back from its JSON is the result that was written."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.errors import EvaluationError
from clients.evaluation.as_json import to_json
from clients.evaluation.evaluator import Choices, Evaluator
from clients.evaluation.from_json import from_json
from clients.evaluation.normalisation import Normalisation
from clients.evaluation.result import Evaluation
from clients.evaluation.summary import summarise
from clients.evaluation.utterance import Utterance

WORDS = st.lists(st.sampled_from(["a", "b", "c", "D", "e,"]), max_size=5)


@st.composite
def evaluations(draw: st.DrawFn) -> Evaluation:
    normalisation = draw(st.sampled_from([Normalisation(), Normalisation("NFC", True, True, frozenset({"c"}))]))
    evaluator = Evaluator(Choices(normalisation, resamples=50, seed=draw(st.integers(0, 9)), worst=3))
    systems = draw(st.integers(0, 3))
    for number in range(systems):
        evaluator.add_system(f"s{number}")
    for number in range(draw(st.integers(1, 6))):
        lists = draw(st.lists(WORDS, min_size=1, max_size=4))
        rankings = [draw(st.permutations(range(len(lists)))) for _ in range(systems)]
        speaker = draw(st.sampled_from([None, "x", "y"]))
        reference = ["a", *draw(WORDS)]
        evaluator.add(Utterance(f"u{number}", reference, lists, rankings, speaker, draw(st.sampled_from([None, "t"]))))
    made_with = [{"bundle": "b", "weights": {"lm_scale": 1.5}, "state": "reset"}] * systems
    return summarise(evaluator, set_name="set", normalised=draw(st.booleans()), skipped=2, made_with=made_with)


@given(evaluations())
@settings(deadline=None, max_examples=60)
def test_nothing_is_lost_on_the_way_through_json(evaluation: Evaluation) -> None:
    read = from_json(json.loads(json.dumps(to_json(evaluation), allow_nan=False)))
    # How many worst utterances were asked for is not told; those that there were are.
    assert read == replace(evaluation, choices=replace(evaluation.choices, worst=0))


def document() -> dict[str, Any]:
    evaluator = Evaluator(Choices(resamples=50))
    evaluator.add(Utterance("u", ["a"], [["b"]]))
    return to_json(summarise(evaluator, set_name="set", normalised=False))


@pytest.mark.parametrize("name", list(document()))
def test_a_document_that_lacks_a_part_is_refused(name: str) -> None:
    lacking = document()
    # What can be computed from the rest is.
    computed = {"findings", "signatures", "correction"}
    del lacking[name]
    if name in computed:
        assert to_json(from_json(lacking)) == document()
    else:
        with pytest.raises(EvaluationError, match="no evaluation"):
            from_json(lacking)


@pytest.mark.parametrize("systems", [[], None, [{}], {"a": 1}, "x"])
def test_what_is_no_evaluation_is_refused(systems: Any) -> None:
    with pytest.raises(EvaluationError, match="no evaluation"):
        from_json({**document(), "systems": systems})
