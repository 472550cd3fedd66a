import re
import subprocess
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[3] / "docs" / "evaluation.md"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_counting_and_summing_up_load_nothing_of_terminals_and_http() -> None:
    code = "import sys, clients.evaluation.summary, clients.evaluation.as_json; print(*sys.modules)"
    assert not {"typer", "rich", "httpx"}.intersection(run(code).split())


def test_the_command_loads_nothing_heavy_before_it_runs() -> None:
    code = "import sys, clients.evaluation.command; print(*sys.modules)"
    assert not {"numpy", "jiwer", "rapidfuzz", "rich", "httpx"}.intersection(run(code).split())


def test_the_documented_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert run(example) == "0.0\n"
