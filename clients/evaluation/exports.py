"""Every alignment, written to a folder as it comes: a file per system and format, each whole or not there."""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from ..errors import EvaluationError, OutputFileError
from .alignment import Alignment
from .evaluator import FIRST_PASS
from .kinds import ExportFormat
from .text_formats import per_utt, pra, trn, trn_id
from .utterance import Utterance

REFERENCE = "reference"


class Exporter:
    """Writes SYSTEM.per_utt, SYSTEM.pra, SYSTEM.trn and reference.trn into a folder, which is made where it is missing.

    Until all is well, files are called NAME.part; when something fails they are removed. Raises OutputFileError where
    a file cannot be written, EvaluationError where an utterance cannot be said in a format.
    """

    def __init__(self, folder: Path, systems: Sequence[str], formats: Sequence[ExportFormat]) -> None:
        self._folder = folder
        self._formats = [name for name in ExportFormat if name in formats]
        self._stems = _stems(systems)
        self._files: dict[str, IO[str]] = {}
        self._stack = ExitStack()
        self._trn_ids: set[str] = set()

    def __enter__(self) -> Self:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputFileError(f"{self._folder}: cannot be made a folder: {error.strerror}") from error
        return self

    def take(self, system: str, utterance: Utterance, alignment: Alignment) -> None:
        """Write one alignment in every format."""
        stem = self._stems[system]
        for kind in self._formats:
            if kind is ExportFormat.PER_UTT:
                self._write(f"{stem}.per_utt", per_utt(utterance, alignment))
            elif kind is ExportFormat.PRA:
                self._write(f"{stem}.pra", pra(utterance, alignment), f"System name:   {system}\n\n")
            else:
                self._write(f"{stem}.trn", trn(utterance, alignment.hypothesis))
                if system == FIRST_PASS:
                    self._check_unique(utterance)
                    self._write(f"{REFERENCE}.trn", trn(utterance, alignment.reference))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stack.close()
            for name in self._files:
                part = self._folder / f"{name}.part"
                if error is None:
                    part.replace(self._folder / name)
                else:
                    part.unlink(missing_ok=True)
        except OSError as failure:
            raise OutputFileError(f"{self._folder}: cannot be written: {failure.strerror}") from failure

    def _write(self, name: str, text: str, head: str = "") -> None:
        try:
            if name not in self._files:
                file = (self._folder / f"{name}.part").open("w", encoding="utf-8", newline="\n")
                self._files[name] = self._stack.enter_context(file)
                file.write(head)
            self._files[name].write(text)
        except OSError as error:
            raise OutputFileError(f"{self._folder / name}: cannot be written: {error.strerror}") from error

    def _check_unique(self, utterance: Utterance) -> None:
        """Sclite knows utterances by their trn ids, capitals or not."""
        name = trn_id(utterance).lower()
        if name in self._trn_ids:
            raise EvaluationError(
                f"utterance {utterance.utterance_id!r}: another one has the same sclite id, {trn_id(utterance)!r}"
            )
        self._trn_ids.add(name)


def _stems(systems: Sequence[str]) -> dict[str, str]:
    """A file name for each system, of letters that any file system takes; numbered where two would be equal."""
    stems: dict[str, str] = {}
    taken = {REFERENCE}
    for system in systems:
        stem = made = re.sub(r"[^\w.+-]+", "-", system).strip("-.") or "system"
        number = 2
        while made.lower() in taken:
            made, number = f"{stem}-{number}", number + 1
        taken.add(made.lower())
        stems[system] = made
    return stems
