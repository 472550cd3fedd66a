import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clients.errors import UsageError
from clients.options import read_options


def test_nothing_given_is_nothing_sent() -> None:
    assert read_options(None, [], None, None) == {}


def test_weights_are_read_by_name_and_an_explicit_zero_is_kept() -> None:
    assert read_options(None, ["lm_scale=0", "word_bonus = -1.5e0"], None, None) == {
        "lm_scale": 0.0,
        "word_bonus": -1.5,
    }


def test_interpolation_weights_are_read_by_model() -> None:
    assert read_options(None, [], "kn5=0.25, rnn=0.75", "carried") == {
        "interpolation": {"kn5": 0.25, "rnn": 0.75},
        "state": "carried",
    }


@pytest.mark.parametrize("rule", ["total", "mbr", "consensus"])
def test_a_rule_is_read_from_file_or_command_line(write_lines: Callable[..., str], rule: Any) -> None:
    path = write_lines("o.json", [{"decision": rule}])
    assert read_options(path, [], None, None) == {"decision": rule}
    assert read_options(None, [], None, None, rule) == {"decision": rule}
    assert read_options(path, [], None, None, "total") == {"decision": "total"}


def test_the_command_line_overrides_the_file(write_lines: Callable[..., str]) -> None:
    path = write_lines("o.json", [{"lm_scale": 9.5, "oov_bonus": -2, "state": "carried"}])
    assert read_options(path, ["lm_scale=1"], None, "reset") == {
        "lm_scale": 1.0,
        "oov_bonus": -2,
        "state": "reset",
    }


@pytest.mark.parametrize(
    ("weights", "interpolation", "message"),
    [
        (["lm_scale"], None, "must be NAME=VALUE"),
        (["lm_scale=nan"], None, "with a finite number"),
        (["lm_scale=1e400"], None, "with a finite number"),
        (["=1"], None, "must be NAME=VALUE"),
        (["lmscale=1"], None, "no such weight; there are acoustic_scale, first_pass_scale, lm_scale,"),
        ([], "kn5", "must be NAME=VALUE"),
        ([], "kn5=1,", "must be NAME=VALUE"),
        ([], "kn5=0.5,kn5=0.5", "a model is named twice"),
    ],
)
def test_what_is_no_weight_is_named(weights: list[str], interpolation: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_options(None, weights, interpolation, None)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "must hold an object, not an array"),
        ({"lm_scale": True}, "lm_scale: must be a number, not a boolean"),
        ({"lm_scale": None}, "lm_scale: must be a number, not null"),
        ({"interpolation": 1}, "interpolation: must be an object, not a number"),
        ({"interpolation": {"kn5": "1"}}, "interpolation: kn5: must be a number, not a string"),
        ({"state": "kept"}, "state: must be one of reset, carried"),
        ({"decision": "rover"}, "decision: must be one of total, mbr, consensus"),
        ({"decision": ["mbr"]}, "decision: must be one of total, mbr, consensus"),
        ({"beam": 3}, "beam: no such option"),
    ],
)
def test_what_is_no_option_in_a_file_is_named(write_lines: Callable[..., str], document: Any, message: str) -> None:
    path = write_lines("o.json", json.dumps(document).encode())
    with pytest.raises(UsageError) as caught:
        read_options(path, [], None, None)
    assert str(caught.value) == f"--options {path}: {message}"


@pytest.mark.parametrize("raw", [b"{", b'{"lm_scale": 1e400}', b'{"lm_scale": NaN}'])
def test_an_options_file_that_is_no_strict_json_is_named(write_lines: Callable[..., str], raw: bytes) -> None:
    with pytest.raises(UsageError, match=r"--options .*o\.json"):
        read_options(write_lines("o.json", raw), [], None, None)


def test_a_missing_options_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_options(str(tmp_path / "none.json"), [], None, None)
