"""Normalisation that the person who evaluates chooses, over and above what the words went through before."""

import unicodedata
from dataclasses import dataclass, field
from typing import Literal

from .alignment import Words

UnicodeForm = Literal["NFC", "NFKC"]

_MOST_REMEMBERED = 1_000_000


@dataclass(frozen=True, slots=True)
class Normalisation:
    """What is done to each word, in this order; nothing, unless chosen.

    unicode_form:      put into this Unicode form; a word that a compatibility space parts becomes several
    lowercase:         lower case, by Unicode's rules
    strip_punctuation: take out characters of the Unicode categories P*, but for apostrophes, hyphens and . , : between
                       two letters or digits
    dropped:           leave out these words, as they are after the steps before
    A word of which nothing is left vanishes.
    """

    unicode_form: UnicodeForm | None = None
    lowercase: bool = False
    strip_punctuation: bool = False
    dropped: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.unicode_form or self.lowercase or self.strip_punctuation or self.dropped)

    def describe(self) -> list[str]:
        """What was chosen, in words; empty where nothing was."""
        parts: list[str] = [self.unicode_form] if self.unicode_form else []
        parts += ["lower case"] if self.lowercase else []
        parts += ["punctuation stripped"] if self.strip_punctuation else []
        return parts + ([f"without {' '.join(sorted(self.dropped))}"] if self.dropped else [])


@dataclass(slots=True)
class Normaliser:
    """Applies a normalisation, each distinct word once; of the very many, some again."""

    chosen: Normalisation
    _known: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def words(self, words: Words) -> Words:
        """The words normalised; the same object where nothing is chosen."""
        if not self.chosen:
            return words
        known = self._known
        if len(known) > _MOST_REMEMBERED:
            known.clear()
        out: list[str] = []
        for word in words:
            if word not in known:
                known[word] = self._word(word)
            out += known[word]
        return out

    def _word(self, word: str) -> tuple[str, ...]:
        if self.chosen.unicode_form:
            word = unicodedata.normalize(self.chosen.unicode_form, word)
        if self.chosen.lowercase:
            word = word.lower()
        parts = word.split() if self.chosen.unicode_form == "NFKC" else [word]
        if self.chosen.strip_punctuation:
            parts = [_stripped(part) for part in parts]
        return tuple(part for part in parts if part and part not in self.chosen.dropped)


# What joins two halves of a word where it stands between them: apostrophes, hyphens, the full stop of "3.5".
_JOINING = frozenset("'\u2019-\u2010\u2011.,:")


def _stripped(word: str) -> str:
    last = len(word) - 1
    return "".join(
        char
        for spot, char in enumerate(word)
        if not unicodedata.category(char).startswith("P")
        or (char in _JOINING and 0 < spot < last and word[spot - 1].isalnum() and word[spot + 1].isalnum())
    )
