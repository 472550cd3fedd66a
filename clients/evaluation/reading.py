"""N-best and result files into an evaluator, met by utterance id, each file read once.

Words are those the server's normaliser made: `scored_text` and `scored_reference`, which only a space parts.
Where an N-best file is evaluated, or gives the texts, they are its texts split at white space, as they are.
"""

import hashlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import EvaluationError, UsageError
from ..files import MADE_WITH, NBestLine, ResultLine, read_either, read_nbest
from ..jsonl import JsonLines
from .evaluator import Evaluator
from .utterance import Utterance

_NAMED = 10
_DIGEST_BYTES = 16


@dataclass
class Reading:
    """Files on their way into an evaluator.

    several:   whether more than one file will come, so that their lists have to be compared
    skip:      leave out utterances without a reference, instead of refusing
    made_with: per system that was read, "bundle", "weights" and "state", and "sessions" where there were some
    normalised: whether the words are the server's
    skipped:   utterances left out for want of a reference
    """

    evaluator: Evaluator
    several: bool
    skip: bool
    made_with: list[Mapping[str, Any]] = field(default_factory=list)
    normalised: bool = False
    skipped: int = 0
    _first: str | None = None
    _digests: bytearray = field(default_factory=bytearray)

    def read(self, path: str, name: str) -> None:
        """Take a result file, as the system `name`, or a plain N-best file, as no system.

        Raises InputFileError for what cannot be read, and EvaluationError where references are missing or the file is
        not of the utterances of the first one.
        """
        file = _File(path)
        systems: list[int] = []
        with JsonLines(path) as lines:
            for line in read_either(lines):
                if isinstance(line, ResultLine):
                    if not systems:
                        systems.append(self.evaluator.add_system(name))
                        self.made_with.append(line.made_with)
                        self.normalised = self.normalised or self._first is None
                    check_made_with(self.made_with[-1], line, path)
                utterance = _utterance(line, path)
                if utterance is None:
                    file.without_reference.append(line.utterance_id)
                else:
                    self._enter(file, utterance, systems)
        self._check(file)
        self._first = self._first or path

    def read_with_nbest(self, paths: Sequence[str], names: Sequence[str], nbest: str) -> None:
        """Texts and references from an N-best file, the order from results; each file is read once."""
        orders, answers = [], []
        for path, name in zip(paths, names, strict=True):
            with JsonLines(path) as lines:
                order, consensus, made = _read_orders(path, read_either(lines))
            orders.append(order)
            answers.append(consensus)
            self.made_with.append(made)
            self.evaluator.add_system(name)
        file = _File(nbest)
        with JsonLines(nbest) as lines:
            for line in read_nbest(lines):
                identifier, depth = line.utterance_id, len(line.utterance["hypotheses"])
                rankings = []
                for path, order in zip(paths, orders, strict=True):
                    ranking = order.pop(identifier, None)
                    if ranking is None:
                        raise EvaluationError(f"{path}: no result for utterance {identifier!r} of {nbest}:{line.line}")
                    if len(ranking) != depth:
                        raise EvaluationError(
                            f"{path}: utterance {identifier!r} has {len(ranking)} hypotheses there, but "
                            f"{depth} in {nbest}:{line.line}"
                        )
                    rankings.append(ranking)
                utterance = _of_nbest(line, rankings, [consensus.get(identifier) for consensus in answers])
                if utterance is None:
                    file.without_reference.append(identifier)
                else:
                    self.evaluator.add(utterance)
                    file.rows += 1
        for path, order in zip(paths, orders, strict=True):
            if order:
                raise EvaluationError(f"{nbest}: lacks utterances of {path}: {listed(list(order))}")
        self._check(file)

    def _enter(self, file: "_File", utterance: Utterance, systems: Sequence[int]) -> None:
        digest = _digest(utterance) if self.several else b""
        if self._first is None:
            self.evaluator.add(utterance, systems)
            self._digests += digest
            file.rows += 1
            return
        row = self.evaluator.rows.get(utterance.utterance_id)
        if row is None:
            file.unknown.append(utterance.utterance_id)
            return
        file.met.add(row)
        if self._digests[row * _DIGEST_BYTES : (row + 1) * _DIGEST_BYTES] == digest:
            self.evaluator.add(utterance, systems)
        else:
            file.differing.append(utterance.utterance_id)

    def _check(self, file: "_File") -> None:
        """What a file lacks, and what is other in it than in the first."""
        if file.without_reference and not self.skip:
            raise EvaluationError(
                f"{file.path}: no reference for {listed(file.without_reference)}; "
                "--skip-missing-reference leaves these utterances out"
            )
        if not file.rows + len(file.met) + len(file.unknown):
            raise EvaluationError(f"{file.path}: no utterance has a reference")
        if self._first is None:
            self.skipped = len(file.without_reference)
            return
        missing = [identifier for identifier, row in self.evaluator.rows.items() if row not in file.met]
        for one, two, alone in ((self._first, file.path, missing), (file.path, self._first, file.unknown)):
            if alone:
                raise EvaluationError(f"{two}: lacks utterances of {one}, or their references: {listed(alone)}")
        if file.differing:
            raise EvaluationError(
                f"{self._first} and {file.path} hold other words for {listed(file.differing)}: other lists, or "
                "another normaliser; --nbest FILE evaluates both on one file's texts"
            )


@dataclass
class _File:
    """What was found in a file: rows it opened, rows of the first file that it met, and the ids of what is amiss."""

    path: str
    rows: int = 0
    met: set[int] = field(default_factory=set)
    without_reference: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)


def check_made_with(made_with: Mapping[str, Any], line: ResultLine, path: str) -> None:
    """Every line of a file must be made with the same. Raises EvaluationError naming line and field."""
    for name in MADE_WITH:
        if line.made_with.get(name) != made_with.get(name):
            raise EvaluationError(f"{path}:{line.line}: {name}: differs from the lines before; a file is one system")


def listed(ids: Sequence[str]) -> str:
    """Some ids, and how many more there are."""
    named = ", ".join(map(repr, ids[:_NAMED]))
    return named if len(ids) <= _NAMED else f"{named} and {len(ids) - _NAMED} more"


def _read_orders(
    path: str, lines: Iterable[NBestLine] | Iterable[ResultLine]
) -> tuple[dict[str, Sequence[int]], dict[str, list[str]], Mapping[str, Any]]:
    """Utterance id -> its ranking; -> its consensus, where it has one; and what all was made with."""
    orders: dict[str, Sequence[int]] = {}
    answers: dict[str, list[str]] = {}
    made_with: Mapping[str, Any] = {}
    for line in lines:
        if not isinstance(line, ResultLine):
            raise UsageError(f"{path} is an N-best file; with --nbest, name result files")
        made_with = made_with or line.made_with
        check_made_with(made_with, line, path)
        orders[line.utterance_id] = array("I", line.order)
        if line.consensus is not None:
            answers[line.utterance_id] = _spaced(line.consensus)
    return orders, answers, made_with


def _utterance(line: NBestLine | ResultLine, path: str) -> Utterance | None:
    """The utterance of a line; None where it has no reference."""
    if isinstance(line, NBestLine):
        return _of_nbest(line, [])
    if line.texts is None:
        raise EvaluationError(
            f"{path}:{line.line}: compact results hold no texts; name the N-best file they come from with --nbest"
        )
    if line.reference is None:
        return None
    hypotheses = [_spaced(text) for text in line.texts]
    answer = None if line.consensus is None else _spaced(line.consensus)
    return Utterance(
        line.utterance_id, _spaced(line.reference), hypotheses, [line.order], line.speaker, line.session, [answer]
    )


def _of_nbest(
    line: NBestLine, rankings: Sequence[Sequence[int]], answers: Sequence[Sequence[str] | None] = ()
) -> Utterance | None:
    utterance = line.utterance
    reference = utterance.get("reference")
    if reference is None:
        return None
    hypotheses = [hypothesis["text"].split() for hypothesis in utterance["hypotheses"]]
    labels = utterance.get("speaker"), utterance.get("session_id")
    return Utterance(line.utterance_id, reference.split(), hypotheses, rankings, *labels, answers)


def _spaced(text: str) -> list[str]:
    return [word for word in text.split(" ") if word]


def _digest(utterance: Utterance) -> bytes:
    """Of the reference and all hypotheses: equal where two files hold the same list."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for words in (utterance.reference, *utterance.hypotheses):
        digest.update("\x1f".join(words).encode() + b"\n")
    return digest.digest()
