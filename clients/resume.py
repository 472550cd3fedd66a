"""Where a run begins: at the first utterance, or after what an earlier run has left."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .batches import Unit
from .errors import OutputFileError
from .files import NBestLine, ResultLine
from .output import PartFile


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run begins.

    units:      what is still to do
    keep_bytes: what of the part file stands
    keep_lines: the same in results
    last:       the last of these
    """

    units: Iterator[Unit]
    keep_bytes: int = 0
    keep_lines: int = 0
    last: ResultLine | None = None


def find_start(
    name: str, todo: Iterator[Unit], part: PartFile, recall: Callable[[NBestLine, ResultLine], None]
) -> Start:
    """Walk the input beside an earlier run's results, to the first unit whose results are not all there.

    recall: told of each utterance whose result stands

    Raises OutputFileError where the two are not of the same utterances.
    """
    done = part.whole_lines()
    keep, count, last = 0, 0, None
    for unit in todo:
        there = list(itertools.islice(done, len(unit.lines)))
        for line, (result, _) in zip(unit.lines, there, strict=False):
            found, wanted = result.utterance_id, line.utterance_id
            if found != wanted:
                raise OutputFileError(
                    f"{part.path}:{result.line}: id: {found!r} is no result for {wanted!r} of {name}:{line.line}: "
                    "another run's work; start anew without --resume"
                )
        if len(there) < len(unit.lines):
            return Start(itertools.chain([unit], todo), keep, count, last)
        for line, (result, _) in zip(unit.lines, there, strict=True):
            recall(line, result)
        last, keep = there[-1]
        count += len(there)
    if next(done, None) is not None:
        raise OutputFileError(
            f"{part.path}: holds more results than {name} has utterances; start anew without --resume"
        )
    return Start(iter(()), keep, count, last)
