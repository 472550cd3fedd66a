"""`nbest perplexity` sentence by sentence, as a user types it."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.mark.parametrize("state", ["reset", "carried"])
def test_the_sentences_make_up_the_text(tmp_path: Path, trained: Path, run: Run, state: str) -> None:
    (tmp_path / "test.txt").write_text("The cat sat\n\nthe zebra ran\n")
    arguments = ("--text", tmp_path / "test.txt", "--state", state, "--json", "--sentences", tmp_path / "sentences")
    answer = run("perplexity", trained, *arguments, "--device", "cpu")
    lines = [json.loads(line) for line in (tmp_path / "sentences").read_text().splitlines()]
    assert [(line["line"], line["text"], line["words"], line["oov"]) for line in lines] == [
        (1, "the cat sat", 3, 0),
        (3, "the zebra ran", 3, 1),
    ]
    assert {line["file"] for line in lines} == {str(tmp_path / "test.txt")}
    rows = json.loads(answer.out)
    for row in rows:
        own = [line["log_prob"][row["model"]] for line in lines]
        assert row["sentences"] == len(lines)
        assert row["log_likelihood"] == pytest.approx(math.fsum(own))
        assert row["perplexity"] == pytest.approx(math.exp(-math.fsum(own) / 8))
        for line, log_prob in zip(lines, own, strict=True):
            assert line["perplexity"][row["model"]] == pytest.approx(math.exp(-log_prob / 4))


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, trained: Path, run: Run) -> None:
    (tmp_path / "test.txt").write_text("the cat sat\n")
    target = tmp_path / "missing" / "sentences"
    answer = run("perplexity", trained, "--text", tmp_path / "test.txt", "--sentences", target, "--device", "cpu")
    assert answer.code == 1
    assert f"{target}: cannot be written" in answer.complaint
