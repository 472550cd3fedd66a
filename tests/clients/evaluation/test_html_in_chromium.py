"""The page in a real browser, over Chromium's own protocol on two pipes, so that nothing has to be installed for it."""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from clients.evaluation.evaluator import Choices, Evaluator
from clients.evaluation.html_page.notes import Notes
from clients.evaluation.html_page.page import render
from clients.evaluation.html_page.perplexity import Perplexity, PerplexityPoint
from clients.evaluation.html_page.scores import Scores
from clients.evaluation.html_page.sweep import Sweep, SweepPoint
from clients.evaluation.summary import summarise
from clients.evaluation.utterance import Utterance

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")]


def _moved(end: int) -> int:
    """The same end of a pipe, as a descriptor of 10 or more."""
    moved = fcntl.fcntl(end, fcntl.F_DUPFD, 10)
    os.close(end)
    return moved


class Browser:
    """Chromium without a window. events: all that it told of since it was opened."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # Out of the way of 3 and 4, to which the shell moves them.
        theirs_in, theirs_out = _moved(theirs_in), _moved(theirs_out)
        # Chromium reads from its descriptor 3 and writes to 4.
        shell = 'exec "$0" "$@" 3<&"$READ" 4>&"$WRITE"'
        switches = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", shell, CHROMIUM, *switches, f"--user-data-dir={profile}", "--remote-debugging-pipe"],
            pass_fds=(theirs_in, theirs_out),
            env=os.environ | {"READ": str(theirs_in), "WRITE": str(theirs_out)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = os.fdopen(ours_in, "rb"), os.fdopen(ours_out, "wb")
        self._number = 0
        self._session: str | None = None
        self._rest = b""
        self.events: list[Any] = []

    def __enter__(self) -> Self:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._out.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()
        self._in.close()

    def call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.as_uri())
        while "Page.loadEventFired" not in {event["method"] for event in self.events}:
            self._next()

    def run(self, script: str) -> Any:
        """The value of an expression in the page, as JSON has it; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def _next(self) -> Any:
        while b"\0" not in self._rest:
            read = os.read(self._in.fileno(), 1 << 16)
            assert read, "Chromium went away"
            self._rest += read
        raw, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(raw)
        if "id" not in message:
            self.events.append(message)
        return message

    def complaints(self) -> list[Any]:
        """Whatever went to the console, or was thrown, or was refused by the page's policy."""
        names = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}
        return [event for event in self.events if event["method"] in names]

    def requests(self) -> set[str]:
        asked = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return {event["params"]["request"]["url"] for event in asked}


def page() -> str:
    """A page with everything on it."""
    choices = Choices(resamples=100, worst=3)
    notes = Notes(choices)
    evaluator = Evaluator(choices, notes)
    evaluator.add_system("one")
    evaluator.add_system("two")
    for number in range(60):
        reference = ["a", "<script>alert(1)</script>", str(number)]
        lists = [["x", *reference[1:]], reference[:2], reference]
        rankings = [[number % 3, *(i for i in range(3) if i != number % 3)], [2, 1, 0]]
        evaluator.add(Utterance(f"u{number}", reference, lists, rankings, f"s{number % 12}"))
    points = (SweepPoint(0.0, 9, 5.0), SweepPoint(1.0, 3, 1.7))
    perplexity = PerplexityPoint(60, 20.0, 1.7)
    scores = Scores((Sweep("one", 1.0, points),), (Perplexity("one", perplexity, (perplexity,)),), ("Left out.",))
    return render(summarise(evaluator, set_name="test", normalised=True), notes, scores)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    (tmp_path / "page.html").write_text(page(), encoding="utf-8")
    with Browser(tmp_path / "profile") as opened:
        opened.open(tmp_path / "page.html")
        yield opened


def test_the_page_asks_for_nothing_and_nothing_goes_to_the_console(browser: Browser) -> None:
    assert browser.run("document.querySelectorAll('svg.plot').length") == 7
    assert {url for url in browser.requests() if not url.startswith("data:")} == {browser.run("location.href")}
    assert browser.complaints() == []


def test_a_click_on_a_heading_sorts_by_the_numbers_and_another_turns_them_round(browser: Browser) -> None:
    column = "[...document.querySelectorAll('#by-speaker-table tbody tr')].map(row => row.cells[0].textContent)"
    click = "document.querySelectorAll('#by-speaker-table .sort')[0].click()"
    assert browser.run(column)[:3] == ["s0", "s1", "s10"]
    browser.run(click)
    assert browser.run(column) == [f"s{number}" for number in range(12)]
    browser.run(click)
    assert browser.run(column) == [f"s{number}" for number in reversed(range(12))]
    sort = "document.querySelectorAll('#systems-table .sort')[1]"
    rates = "[...document.querySelectorAll('#systems-table tbody tr')].map(row => Number(row.cells[1].dataset.value))"
    browser.run(f"{sort}.click()")
    ascending = browser.run(rates)
    assert ascending == sorted(ascending)
    browser.run(f"{sort}.click()")
    assert browser.run(rates) == sorted(ascending, reverse=True)
    assert browser.run(f"{sort}.closest('th').getAttribute('aria-sort')") == "descending"


def test_sorting_works_from_the_keyboard(browser: Browser) -> None:
    heading = "document.querySelectorAll('#effects-table .sort')[1]"
    browser.run(f"{heading}.focus()")
    for kind in ("keyDown", "keyUp"):
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        browser.call("Input.dispatchKeyEvent", type=kind, **key)
    assert browser.run(f"{heading}.closest('th').getAttribute('aria-sort')") == "ascending"


def test_all_utterances_open_and_close_at_a_button(browser: Browser) -> None:
    opened = "document.querySelectorAll('#utterances details[open]').length"
    assert browser.run(opened) == 0
    browser.run("document.querySelector('[data-open=true]').click()")
    assert browser.run(opened) == browser.run("document.querySelectorAll('#utterances details').length") > 0
    browser.run("document.querySelector('[data-open=false]').click()")
    assert browser.run(opened) == 0


def test_nothing_is_wider_than_a_phone(browser: Browser) -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=2, mobile=True)
    browser.run("for (const one of document.querySelectorAll('details')) one.open = true")
    assert browser.run("document.documentElement.scrollWidth") <= 360


def test_the_policy_stops_what_would_be_sent(browser: Browser) -> None:
    stopped = browser.run(
        "new Promise(done => { addEventListener('securitypolicyviolation', event => done(event.effectiveDirective));"
        " fetch('http://127.0.0.1:9/').catch(() => {}); setTimeout(() => done('sent'), 5000) })"
    )
    assert stopped == "connect-src"
