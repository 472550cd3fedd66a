"""What docs/sessions.md shows is what the service does."""

import re
import shlex
from pathlib import Path
from typing import Any

import httpx
import pytest

from service import problems
from service.settings import Limits, Settings

pytestmark = pytest.mark.anyio

DOCUMENT = (Path(__file__).parents[3] / "docs" / "sessions.md").read_text(encoding="utf-8")
HOST = "localhost:8000"


def commands() -> list[list[str]]:
    """The curl commands of the document, each as a list of words."""
    blocks = re.findall(r"(?:^    .*\n)+", DOCUMENT, re.MULTILINE)
    lines = [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in blocks]
    calls = [call for block in lines for call in re.split(r"^(?=curl )", block, flags=re.MULTILINE) if call.strip()]
    return [shlex.split(call.replace("\\\n", " ")) for call in calls]


async def run(client: httpx.AsyncClient, words: list[str], files: dict[str, bytes]) -> httpx.Response:
    assert words.pop(0) == "curl"
    method, headers, url, target = "GET", {}, "", ""
    body: bytes | None = None
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            url = word
            continue
        value = words.pop(0)
        if word == "-H":
            name, _, text = value.partition(": ")
            headers[name] = text
        elif word in {"-d", "--data-binary"}:
            body = files[value[1:]] if value.startswith("@") else value.encode()
        else:
            method, target = (value, target) if word == "-X" else (method, value)
            assert word in {"-X", "-o"}
    assert url.startswith(HOST)
    response = await client.request(method, url.removeprefix(HOST), headers=headers, content=body)
    if target:
        files[target] = response.content
    return response


async def test_every_command_is_answered(client: httpx.AsyncClient) -> None:
    files: dict[str, bytes] = {}
    found = commands()
    assert len(found) == 10
    for words in found:
        response = await run(client, list(words), files)
        assert response.is_success, (words, response.text)
    assert (await client.get("/v1/sessions/lecture-1")).status_code == 410
    assert (await client.get("/v1/sessions/what-if")).json()["version"] == 3
    assert (await client.get("/v1/sessions/copy")).json()["version"] == 3


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading, its own heading left out."""
    section = re.split(r"^## ", DOCUMENT.partition(f"## {heading}\n")[2], flags=re.MULTILINE)[0]
    table = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in table[2:]]


def test_every_problem_is_listed_with_its_status() -> None:
    listed: dict[str, int] = {}
    for names, status, _ in rows("What is refused"):
        listed |= dict.fromkeys(re.findall(r"`(.+?)`", names), int(status))
    known = {kind.name: kind.status.value for kind in problems.KINDS.values()}
    assert {name: known[name] for name in listed} == listed
    of_sessions = {name for name in known if re.search("session|version|utterance|snapshot|precondition|foreign", name)}
    assert of_sessions - {"session-refused"} <= listed.keys()


def test_every_setting_is_listed_with_its_default() -> None:
    units = {"MiB": 2**20, "GiB": 2**30, "": 1}
    listed: dict[str, Any] = {}
    for name, default, _ in rows("Settings"):
        number, _, unit = default.replace(",", "").partition(" ")
        listed[name.split("`")[1]] = number if number.startswith("`") else float(number) * units[unit]
    assert listed.pop("session_store") == "`.nbest/sessions.sqlite3`"
    assert {name: getattr(Limits(), name) for name in listed} == listed
    known = {name for name in Settings.model_fields if "session" in name or "import" in name}
    assert known == {*listed, "session_store"}
