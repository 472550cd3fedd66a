"""Error counts, which add, and the rates that are read from their sums."""

from dataclasses import dataclass, fields

from ..errors import EvaluationError


@dataclass(frozen=True, slots=True)
class ErrorCounts:
    """The word errors of some hypotheses against their references; counts add.

    words:     words of the references
    wrong:     utterances with at least one error
    """

    words: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    utterances: int = 0
    wrong: int = 0

    def __add__(self, other: "ErrorCounts") -> "ErrorCounts":
        return ErrorCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def errors(self) -> int:
        """Substitutions, deletions and insertions."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def hits(self) -> int:
        """Reference words that were recognised."""
        return self.words - self.substitutions - self.deletions

    @property
    def hypothesis_words(self) -> int:
        """Words of the hypotheses: what is not deleted, and what is inserted."""
        return self.words - self.deletions + self.insertions

    @property
    def wer(self) -> float:
        """Word error rate: errors per reference word, in per cent; above 100 where insertions abound.

        Raises EvaluationError where the references hold no word: then there is no rate.
        """
        if not self.words:
            raise EvaluationError("the references hold no word, so there is no word error rate")
        return 100 * self.errors / self.words

    @property
    def ser(self) -> float:
        """Utterances with an error, in per cent. Raises EvaluationError where there are none at all."""
        if not self.utterances:
            raise EvaluationError("there is no utterance, so there is no sentence error rate")
        return 100 * self.wrong / self.utterances

    @property
    def mer(self) -> float:
        """Match error rate, errors / (hits + errors), in per cent (Morris, Maier and Green 2004).

        Raises EvaluationError where neither side holds a word.
        """
        if not self.words + self.insertions:
            raise EvaluationError("there is no word on either side, so there is no match error rate")
        return 100 * self.errors / (self.words + self.insertions)

    @property
    def wil(self) -> float:
        """Word information lost, 1 - hits^2 / (reference words * hypothesis words), in per cent.

        As Morris, Maier and Green 2004 approximate it. Where one side alone is empty, all is lost. Raises
        EvaluationError where neither side holds a word.
        """
        if not self.words + self.insertions:
            raise EvaluationError("there is no word on either side, so no word information can be lost")
        if not self.hits:
            return 100.0
        return 100 * (1 - self.hits**2 / (self.words * self.hypothesis_words))


@dataclass(frozen=True, slots=True)
class CharacterCounts:
    """The character errors of some hypotheses; counts add.

    Characters are Unicode code points of the words joined by one space; that space counts as a character.
    """

    characters: int = 0
    errors: int = 0

    def __add__(self, other: "CharacterCounts") -> "CharacterCounts":
        return CharacterCounts(self.characters + other.characters, self.errors + other.errors)

    @property
    def cer(self) -> float:
        """Character error rate: the fewest edits per reference character, in per cent.

        Raises EvaluationError where the references hold no character.
        """
        if not self.characters:
            raise EvaluationError("the references hold no character, so there is no character error rate")
        return 100 * self.errors / self.characters


def kaldi_lines(counts: ErrorCounts) -> tuple[str, str]:
    """The lines that begin with %WER and %SER, as Kaldi's scoring writes them."""
    parts = f"{counts.insertions} ins, {counts.deletions} del, {counts.substitutions} sub"
    return (
        f"%WER {counts.wer:.2f} [ {counts.errors} / {counts.words}, {parts} ]",
        f"%SER {counts.ser:.2f} [ {counts.wrong} / {counts.utterances} ]",
    )
