from collections.abc import Callable
from typing import Any

import pytest

from clients.cli import main
from clients.session_plan import gains, session_id

URL, BUNDLE = ("--url", "http://127.0.0.1:1"), ("--bundle", "nowhere")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*URL, "--rate", "0.1"), "--rate: goes with --dynamic: without it nothing is learnt"),
        ((*URL, "--session-per", "file", "--learn-from", "winner", "--tau", "2"), "--learn-from, --tau: goes with"),
        ((*BUNDLE, "--decay", "0"), "--decay: goes with --dynamic"),
        ((*URL, "--dynamic", "--rate", "inf"), "--rate inf: must be finite"),
        ((*URL, "--dynamic", "--decay", "inf"), "--decay inf: must be finite"),
        ((*URL, "--keep-sessions"), "--keep-sessions goes with --url and with --dynamic or --session-per"),
        ((*BUNDLE, "--dynamic", "--keep-sessions"), "--keep-sessions goes with --url"),
    ],
)
def test_options_that_make_no_sense_together_end_with_2(
    write_lines: Callable[..., str],
    fakes: Any,
    arguments: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["rescore", write_lines("n.jsonl", fakes.many(1)), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--rate", "-1"),
        ("--rate", "nan"),
        ("--tau", "0"),
        ("--decay", "-0.1"),
        ("--session-per", "word"),
        ("--learn-from", "me"),
    ],
)
def test_values_out_of_range_are_refused_by_the_command_line(
    arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rescore", "f", *URL, "--dynamic", *arguments]) == 2
    assert arguments[0] in capsys.readouterr().err


def test_the_ids_of_sessions_are_the_same_for_one_run_and_differ_between_labels_and_runs() -> None:
    labels = ["speaker:a", "session:a", "speaker:a ", "speaker:ä", "speaker:ö", "speaker:" + "x" * 300, "file"]
    ids = {session_id(run, label) for run in ("1" * 32, "2" * 32) for label in labels}
    assert len(ids) == 2 * len(labels)
    assert ids == {session_id(run, label) for run in ("1" * 32, "2" * 32) for label in labels}
    allowed = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-")
    assert all(len(found) <= 128 and set(found) <= allowed for found in ids)


def test_perplexities_of_sessions_are_joined_by_their_events() -> None:
    def one(events: int, session: float | None, static: float | None) -> dict[str, Any]:
        perplexity = {"mixture": {"events": events, "session": session, "static": static}}
        return {"words_learnt": events, "lessons_undone": 1, "perplexity": perplexity}

    # exp((3 ln 2 + 1 ln 32) / 4) = 2^2; exp((3 ln 4 + 1 ln 4) / 4) = 4; the empty session has no say
    said = gains([one(3, 2.0, 4.0), one(1, 32.0, 4.0), one(0, None, None)])
    assert said == (
        "3 sessions, 4 words learnt, 3 lessons undone; perplexity of the accepted texts 4.00, "
        "with the shared weights 4.00"
    )


def test_no_sessions_have_nothing_to_say() -> None:
    assert gains([]) is None


def test_help_says_that_confirmed_uses_the_reference(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["rescore", "--help"]) == 0
    assert "supervised adaptation: it uses the reference" in " ".join(capsys.readouterr().out.split())
