"""Training text: one sentence a line, normalised into words as it is read."""

import gzip
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from models.errors import InvalidTextError, TrainingError
from models.normaliser import Normaliser

# How a text file is opened, by its ending; others are plain.
OPENERS: dict[str, Callable[..., IO[str]]] = {".gz": gzip.open, ".xz": lzma.open}


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence and where it stands: the file, and the line in it, from 1."""

    path: Path
    number: int
    words: tuple[str, ...]


def sentences(paths: Sequence[Path], normaliser: Normaliser) -> Iterator[tuple[str, ...]]:
    """The non-empty sentences of text files in order; see `lines_of`."""
    return (line.words for line in lines_of(paths, normaliser))


def lines_of(paths: Sequence[Path], normaliser: Normaliser) -> Iterator[Line]:
    """The lines of text files that hold a word, in order; .gz and .xz are unpacked while reading.

    Raises TrainingError naming file and line for text that no model may see, or that is not UTF-8.
    """
    for path in paths:
        number = 0
        try:
            with OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8-sig", newline="\n") as lines:
                for number, line in enumerate(lines, 1):
                    words = normaliser.words(line)
                    if words:
                        yield Line(path, number, words)
        except InvalidTextError as error:
            raise TrainingError(f"{path}, line {number}: {error}") from error
        except UnicodeDecodeError as error:
            raise TrainingError(f"{path}, after line {number}: not UTF-8: {error.reason}") from error
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise TrainingError(f"{path}: cannot be read: {error}") from error


def word_counts(corpus: Sequence[Sequence[str]]) -> Counter[str]:
    """How often each word occurs."""
    counts: Counter[str] = Counter()
    for sentence in corpus:
        counts.update(sentence)
    return counts
