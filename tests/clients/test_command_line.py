import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from clients import cli
from clients.cli import main
from clients.errors import UsageError

RUN = "import sys; from clients.cli import main; sys.exit(main(sys.argv[1:]))"


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def without(*modules: str) -> str:
    return f"import sys; sys.modules.update(dict.fromkeys({modules!r})); " + RUN


def test_help_lists_every_command_and_imports_no_heavy_library() -> None:
    code = (
        "import sys; from clients.cli import main; code = main(['--help']); "
        "heavy = {'torch', 'numpy', 'kenlm', 'fastapi', 'pydantic', 'jiwer', 'httpx'} & set(sys.modules); "
        "print('heavy:', sorted(heavy)); sys.exit(code)"
    )
    ended = python(code)
    assert ended.returncode == 0
    assert "heavy: []" in ended.stdout
    for command in ("rescore", "evaluate", "train", "tune", "perplexity", "serve"):
        assert f" {command} " in ended.stdout


@pytest.mark.parametrize("module", ["clients", "clients.cli", "clients.commands", "clients.sdk"])
def test_importing_clients_loads_neither_model_nor_server_libraries(module: str) -> None:
    heavy = "{'torch', 'numpy', 'kenlm', 'fastapi', 'pydantic', 'jiwer', 'models', 'service'}"
    ended = python(f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))")
    assert ended.stdout == "[]\n"


def test_running_a_command_imports_no_other_package(tmp_path: Path) -> None:
    code = (
        "import sys; from clients.cli import main; main(['evaluate', sys.argv[1]]); "
        "print(sorted({'models', 'service', 'torch'} & set(sys.modules)))"
    )
    assert python(code, str(tmp_path / "none")).stdout == "[]\n"


def test_evaluate_works_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_text(
        '{"id": "u", "reference": "a b", "hypotheses": [{"text": "a c", "acoustic_score": 0}]}\n',
        encoding="utf-8",
    )
    ended = python(without("torch", "kenlm", "models", "service"), "evaluate", str(path))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "%WER 50.00 [ 1 / 2, 0 ins, 0 del, 1 sub ] first pass" in ended.stdout


def test_a_missing_extra_is_one_sentence_that_names_what_to_install(tmp_path: Path) -> None:
    ended = python(without("jiwer"), "evaluate", str(tmp_path / "none"))
    sentence = "nbest evaluate needs the extra \"eval\": pip install 'nbest-rescoring[eval]'"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"nbest: error: {sentence}\n")


def test_a_bundle_without_the_models_extra_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_text("", encoding="utf-8")
    ended = python(without("torch"), "rescore", str(path), "--bundle", str(tmp_path))
    assert ended.returncode == 2
    assert ended.stderr == (
        "nbest: error: nbest rescore --bundle needs the extra \"models\": pip install 'nbest-rescoring[models]'\n"
    )


def test_a_command_whose_package_is_missing_is_listed_and_says_so() -> None:
    blocked = without("models.commands")
    assert python(blocked, "--help").returncode == 0
    ended = python(blocked, "train", "rnn", "--any", "option")
    assert ended.returncode == 2
    assert ended.stderr.startswith("nbest: error: nbest train ")
    assert ended.stderr.count("\n") == 1


def test_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"nbest {version('nbest-rescoring')}\n"


@pytest.mark.parametrize("arguments", [["nothing"], ["rescore"], ["rescore", "--batch-size", "0", "f"], ["--no"]])
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "Usage: nbest" in capsys.readouterr().err


def test_a_missing_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "none")
    assert main(["evaluate", path]) == 1
    assert capsys.readouterr() == ("", f"nbest: error: {path}: cannot be read: No such file or directory\n")


class DomainError(Exception):
    exit_code = 7


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (DomainError("two\nlines \x1b[31m"), 7, "two lines \N{REPLACEMENT CHARACTER}[31m"),
        (UsageError("no"), 2, "no"),
        (PermissionError(13, "Permission denied", "file"), 1, "file: Permission denied"),
        (MemoryError(), 1, "there is not enough memory"),
        (ZeroDivisionError("oh"), 1, "unexpected ZeroDivisionError: oh; this is a fault of nbest, "),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 2, 'nbest serve needs the extra "service": '),
        (ModuleNotFoundError("No module named 'service.x'", name="service.x"), 2, "nbest serve cannot run: "),
        (ModuleNotFoundError("none", name="tensorboard"), 2, 'nbest serve needs the extra "tensorboard": '),
    ],
)
def test_every_error_is_one_line_and_an_exit_code(
    error: Exception,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Failing:
        def main(self, **_: object) -> None:
            raise error

    monkeypatch.setattr(cli, "_root_command", Failing)
    assert main(["serve"]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(f"nbest: error: {said}")
    assert (captured.out, captured.err.count("\n")) == ("", 1)


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def main(self, **_: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_root_command", Interrupted)
    assert main([]) == 130


def test_a_reader_that_leaves_is_no_stack_trace(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    path.write_text(
        '{"id": "u", "reference": "a", "hypotheses": [{"text": "a", "acoustic_score": 0}]}\n', encoding="utf-8"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "evaluate", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), said) == (1, b"")
