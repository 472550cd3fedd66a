"""One text normaliser for training, scoring and word error rates alike; a bundle stores which."""

import re
import unicodedata
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Literal

from models.errors import BundleError, InvalidTextError
from models.vocabulary import UNK

_MARKERS = {"<s>", "</s>"}
# <oov> is what stands for <unk> in the n-gram's training text: were it a word, <unk> would be counted twice.
_UNK_SPELLINGS = {"<unk>", "<oov>"}
_VARIANT = re.compile(r"(?<=[^\s()<>\[\]])(?:\(\d+\))+$")
_PUNCTUATION = re.compile(r"[^\w\s']|_")
_APOSTROPHES = str.maketrans({"\u2019": "'", "\u02bc": "'", "\uff07": "'"})


@dataclass(frozen=True)
class Normaliser:
    """Turns a text into words, the same way wherever text enters.

    unicode_form:  the Unicode normalisation form applied first
    case:          "lower" folds case, "keep" leaves it
    punctuation:   "remove" turns all but letters, digits, marks and apostrophes into space, "keep" leaves it
    variants:      "remove" turns a pronunciation variant such as read(2) into read, "keep" leaves it
    noise_tokens:  tokens that are no words and are dropped, such as <sil> or [NOISE]; compared before case folding

    Words are separated by any Unicode white space, once, here: KenLM and jiwer each split differently.
    """

    unicode_form: Literal["NFC", "NFKC"] = "NFC"
    case: Literal["lower", "keep"] = "lower"
    punctuation: Literal["remove", "keep"] = "remove"
    variants: Literal["remove", "keep"] = "remove"
    noise_tokens: tuple[str, ...] = ("<sil>", "[NOISE]", "[SPEECH]", "[COUGH]", "[SMACK]", "++NOISE++")

    def words(self, text: str) -> tuple[str, ...]:
        """The words of a text.

        Raises InvalidTextError when the text holds NUL, a lone surrogate or a sentence marker: KenLM stops at
        the first, no encoder takes the second, and the third would be scored as a word.
        """
        if "\0" in text:
            raise InvalidTextError("the text holds a NUL character")
        if not text.isascii():
            if any("\ud800" <= char <= "\udfff" for char in text):
                raise InvalidTextError("the text holds a lone surrogate, which is no character")
            text = unicodedata.normalize(self.unicode_form, text).translate(_APOSTROPHES)
        out: list[str] = []
        for token in text.split():
            plain = self._known.get(token)
            if plain is None:
                plain = self._token(token)
                if len(self._known) < _CACHE_LIMIT:
                    self._known[token] = plain
            out.extend(plain)
        return tuple(out)

    @cached_property
    def _known(self) -> dict[str, tuple[str, ...]]:
        """Tokens met so far: rescoring sees the same few words again and again."""
        return {}

    def _token(self, token: str) -> tuple[str, ...]:
        if token.lower() in _MARKERS:
            raise InvalidTextError(f"the text holds the sentence marker {token}")
        if token.lower() in _UNK_SPELLINGS:
            return (UNK,)
        if token in self.noise_tokens:
            return ()
        if self.variants == "remove":
            token = _VARIANT.sub("", token)
        if self.case == "lower":
            # Lower case letters compose with marks that their capitals do not: J and a caron, j with caron.
            token = unicodedata.normalize(self.unicode_form, token.lower())
        if self.punctuation == "remove":
            token = _PUNCTUATION.sub(_mark_or_space, token)
            return tuple(piece for piece in token.split() if any(map(str.isalnum, piece)))
        return (token,)

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON; `from_json` reads them back."""
        return {**asdict(self), "noise_tokens": list(self.noise_tokens)}

    @classmethod
    def from_json(cls, settings: Any) -> "Normaliser":
        """Read the settings that a bundle stores. Raises BundleError naming the setting."""
        if not isinstance(settings, dict):
            raise BundleError("the normaliser is no object of settings")
        allowed = {
            "unicode_form": ("NFC", "NFKC"),
            "case": ("lower", "keep"),
            "punctuation": ("remove", "keep"),
            "variants": ("remove", "keep"),
        }
        unknown = settings.keys() - {f.name for f in fields(cls)}
        if unknown:
            raise BundleError(f"unknown normaliser setting {min(unknown)!r}")
        for name, values in allowed.items():
            if name in settings and settings[name] not in values:
                raise BundleError(f"normaliser setting {name!r} must be one of {', '.join(values)}")
        noise = settings.get("noise_tokens", cls.noise_tokens)
        if not isinstance(noise, list | tuple) or not all(isinstance(token, str) for token in noise):
            raise BundleError("normaliser setting 'noise_tokens' must be a list of strings")
        return cls(**{**settings, "noise_tokens": tuple(noise)})


_CACHE_LIMIT = 1_000_000


def _mark_or_space(match: re.Match[str]) -> str:
    """Combining marks stay, though they are no word characters to Python: vowels of Indic scripts are marks."""
    return match.group() if unicodedata.category(match.group()).startswith("M") else " "
