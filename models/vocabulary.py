"""The one vocabulary that all models of a bundle share, built from training text alone."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from models.errors import BundleError, TrainingError

UNK = "<unk>"
EOS = "</s>"
UNK_ID = 0
EOS_ID = 1
FIRST_WORD_ID = 2


@dataclass(frozen=True)
class Vocabulary:
    """Words and their ids. The event space is V + {<unk>, </s>}: ids 0 and 1, then the words of V from 2 on.

    words: the words of V, most frequent first in the training text, ties in alphabetical order
    """

    words: tuple[str, ...]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ids = {word: FIRST_WORD_ID + i for i, word in enumerate(self.words)}
        if len(ids) < len(self.words):
            raise BundleError("the vocabulary names a word twice")
        ids[UNK] = UNK_ID
        object.__setattr__(self, "_ids", ids)

    @classmethod
    def from_counts(cls, counts: Counter[str], min_count: int = 1) -> "Vocabulary":
        """Keep the words of a training text that occur at least `min_count` times."""
        kept = [word for word, count in counts.items() if count >= min_count and word != UNK]
        if not kept:
            raise TrainingError("the training text holds no word that could enter the vocabulary")
        return cls(tuple(sorted(kept, key=lambda word: (-counts[word], word))))

    @property
    def size(self) -> int:
        """The number of events: |V| + 2."""
        return FIRST_WORD_ID + len(self.words)

    @property
    def sha256(self) -> str:
        """The hash of the vocabulary as it stands in vocab.txt."""
        return hashlib.sha256(self._text().encode()).hexdigest()

    def ids(self, words: Iterable[str]) -> list[int]:
        """Ids of words; a word outside V gets that of <unk>."""
        known = self._ids
        return [known.get(word, UNK_ID) for word in words]

    def word(self, event: int) -> str:
        """The word of an id."""
        return (UNK, EOS)[event] if event < FIRST_WORD_ID else self.words[event - FIRST_WORD_ID]

    def save(self, path: Path) -> None:
        """Write one word a line, in id order; <unk> and </s> are not written."""
        path.write_text(self._text(), encoding="utf-8", newline="\n")

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Read what `save` wrote. Raises BundleError naming the file."""
        try:
            text = path.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise BundleError(f"{path}: cannot be read as a vocabulary: {error}") from error
        try:
            return cls(tuple(text.split("\n")[:-1]))
        except BundleError as error:
            raise BundleError(f"{path}: {error}") from error

    def _text(self) -> str:
        return "".join(f"{word}\n" for word in self.words)
