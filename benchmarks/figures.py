"""Measured figures as JSON: what was measured, on what, by which command, at which commit."""

import json
import os
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """One number.

    figure: what it is
    unit:   of the value
    goal:   what it is held against, such as "<= 126"; empty where it stands for itself
    """

    figure: str
    value: float
    unit: str
    goal: str = ""


def machine() -> str:
    """Processor, cores, memory and torch's thread count, in a line."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}"


def commit() -> str:
    """The commit that was measured, marked when files differ from it."""
    here = Path(__file__).parent
    head = _git(here, "rev-parse", "--short", "HEAD")
    changed = _git(here, "status", "--porcelain", "--untracked-files=no", "--", "..", ":!results")
    return head + ("+changes" if changed else "") if head else "unknown"


def _git(folder: Path, *arguments: str) -> str:
    program = shutil.which("git")
    if program is None:
        return ""
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def write(name: str, figures: list[Figure], command: str, *, others_stay: bool = False) -> Path:
    """Write benchmarks/results/NAME.json, each figure with its command, machine and commit.

    others_stay: keep what the file says of figures that are not among these, as where a part was measured anew
    """
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    common = {"command": command, "machine": machine(), "commit": commit()}
    entries = [{**asdict(figure), **common} for figure in figures]
    if others_stay and path.exists():
        measured = {figure.figure for figure in figures}
        entries = [entry for entry in json.loads(path.read_text()) if entry["figure"] not in measured] + entries
    path.write_text(json.dumps(entries, indent=2) + "\n")
    for figure in figures:
        goal = f"   goal {figure.goal}" if figure.goal else ""
        print(f"{figure.figure:70} {figure.value:12.4g} {figure.unit}{goal}")
    return path
