"""The console command `nbest`: subcommands that each package brings, found through entry points.

A subcommand's module is imported when the command is run, or when help lists it; it imports typer only.
"""

import os
import sys
from collections import UserDict
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated, Any

import typer

from .errors import MissingExtraError

GROUP = "nbest.commands"
DISTRIBUTION = "nbest-rescoring"

# The extra that brings what a package's commands run on, unless the missing module has one of its own.
_EXTRA_OF_PACKAGE = {"clients": "eval", "models": "models", "service": "service"}
_EXTRA_OF_MODULE = {"tensorboard": "tensorboard"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; a failure is one line on standard error, no stack trace.

    arguments: those after the program's name; the process's own when left out
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        try:
            _root_command().main(args=given, prog_name="nbest")
        finally:
            sys.stdout.flush()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Who reads has gone; what is still buffered must not fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("NBEST_TRACEBACK"):
            raise
        if isinstance(error, ModuleNotFoundError):
            error = _missing(_entry_of(given), error)
        sys.stderr.write(f"nbest: error: {_one_line(_sentence(error))}\n")
        return _exit_code(error)
    return 0


class LazyCommands(UserDict[str, Any]):
    """Subcommands by name; each is imported when it is looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.data = {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}

    def __getitem__(self, name: str) -> Any:
        return _load(self.data[name])


def _root_command() -> Any:
    """The command `nbest` itself."""
    app = typer.Typer(
        add_completion=False, no_args_is_help=True, help="Rescore the N-best lists of a speech recogniser."
    )
    app.callback()(_root)
    group = typer.main.get_group(app)
    group.commands = LazyCommands()
    return group


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"nbest {version(DISTRIBUTION)}")
        raise typer.Exit


def _root(
    *,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version and end.")
    ] = False,
) -> None:
    """Nothing is done before the subcommand."""


def _load(entry: EntryPoint) -> Any:
    """The command of an entry point: of a function, or a group of commands."""
    try:
        loaded = entry.load()
    except ModuleNotFoundError as error:
        return _unavailable(entry, _missing(entry, error))
    if isinstance(loaded, typer.Typer):
        group = typer.main.get_group(loaded)
        group.name = entry.name
        return group
    app = typer.Typer(add_completion=False)
    app.command(entry.name)(loaded)
    return typer.main.get_command(app)


def _unavailable(entry: EntryPoint, error: MissingExtraError) -> Any:
    """A command that, whatever its arguments, says what is missing."""
    app = typer.Typer(add_completion=False)
    loose = {"ignore_unknown_options": True, "allow_extra_args": True}

    @app.command(entry.name, help="Not installed.", context_settings=loose, add_help_option=False)
    def command(_: typer.Context) -> None:
        raise error

    return typer.main.get_command(app)


def _entry_of(arguments: Sequence[str]) -> EntryPoint | None:
    """The subcommand that these arguments name."""
    name = next((argument for argument in arguments if not argument.startswith("-")), None)
    return next(iter(entry_points(group=GROUP, name=name)), None) if name else None


def _missing(entry: EntryPoint | None, error: ModuleNotFoundError) -> MissingExtraError:
    """The sentence that names what to install for a command of which a module is not there."""
    command = f"nbest {entry.name}" if entry else "nbest"
    module = (error.name or "").partition(".")[0]
    package = entry.module.partition(".")[0] if entry else ""
    extra = _EXTRA_OF_MODULE.get(module) or _EXTRA_OF_PACKAGE.get(package)
    if extra is None or module in _EXTRA_OF_PACKAGE:
        return MissingExtraError(f"{command} cannot run: {error}; install {DISTRIBUTION} anew")
    return MissingExtraError(f"{command} needs the extra \"{extra}\": pip install '{DISTRIBUTION}[{extra}]'")


def _sentence(error: Exception) -> str:
    """What went wrong, for a person."""
    if hasattr(error, "exit_code"):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    return f"unexpected {type(error).__name__}: {error}; this is a fault of nbest, NBEST_TRACEBACK=1 shows where"


def _exit_code(error: Exception) -> int:
    code = getattr(error, "exit_code", 1)
    return code if isinstance(code, int) else 1


def _one_line(text: str) -> str:
    """The text without line ends and control characters: it may hold what a file or a server said."""
    return "".join(
        char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}" for char in text
    )
