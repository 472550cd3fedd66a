import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.errors import EvaluationError, InputFileError
from clients.evaluation.evaluator import FIRST_PASS, Choices, Evaluator
from clients.evaluation.html_page.axes import linear, logarithmic
from clients.evaluation.html_page.conclusions import conclusions
from clients.evaluation.html_page.notes import Notes
from clients.evaluation.html_page.order import blocks
from clients.evaluation.html_page.perplexity import PerplexityTally
from clients.evaluation.html_page.scores import read_scores
from clients.evaluation.html_page.sweep import SweepTally
from clients.evaluation.normalisation import Normalisation
from clients.evaluation.run import Settings, evaluate
from clients.evaluation.utterance import Utterance

Write = Callable[..., str]
SCORES = st.floats(-1e3, 0)
LISTS = st.lists(st.tuples(SCORES, SCORES, st.integers(0, 9)), min_size=1, max_size=6)


@given(st.lists(LISTS, min_size=1, max_size=5), st.sampled_from([0.0, 0.5, 7.3, -2.0]))
def test_the_sweep_is_what_ranking_anew_at_each_scale_gives(lists: list[Any], own: float) -> None:
    tally = SweepTally("s", own)
    for rows in lists:
        rest, lm, errors = (np.array(column, np.float64) for column in zip(*rows, strict=True))
        tally.add(rest + own * lm, lm, errors.astype(np.int64), 10)
    sweep = tally.result()
    assert sweep is not None
    for point in sweep.points:
        least, most = 0, 0
        for rows in lists:
            totals = [rest + point.lm_scale * lm for rest, lm, _ in rows]
            # Which of hypotheses that tie but for rounding comes first is not the point here.
            near = [row[2] for row, total in zip(rows, totals, strict=True) if total >= max(totals) - 1e-6]
            least, most = least + min(near), most + max(near)
        assert least <= point.errors <= most
        assert point.wer == 100 * point.errors / (10 * len(lists))


def test_the_sweep_goes_from_0_past_the_scale_that_was_used_to_twice_that() -> None:
    tally = SweepTally("s", 0.7)
    tally.add(np.array([0.0]), np.array([-1.0]), np.array([1]), 1)
    sweep = tally.result()
    assert sweep is not None
    scales = [point.lm_scale for point in sweep.points]
    assert (scales[0], scales[10]) == (0.0, 0.7)
    assert scales[20] == pytest.approx(1.4)
    assert sweep.own == scales[10]


def test_perplexity_by_hand() -> None:
    tally = PerplexityTally("s")
    # 2 words and </s> at 1/8 each, 1 word and </s> at 1/2 each: exp((3 ln 8 + 2 ln 2) / 5) = 2^(11 / 5)
    tally.add(3 * math.log(1 / 8), 3, 1, 2)
    tally.add(2 * math.log(1 / 2), 2, 0, 2)
    found = tally.result()
    assert found is not None
    assert found.all.perplexity == pytest.approx(2 ** (11 / 5))
    assert (found.all.utterances, found.all.wer, found.bins) == (2, 25.0, ())


def test_bins_go_from_easy_to_hard_and_hold_every_utterance() -> None:
    tally = PerplexityTally("s")
    for number in range(45):
        tally.add(-float(number * 7 % 45), 1, number % 2, 1)
    found = tally.result()
    assert found is not None
    assert [point.utterances for point in found.bins] == [23, 22]
    assert all(one.perplexity < other.perplexity for one, other in pairwise(found.bins))
    # hardness 0 to 22, of 23, sums to 253
    assert found.bins[0].perplexity == pytest.approx(math.exp(253 / 23))


def test_a_perplexity_beyond_all_numbers_is_none() -> None:
    tally = PerplexityTally("s")
    tally.add(-1e9, 1, 0, 1)
    assert tally.result() is None


def noted(count: int) -> Notes:
    """Lists of two words, the first wrong in the first pass; the system mends it in the second half."""
    notes = Notes(Choices())
    evaluator = Evaluator(Choices(), notes)
    evaluator.add_system("s")
    for number in range(count):
        ranking = [1, 0] if number >= count // 2 else [0, 1]
        evaluator.add(Utterance(f"u{number}", ["a", "b"], [["x", "b"], ["a", "b"]], [ranking]))
    return notes


def test_blocks_show_where_in_the_set_a_system_gains() -> None:
    first, second = blocks(noted(16), [FIRST_PASS, "s"])
    assert (first.first, first.last, second.first, second.last) == (1, 8, 9, 16)
    assert (first.wer, second.wer) == ((50.0, 50.0), (50.0, 0.0))
    assert (first.running, second.running) == ((50.0, 50.0), (50.0, 25.0))
    assert blocks(noted(15), [FIRST_PASS, "s"]) == ()


@pytest.mark.parametrize("count", [16, 199, 1000])
def test_blocks_hold_every_utterance_once(count: int) -> None:
    found = blocks(noted(count), [FIRST_PASS])
    assert [number for b in found for number in range(b.first, b.last + 1)] == list(range(1, count + 1))
    assert len(found) <= 25


def test_where_rescoring_helped_and_hurt_most_is_found_and_the_sample_is_the_same_for_all_systems() -> None:
    notes = Notes(Choices())
    evaluator = Evaluator(Choices(), notes)
    evaluator.add_system("one")
    evaluator.add_system("two")
    for number in range(40):
        reference = [str(i) for i in range(number + 1)]
        lists = [["x", *reference[1:]], reference, ["x"] * (number + 1)]
        evaluator.add(Utterance(f"u{number}", reference, lists, [[1, 0, 2], [2, 0, 1]]))
    one, two = notes.shown("one"), notes.shown("two")
    assert [(e.utterance_id, e.fewer) for e in one.helped] == [(f"u{number}", -1) for number in range(10)]
    assert one.hurt == two.helped == ()
    assert [(e.utterance_id, e.fewer) for e in two.hurt] == [(f"u{number}", number) for number in range(39, 29, -1)]
    assert [e.utterance_id for e in one.sample] == [e.utterance_id for e in two.sample]
    assert len(one.sample) == 10
    assert {name: a.operations for name, a in two.hurt[0].alignments.items()} == {
        "first pass": "S" + "C" * 39,
        "two": "S" * 40,
        "oracle": "C" * 40,
    }


def result(identifier: str, entries: list[tuple[str, float, float]], **extra: Any) -> dict[str, Any]:
    """entries: text, everything but the language model, lm; made with lm_scale 1."""
    order = sorted(range(len(entries)), key=lambda i: -entries[i][1] - entries[i][2])
    ranking = [
        {"index": i, "total": entries[i][1] + entries[i][2], "scored_text": entries[i][0], "lm": entries[i][2]}
        for i in order
    ]
    made = {"bundle": "b", "weights": {"lm_scale": 1.0}, "state": "reset"}
    return {"id": identifier, "ranking": ranking, "scored_reference": "a b", **made, **extra}


# Without the language model "x b" is ahead by 1; the language model prefers "a b" by 2: it wins from lm_scale 0.5 on.
ROW = result("u", [("x b", -4.0, -9.0), ("a b", -5.0, -7.0)])


def studied(write_lines: Write, rows: list[Any], normalisation: Normalisation | None = None) -> Any:
    path = write_lines("r.jsonl", rows)
    chosen = Choices(normalisation=normalisation or Normalisation(), resamples=100)
    notes = Notes(chosen)
    evaluation = evaluate([path], Settings(choices=chosen), notes)
    scores = read_scores({"r": path}, notes, chosen.normalisation, own_texts=True)
    return evaluation, scores


def test_the_sweep_of_a_file_changes_its_answer_where_the_parts_say_so(write_lines: Write) -> None:
    evaluation, scores = studied(write_lines, [ROW])
    (sweep,) = scores.sweeps
    # at 0.5 both have -8.5, and the first in the list is taken
    assert {round(p.lm_scale, 9): p.errors for p in sweep.points} == {i / 10: int(i <= 5) for i in range(21)}
    at_own = [p.errors for p in sweep.points if p.lm_scale == sweep.own]
    assert at_own == [evaluation.systems[1].counts.errors]
    (perplexity,) = scores.perplexities
    # nearest is "a b": ln P = -7 over 2 words and </s>
    assert perplexity.all.perplexity == pytest.approx(math.exp(7 / 3))


def test_the_sweep_compares_words_as_the_evaluation_does(write_lines: Write) -> None:
    row = result("u", [("A b", -4.0, -9.0), ("a b", -5.0, -7.0)])
    _, scores = studied(write_lines, [row], Normalisation(lowercase=True))
    assert {p.errors for p in scores.sweeps[0].points} == {0}


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({"sessions": {"rate": 0.1}}, "which transcripts were accepted before"),
        ({"state": "carried"}, "which transcripts were accepted before"),
        ({"decision": "mbr"}, "decided on by mbr"),
        ({"weights": {}}, "does not say with which lm_scale"),
    ],
)
def test_where_other_weights_cannot_be_tried_it_is_said_why(
    write_lines: Write, extra: dict[str, Any], why: str
) -> None:
    _, scores = studied(write_lines, [{**ROW, **extra}])
    assert scores.sweeps == ()
    assert len(scores.perplexities) == 1
    (said,) = scores.left_out
    assert why in said


def test_results_without_scores_have_no_such_plots(write_lines: Write) -> None:
    bare = {**ROW, "ranking": [{k: v for k, v in entry.items() if k != "lm"} for entry in ROW["ranking"]]}
    _, scores = studied(write_lines, [bare])
    assert (scores.sweeps, scores.perplexities) == ((), ())
    assert "none of its language model" in scores.left_out[0]


def test_standard_input_is_not_read_a_second_time() -> None:
    scores = read_scores({"r": "-"}, noted(1), Normalisation(), own_texts=True)
    assert scores.left_out == ("Of r no scores are shown: standard input is read only once.",)


def test_a_file_that_has_changed_meanwhile_is_named(write_lines: Write) -> None:
    path = write_lines("r.jsonl", [ROW])
    with pytest.raises(EvaluationError, match=r"r.jsonl: changed while it was evaluated: 'u' is new"):
        read_scores({"s": path}, noted(1), Normalisation(), own_texts=True)


def test_a_score_that_is_no_number_is_named(write_lines: Write) -> None:
    row = {**ROW, "ranking": [{**ROW["ranking"][0], "lm": "low"}, ROW["ranking"][1]]}
    with pytest.raises(InputFileError, match=r"r.jsonl:1: ranking\[0\].lm: must be a finite number"):
        studied(write_lines, [row])


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=5))
def test_a_linear_axis_keeps_order_and_holds_every_value(values: list[float]) -> None:
    axis = linear(values, 10, 110)
    places = [axis.at(value) for value in sorted(values)]
    assert all(10 <= place <= 110 for place in places)
    assert places == sorted(places)
    assert 2 <= len(axis.ticks) <= 8
    assert all(axis.low - 1e-6 <= tick <= axis.high + 1e-6 for tick in axis.ticks)


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=5))
def test_a_logarithmic_axis_keeps_order_and_its_marks_apart(values: list[float]) -> None:
    axis = logarithmic(values, 10, 410)
    places = [axis.at(value) for value in sorted(values)]
    assert all(10 <= place <= 410 for place in places)
    assert places == sorted(places)
    assert all(other - one >= 26 for one, other in pairwise(axis.at(tick) for tick in axis.ticks))


def compared(points: float, bootstrap: float, pairs: float | None) -> str:
    against = {
        "points_percent": points,
        "interval_percent": [points - 1, points + 1],
        "p_value_corrected": bootstrap,
        "matched_pairs": {"p_value_corrected": pairs},
    }
    systems = [{"name": "first pass"}, {"name": "s", "against_first_pass": against}, {"name": "oracle"}]
    (sentence,) = conclusions({"systems": systems, "comparisons": []})
    return sentence


def test_conclusions_say_in_words_what_the_tests_found() -> None:
    both = compared(-1.5, 0.01, 0.02)
    assert "The WER of s is 1.50 points lower than that of the first pass" in both
    assert "Both tests find a difference at the 5% level" in both
    assert "1.50 points higher" in compared(1.5, 0.01, 0.02)
    assert "Neither test shows a difference" in compared(-1.5, 0.06, 0.05)
    assert "the matched-pairs test finds a difference, the paired bootstrap does not" in compared(-1.5, 0.06, 0.04)
    assert "the paired bootstrap finds a difference, the matched-pairs test does not" in compared(-1.5, 0.04, 0.06)
    assert "the matched-pairs test is not defined here" in compared(-1.5, 0.04, None)
    assert "as many errors as the first pass" in compared(0.0, 1.0, 1.0)
