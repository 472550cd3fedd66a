"""Alignments and transcripts as lines of text that other tools read and write.

per_utt  Kaldi's per-utterance details: lines `ID ref`, `ID hyp`, `ID op` and `ID #csid C S I D`
pra      the layout of sclite's .pra files: ID, scores, REF, HYP and Eval lines
trn      sclite's transcripts: the words, then `(SPEAKER-ID)`
"""

import re
import unicodedata
from collections.abc import Callable
from typing import TypeAlias

from ..errors import EvaluationError
from .alignment import Alignment, Words
from .utterance import Utterance

Gap: TypeAlias = Callable[[int], str]

_GAP = "***"
_SPACE = re.compile(r"\s")
# What sclite reads as markup: alternatives { a / b }, the null word @, optional and sub-word parentheses, comments.
_MARKUP = re.compile(r"[{}()\s]|^[/@]$|^;;|^<|^\*|\*$")
_NO_SPEAKER = "unknown"


def per_utt(utterance: Utterance, alignment: Alignment) -> str:
    """Four lines. Raises EvaluationError for an id that white space parts and for a word that looks like a gap."""
    name = utterance.utterance_id
    if _SPACE.search(name):
        raise EvaluationError(f"utterance {name!r}: white space in an id cannot be written in Kaldi's format")
    for word in (*alignment.reference, *alignment.hypothesis):
        if word == _GAP or _SPACE.search(word):
            raise EvaluationError(f"utterance {name!r}: the word {word!r} cannot be written in Kaldi's format")
    rows = _rows(alignment, gap=lambda _: _GAP, correct="C")
    counts = alignment.counts
    totals = f"{counts.hits} {counts.substitutions} {counts.insertions} {counts.deletions}"
    labels = ("ref", "hyp", "op ")
    lines = [" ".join([name, label, *row]).rstrip() for label, row in zip(labels, rows, strict=True)]
    return "\n".join([*lines, f"{name} #csid {totals}"]) + "\n"


def pra(utterance: Utterance, alignment: Alignment) -> str:
    """Five lines and an empty one; words as they are, where sclite would change their case."""
    counts = alignment.counts
    totals = f"{counts.hits} {counts.substitutions} {counts.deletions} {counts.insertions}"
    head = [f"id: ({trn_id(utterance)})", f"Scores: (#C #S #D #I) {totals}"]
    return "\n".join([*head, *columns_text(alignment)]) + "\n\n"


def columns_text(alignment: Alignment) -> list[str]:
    """The lines REF, HYP and Eval, words that answer to each other one above the other."""
    rows = _rows(alignment, gap=lambda width: "*" * max(width, len(_GAP)), correct=" ")
    labels = ("REF: ", "HYP: ", "Eval:")
    return [" ".join([label, *row]).rstrip() for label, row in zip(labels, rows, strict=True)]


def trn(utterance: Utterance, words: Words) -> str:
    """One line. Raises EvaluationError for an id or a word that sclite would read as something else."""
    name = trn_id(utterance)
    for word in words:
        if _MARKUP.search(word):
            raise EvaluationError(
                f"utterance {utterance.utterance_id!r}: the word {word!r} means something else to sclite, "
                "so it cannot be written as trn"
            )
    return " ".join([*words, f"({name})"]) + "\n"


def trn_id(utterance: Utterance) -> str:
    """SPEAKER-ID, as sclite finds the speaker in it: up to the first "-" or "_".

    An id that begins with its speaker and one of the two stays as it is, and so does one that holds one of them where
    no speaker is known; else the speaker comes before it, or "unknown". Raises EvaluationError for an id or speaker
    with white space or parentheses.
    """
    name, speaker = utterance.utterance_id, utterance.speaker
    if speaker is None:
        made = name if re.search(r".[-_]", name) else f"{_NO_SPEAKER}-{name}"
    else:
        made = name if name.startswith((f"{speaker}-", f"{speaker}_")) else f"{speaker}-{name}"
    if re.search(r"[\s()]", made):
        raise EvaluationError(
            f"utterance {name!r}: white space or parentheses in an id or a speaker cannot be written as sclite's id"
        )
    return made


def _rows(alignment: Alignment, gap: Gap, correct: str) -> tuple[list[str], list[str], list[str]]:
    """Reference, hypothesis and letters, each column as wide as its widest."""
    rows: tuple[list[str], list[str], list[str]] = ([], [], [])
    for letter, said, recognised in alignment.columns():
        cells = [
            gap(_width(recognised or "")) if said is None else said,
            gap(_width(said or "")) if recognised is None else recognised,
            correct if letter == "C" else letter,
        ]
        width = max(map(_width, cells))
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell + " " * (width - _width(cell)))
    return rows


def _width(text: str) -> int:
    """Columns on a screen: two for East Asian wide characters, none for combining ones."""
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)
