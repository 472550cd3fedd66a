"""Settings: where they come from, and what is no setting."""

from pathlib import Path

import pytest

from service.errors import SettingsError
from service.settings import read_settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BUNDLE", "HOST", "PORT", "DOCS", "API_KEY", "THREADS", "DEADLINE_S", "MAX_BODY_BYTES"):
        monkeypatch.delenv(f"NBEST_{name}", raising=False)


@pytest.mark.parametrize(
    ("text", "value"), [("false", False), ("0", False), ("no", False), ("true", True), ("on", True)]
)
def test_a_boolean_in_the_environment_is_parsed(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv("NBEST_DOCS", text)
    assert read_settings({"bundle": "b"}).docs is value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("DOCS", "maybe"),
        ("PORT", "http"),
        ("PORT", "65536"),
        ("DEADLINE_S", "nan"),
        ("DEADLINE_S", "inf"),
        ("DEADLINE_S", "0"),
        ("DEVICE", "tpu"),
        ("MAX_BODY_BYTES", "-1"),
        ("MAX_UTTERANCES", "1001"),
    ],
)
def test_a_variable_that_is_no_such_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(f"NBEST_{name}", text)
    with pytest.raises(SettingsError, match=rf"^NBEST_{name}: "):
        read_settings({"bundle": "b"})


def test_an_option_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBEST_PORT", "1234")
    monkeypatch.setenv("NBEST_THREADS", "3")
    settings = read_settings({"bundle": "b", "port": 4321, "threads": None})
    assert (settings.port, settings.threads) == (4321, 3)


def test_an_option_at_fault_is_named_as_an_option() -> None:
    with pytest.raises(SettingsError, match=r"^--deadline-s: "):
        read_settings({"bundle": "b", "deadline_s": -1.0})


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBEST_API_KEY", "")
    assert read_settings({"bundle": "b"}).api_key is None


def test_a_bundle_may_be_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBEST_BUNDLE", "somewhere")
    assert read_settings({"bundle": None}).bundle == Path("somewhere")


def test_without_a_bundle_both_ways_to_name_one_are_said() -> None:
    with pytest.raises(SettingsError, match=r"nbest serve BUNDLE, or NBEST_BUNDLE"):
        read_settings({})


def test_the_key_is_shown_neither_in_errors_nor_in_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBEST_API_KEY", "hunter2")
    with pytest.raises(SettingsError) as refused:
        read_settings({"bundle": "b"})
    monkeypatch.setenv("NBEST_API_KEY", "hunter2hunter2")
    assert "hunter2" not in f"{refused.value} {read_settings({'bundle': 'b'})!r}"


def test_variables_of_other_commands_are_let_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBEST_URL", "http://localhost")
    assert read_settings({"bundle": "b"}).port == 8000
