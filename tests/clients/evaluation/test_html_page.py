import base64
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from clients.cli import main
from clients.evaluation.as_json import to_json
from clients.evaluation.evaluator import Choices, Evaluator
from clients.evaluation.from_json import from_json
from clients.evaluation.html_page.notes import Notes
from clients.evaluation.html_page.page import render
from clients.evaluation.summary import summarise
from clients.evaluation.utterance import Utterance

Write = Callable[..., str]
EVIL = ["<script>alert(1)</script>", "</script>", "</style>", '"><img', "src=x", "onerror=alert(1)>", "&lt;", "{{7*7}}"]


def result(identifier: str, reference: str, texts: list[str], order: list[int], **extra: Any) -> dict[str, Any]:
    """A result whose language model likes later hypotheses better; lm_scale 2 gives the order."""
    ranking = []
    for rank, i in enumerate(order):
        lm = -10.0 - rank
        ranking.append({"index": i, "total": -50.0 + 2 * lm, "posterior": 0.5, "scored_text": texts[i], "lm": lm})
    made = {"bundle": "b" * 64, "weights": {"lm_scale": 2.0, "interpolation": {"kn5": 1.0}}, "state": "reset"}
    return {"id": identifier, "ranking": ranking, "scored_reference": reference, **made, **extra}


ROWS = [
    result("s-1", "a b c d", ["a b x", "a b c", "a b c d"], [1, 0, 2], speaker="s", session_id="m"),
    result("t-2", "e f", ["e f", "e f g"], [1, 0], speaker="t"),
    result("t-3", "g h i", ["g h", "g h i"], [1, 0], speaker="t"),
]


class Page(HTMLParser):
    """What a reader sees: tables by id, all text outside scripts and styles, elements and their attributes."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[tuple[str, float | None]]]] = {}
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.raw: dict[str, str] = {}
        self._open: list[str] = []
        self._table: list[list[tuple[str, float | None]]] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag not in {"meta", "link"}:
            self._open.append(tag)
        if tag == "table":
            self._table = self.tables[(attributes["id"] or "").removesuffix("-table")] = []
        elif tag == "tr":
            self._table.append([])
        elif tag in {"td", "th"}:
            value = attributes.get("data-value")
            self._table[-1].append(("", None if value is None else json.loads(value)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        here = self._open[-1] if self._open else ""
        if here in {"script", "style"}:
            self.raw[here] = self.raw.get(here, "") + data
            return
        self.texts.append(data)
        if {"td", "th"} & set(self._open):
            text, value = self._table[-1][-1]
            self._table[-1][-1] = (text + data, value)

    def column(self, table: str, place: int) -> list[Any]:
        return [row[place][1] for row in self.tables[table][1:]]

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def written(tmp_path: Path, *arguments: str) -> tuple[Page, Any]:
    html, report = tmp_path / "page.html", tmp_path / "report.json"
    assert main(["evaluate", *arguments, "--resamples", "200", "--html", str(html), "--json", str(report)]) == 0
    return Page(html.read_text(encoding="utf-8")), json.loads(report.read_text(encoding="utf-8"))


@pytest.fixture
def two(write_lines: Write) -> list[str]:
    other = [{**row, "ranking": row["ranking"][::-1]} for row in ROWS]
    return [write_lines("one.jsonl", ROWS), write_lines("two.jsonl", other)]


def test_rates_and_counts_on_the_page_are_those_of_the_json(tmp_path: Path, two: list[str]) -> None:
    page, report = written(tmp_path, *two)
    systems = report["systems"]
    names = [
        "wer_percent", "", "errors", "substitutions", "deletions", "insertions", "hypothesis_words",
        "cer_percent", "ser_percent", "mer_percent", "wil_percent",
    ]  # fmt: skip
    assert [row[0][0] for row in page.tables["systems"][1:]] == ["first pass", "one", "two", "oracle"]
    for place, name in enumerate(names, start=1):
        expected = [system[name] if name else system["wer_interval_percent"][0] for system in systems]
        assert page.column("systems", place) == expected
    for place, name in enumerate(("cer", "ser", "mer", "wil"), start=1):
        assert page.column("intervals", place) == [system[f"{name}_interval_percent"][0] for system in systems]


def test_comparisons_and_effects_on_the_page_are_those_of_the_json(tmp_path: Path, two: list[str]) -> None:
    page, report = written(tmp_path, *two)
    compared = [system["against_first_pass"] for system in report["systems"][1:-1]] + report["comparisons"]
    assert [row[0][0] for row in page.tables["comparisons"][1:]] == [
        "one less first pass",
        "two less first pass",
        "two less one",
    ]
    for place, name in ((1, "points_percent"), (3, "p_value"), (4, "p_value_corrected")):
        assert page.column("comparisons", place) == [one[name] for one in compared]
    for place, name in ((5, "segments"), (6, "z"), (7, "p_value"), (8, "p_value_corrected")):
        assert page.column("comparisons", place) == [one["matched_pairs"][name] for one in compared]
    effects = [system["effect"] for system in report["systems"][1:-1]]
    assert [list(effect.values()) for effect in effects] == [
        [value for _, value in row[1:]] for row in page.tables["effects"][1:]
    ]


def test_oracles_groups_and_confusions_on_the_page_are_those_of_the_json(tmp_path: Path, two: list[str]) -> None:
    page, report = written(tmp_path, *two)
    for place, oracle in enumerate(report["oracle_by_depth"], start=1):
        assert page.column("oracle-numbers", place) == [point["wer_percent"] for point in oracle["curve"]]
        assert page.tables["ranks"][place][1][1] == oracle["rank_of_best"]["mean"]
    assert set(report["breakdowns"]) == {"speaker", "session", "length", "position"}
    for by, groups in report["breakdowns"].items():
        rows = page.tables[f"by-{by}"][1:]
        assert [row[0][0] for row in rows] == [group["name"] or "(none)" for group in groups]
        for row, group in zip(rows, groups, strict=True):
            assert [value for _, value in row[3:]] == [system["wer_percent"] for system in group["systems"]]
    for number, system in enumerate(report["systems"][:-1]):
        found = system["confusions"]["substitutions"]
        shown = [(a[0], b[0], c[1]) for a, b, c in page.tables[f"substitutions-{number}"][1:]]
        assert shown == [(entry["reference"], entry["hypothesis"], entry["count"]) for entry in found]


def test_signatures_and_notes_stand_on_the_page_word_for_word(tmp_path: Path, two: list[str]) -> None:
    page, report = written(tmp_path, *two)
    assert report["findings"]
    for line in (*report["signatures"].values(), *report["findings"]):
        assert line in page.text


def test_whatever_a_text_holds_is_shown_as_text(write_lines: Write, tmp_path: Path) -> None:
    name = "u</title><script>alert(2)</script>"
    evil = " ".join(EVIL)
    extra = {"speaker": "</td><b>", "session_id": "<i>"}
    path = write_lines("<b>&.jsonl", [result(name, evil, ["x", f"{evil} {evil}"], [1, 0], **extra)])
    page, _ = written(tmp_path, path, "--set-name", "</title><script>alert(3)</script>")
    tags = [tag for tag, _ in page.elements]
    assert tags.count("script") == 1
    assert not {"img", "b", "i"} & set(tags)
    assert not any(key.startswith("on") for _, attributes in page.elements for key in attributes)
    assert "alert" not in page.raw["script"] + page.raw["style"]
    for word in (*EVIL, name, "</td><b>", "</title><script>alert(3)</script>"):
        assert word in page.text


def test_nothing_is_asked_for_from_elsewhere(tmp_path: Path, two: list[str]) -> None:
    page, _ = written(tmp_path, *two)
    addresses = [
        value
        for _, attributes in page.elements
        for key, value in attributes.items()
        if key in {"href", "src", "srcset", "action", "data", "poster", "xlink:href", "style"}
    ]
    assert all(value == "data:," or (value or "").startswith("#") for value in addresses)
    assert not re.search(r"url\(|@import|https?:|fetch|XMLHttp", page.raw["style"] + page.raw["script"])


def test_the_policy_allows_this_style_and_this_script_and_nothing_else(tmp_path: Path, two: list[str]) -> None:
    page, _ = written(tmp_path, *two)
    (policy,) = [a["content"] or "" for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    digests = {tag: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for tag, text in page.raw.items()}
    assert rules == {
        "default-src": "'none'",
        "style-src": f"'sha256-{digests['style']}'",
        "script-src": f"'sha256-{digests['script']}'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_drawings_say_in_words_what_they_show_and_have_their_numbers_as_a_table(tmp_path: Path, two: list[str]) -> None:
    page, _ = written(tmp_path, *two)
    ids = [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    labels = [a["aria-labelledby"] for tag, a in page.elements if tag == "svg" and a.get("role") == "img"]
    assert len(labels) >= 4
    for label in labels:
        assert label is not None
        title, words = label.split()
        assert {title, words} <= set(ids)
        assert f"{title.removesuffix('-title')}-words" == words
    assert "lowest" in page.text
    assert {"wer-numbers", "difference-numbers", "oracle-numbers", "sweep-numbers"} <= set(page.tables)


def test_every_heading_of_a_table_is_a_button_in_a_heading_cell(tmp_path: Path, two: list[str]) -> None:
    page, _ = written(tmp_path, *two)
    headings = [a for tag, a in page.elements if tag == "th" and a.get("scope") == "col"]
    buttons = [a for tag, a in page.elements if tag == "button" and a.get("class") == "sort"]
    assert len(headings) == len(buttons) > 50
    assert all(button["type"] == "button" for button in buttons)


def test_worst_utterances_are_on_the_page_unasked_and_printed_only_when_asked_for(
    tmp_path: Path, two: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    page, _ = written(tmp_path, *two)
    assert "Most errors of one" in page.text
    assert "worst 1 of" not in capsys.readouterr().out
    page, _ = written(tmp_path, *two, "--worst", "0")
    assert "Most errors of one" not in page.text


def test_a_plain_nbest_file_gives_a_page_without_comparisons(write_lines: Write, tmp_path: Path) -> None:
    hypotheses = [{"text": text, "acoustic_score": 0} for text in ("a b", "a")]
    page, _ = written(tmp_path, write_lines("n.jsonl", [{"id": "u", "reference": "a", "hypotheses": hypotheses}]))
    assert "comparisons" not in page.tables
    assert [row[0][0] for row in page.tables["systems"][1:]] == ["first pass", "oracle"]


@pytest.mark.parametrize(("reference", "texts"), [("a", ["a"]), ("a", [""]), ("a b", ["a b", "a b", "a b"])])
def test_the_smallest_evaluations_have_a_page(
    write_lines: Write, tmp_path: Path, reference: str, texts: list[str]
) -> None:
    page, report = written(tmp_path, write_lines("r.jsonl", [result("u", reference, texts, list(range(len(texts))))]))
    assert page.column("systems", 1) == [system["wer_percent"] for system in report["systems"]]
    assert "nan" not in page.text.lower().split()


def test_of_texts_from_elsewhere_it_is_said_that_scores_are_left_out(
    write_lines: Write, tmp_path: Path, two: list[str]
) -> None:
    lists = []
    for row in ROWS:
        texts = {entry["index"]: entry["scored_text"] for entry in row["ranking"]}
        hypotheses = [{"text": texts[i], "acoustic_score": 0} for i in range(len(texts))]
        lists.append({"id": row["id"], "reference": row["scored_reference"], "hypotheses": hypotheses})
    page, _ = written(tmp_path, two[0], "--nbest", write_lines("n.jsonl", lists))
    assert "Of one no scores are shown: its texts came from another file." in page.text
    assert "sweep-numbers" not in page.tables


def test_the_page_can_be_written_to_standard_output(two: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", two[0], "--resamples", "100", "--html", "-"]) == 0
    out, err = capfd.readouterr()
    assert Page(out).tables["systems"]
    assert "reference words" in err


def test_standard_output_holds_one_of_json_and_page(two: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", two[0], "--html", "-", "--json", "-"]) == 2
    assert "cannot both write to standard output" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_named(
    tmp_path: Path, two: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", two[0], "--resamples", "100", "--html", str(tmp_path / "no" / "page.html")]) == 1
    assert "page.html: cannot be written" in capsys.readouterr().err


def page_of(utterances: int, words: int, speakers: int) -> str:
    """A page of lists with an error in every word, of so many speakers, each with a long name."""
    choices = Choices(resamples=100, worst=10)
    notes = Notes(choices)
    evaluator = Evaluator(choices, notes)
    evaluator.add_system("rescored")
    for number in range(utterances):
        reference = [f"w{number}.{i}" for i in range(words)]
        lists = [[f"x{word}" for word in reference], [f"y{word}" for word in reference[1:]]]
        name = f"{number % speakers:04}" + "n" * 500
        evaluator.add(Utterance(f"u{number}", reference, lists, [[1, 0]], name))
    return render(summarise(evaluator, set_name="many", normalised=True), notes)


@pytest.mark.slow
def test_the_page_is_bounded_however_many_utterances_speakers_and_words_there_are() -> None:
    few, many = page_of(300, 20, 250), page_of(1500, 20, 1500)
    assert len(many) < 1.03 * len(few)
    assert "The 200 groups with the most words, of 1500" in many
    assert len(page_of(20, 5000, 1)) < 2.0e6


def test_a_report_that_was_sent_as_json_has_the_same_page_but_for_what_it_does_not_hold() -> None:
    evaluator = Evaluator(Choices(resamples=100, worst=3))
    evaluator.add_system("s")
    evaluator.add(Utterance("u", ["a", "b"], [["x", "b"], ["a", "b"]], [[1, 0]], "t"))
    evaluator.add(Utterance("v", ["a", "b"], [["a", "b"], ["y"]], [[1, 0]]))
    evaluation = summarise(evaluator, set_name="test", normalised=True)
    page = render(from_json(json.loads(json.dumps(to_json(evaluation)))))
    assert page == render(evaluation)
    assert "Most errors of s" in Page(page).text
