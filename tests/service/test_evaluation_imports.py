"""Of clients the service may import the evaluation alone; the contract that says so does catch what it forbids."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LINT = Path(sys.executable).with_name("lint-imports")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The packages and their contracts, to be changed."""
    for package in ("service", "models", "clients"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "static"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def broken(folder: Path) -> str:
    """What import-linter says of the contracts that do not hold; empty where all do."""
    command = [str(LINT), "--no-cache", "--config", str(folder / "pyproject.toml")]
    done = subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode else ""


def test_the_contracts_hold(copy: Path) -> None:
    assert broken(copy) == ""


@pytest.mark.parametrize("module", ["clients.sdk", "clients.cli", "clients.files", "clients.evaluation.printing"])
def test_anything_else_of_clients_is_caught_in_the_service(copy: Path, module: str) -> None:
    (copy / "service" / "probe.py").write_text(f"import {module}\n", encoding="utf-8")
    assert f"service.probe -> {module}" in broken(copy)


@pytest.mark.parametrize("module", ["rich", "httpx", "typer"])
def test_an_evaluation_that_is_no_longer_pure_is_caught(copy: Path, module: str) -> None:
    with (copy / "clients" / "evaluation" / "tally.py").open("a", encoding="utf-8") as file:
        file.write(f"import {module}\n")
    assert f"clients.evaluation.tally -> {module}" in broken(copy)
