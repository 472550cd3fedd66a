"""Takes utterances one by one, aligns what has to be aligned, and keeps of each only a few numbers."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rapidfuzz.distance import Levenshtein

from ..errors import EvaluationError
from .alignment import Alignment, Words, align
from .confusions import ConfusionTally
from .groups import Groups
from .list_errors import ListErrors
from .normalisation import Normalisation, Normaliser
from .tally import Place, SystemTally
from .utterance import Utterance
from .worst import WorstTally, WorstUtterance

FIRST_PASS, ORACLE = "first pass", "oracle"


@dataclass(frozen=True, slots=True)
class Choices:
    """What the person who evaluates chooses.

    normalisation:  done to references and hypotheses before they are compared
    resamples:      of the bootstrap
    seed:           of the bootstrap
    boundary_words: correct words that part two segments of the matched-pairs test; sc_stats has 2
    confusions:     so many of the most frequent substitutions, deletions and insertions are told
    worst:          so many of the utterances with the most errors are told, with their alignments
    """

    normalisation: Normalisation = field(default_factory=Normalisation)
    resamples: int = 10_000
    seed: int = 1
    boundary_words: int = 2
    confusions: int = 20
    worst: int = 0


class AlignmentSink(Protocol):
    """Takes every alignment as it comes, such as a file does."""

    def take(self, system: str, utterance: Utterance, alignment: Alignment) -> None:
        """An utterance of a system, FIRST_PASS and ORACLE among them; each once."""


class Evaluator:
    """Counts first pass, oracle and any number of systems on the same utterances.

    Memory: some hundred bytes an utterance and system, its id, and what `confusions` and `worst` bound.
    """

    def __init__(self, choices: Choices | None = None, sink: AlignmentSink | None = None) -> None:
        self.choices = choices or Choices()
        self.first_pass, self.oracle = self._tally(FIRST_PASS), self._tally(ORACLE)
        self.systems: list[SystemTally] = []
        self.rows: dict[str, int] = {}
        self.groups = Groups()
        self.words, self.characters = array("i"), array("i")
        self.depth = 0
        self.words_before = 0
        self._normaliser = Normaliser(self.choices.normalisation)
        self._sink = sink

    def add_system(self, name: str) -> int:
        """A further system, whose rankings come with the utterances; its number is what `add` knows it by.

        Raises EvaluationError where the name is taken.
        """
        if name in {tally.name for tally in self.tallies()}:
            raise EvaluationError(f"two systems are called {name!r}")
        tally = self._tally(name)
        tally.open(len(self.rows))
        self.systems.append(tally)
        return len(self.systems) - 1

    def tallies(self) -> list[SystemTally]:
        """First pass, systems, oracle."""
        return [self.first_pass, *self.systems, self.oracle]

    def add(self, utterance: Utterance, systems: Sequence[int] | None = None) -> None:
        """Take an utterance. The same one may come again, with the rankings of other systems.

        systems: whose rankings it holds, by number; all, when left out

        Raises EvaluationError, naming the utterance, where it comes again with another reference or list (as far as
        their lengths tell), or with a system that has had it.
        """
        numbers = range(len(self.systems)) if systems is None else systems
        if len(numbers) != len(utterance.rankings):
            raise EvaluationError(
                f"utterance {utterance.utterance_id!r}: {len(utterance.rankings)} rankings for {len(numbers)} systems"
            )
        compared = _Compared(utterance, self._normaliser)
        row = self.rows.get(utterance.utterance_id)
        if row is None:
            row = self._open(utterance, compared)
        elif self.words[row] != len(compared.reference) or any(self.systems[s].entered(row) for s in numbers):
            raise EvaluationError(f"utterance {utterance.utterance_id!r} came before, and differs or was counted")
        answers = utterance.answers or [None] * len(numbers)
        for number, ranking, answer in zip(numbers, utterance.rankings, answers, strict=True):
            self._enter(self.systems[number], row, compared, ranking, answer)

    def _open(self, utterance: Utterance, compared: "_Compared") -> int:
        """A new row, with what needs no system."""
        row = self.rows[utterance.utterance_id] = len(self.rows)
        for tally in self.tallies():
            tally.open()
        self.words.append(len(compared.reference))
        self.characters.append(len(compared.reference_text))
        self.words_before += len(utterance.reference)
        self.depth = max(self.depth, len(utterance.hypotheses))
        self.groups.add(utterance, len(compared.reference))
        self._enter(self.first_pass, row, compared, None)
        place = compared.place(compared.lists.oracle)
        self.oracle.enter(row, place)
        self.oracle.errors_before += int(compared.before.errors.min())
        self._say(self.oracle, utterance, place.alignment)
        return row

    def _enter(
        self,
        tally: SystemTally,
        row: int,
        compared: "_Compared",
        ranking: Sequence[int] | None,
        answer: Words | None = None,
    ) -> None:
        index = 0 if ranking is None else ranking[0]
        place = compared.place(index) if answer is None else compared.place_of(answer)
        tally.enter(row, place)
        tally.enter_slots(row, place.alignment)
        tally.enter_ranking(row, compared.lists.errors, ranking)
        tally.errors_before += int(compared.before.errors[index]) if answer is None else compared.errors_before(answer)
        self._say(tally, compared.utterance, place.alignment)
        errors = place.alignment.counts.errors
        if tally.worst.wants(errors):
            alignments = {
                FIRST_PASS: compared.place(0).alignment,
                tally.name: place.alignment,
                ORACLE: compared.place(compared.lists.oracle).alignment,
            }
            named = compared.utterance
            tally.worst.add(row, WorstUtterance(named.utterance_id, named.speaker, errors, alignments))

    def _say(self, tally: SystemTally, utterance: Utterance, alignment: Alignment) -> None:
        if self._sink is not None:
            self._sink.take(tally.name, utterance, alignment)

    def _tally(self, name: str) -> SystemTally:
        return SystemTally(name, ConfusionTally(), WorstTally(self.choices.worst))


class _Compared:
    """One utterance while it is looked at.

    lists:  the errors of all its hypotheses; before: the same without the normalisation that was chosen
    """

    def __init__(self, utterance: Utterance, normaliser: Normaliser) -> None:
        self.utterance = utterance
        self._normaliser = normaliser
        self.reference: Words = normaliser.words(utterance.reference)
        self.hypotheses = [normaliser.words(words) for words in utterance.hypotheses]
        self.reference_text = " ".join(self.reference)
        self.lists = ListErrors(self.reference, self.hypotheses)
        self.before = self.lists
        if normaliser.chosen:
            self.before = ListErrors(utterance.reference, utterance.hypotheses)
        self._places: dict[str, Place] = {}

    def place(self, index: int) -> Place:
        """What a system did that chose this hypothesis; equal words are aligned once."""
        key = self.lists.keys[index]
        if key not in self._places:
            right = key == self.lists.reference_key
            self._places[key] = self._placed(self.reference if right else self.hypotheses[index])
        return self._places[key]

    def place_of(self, answer: Words) -> Place:
        """What a system did that answered with words which no hypothesis of the list need have."""
        return self._placed(self._normaliser.words(answer))

    def errors_before(self, answer: Words) -> int:
        """The word errors of such an answer without the normalisation that was chosen."""
        return Levenshtein.distance(list(self.utterance.reference), list(answer))

    def _placed(self, words: Words) -> Place:
        distance = Levenshtein.distance(self.reference_text, " ".join(words))
        return Place(align(self.reference, words), distance, list(words) != list(self.hypotheses[0]))
