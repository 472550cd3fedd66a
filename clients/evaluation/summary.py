"""From the numbers of every utterance to the result."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import combinations
from typing import Any

import numpy as np

from ..errors import EvaluationError
from .bootstrap import FloatArray, IntArray, Resampled, middle, resampled_sums
from .breakdowns import breakdowns
from .counts import CharacterCounts, ErrorCounts
from .evaluator import Evaluator
from .groups import RANK_CLASSES
from .holm import holm
from .matched_pairs import matched_pairs
from .result import Before, Comparison, Effect, Evaluation, OraclePoint, RankClass, RankedOracle, Rate, SystemResult
from .tally import DEPTHS, SystemTally, view

# Rows of a system in the table that is resampled: S, D, I, character errors, wrong; the first three are word errors.
_ROWS, _ERRORS = 5, slice(0, 3)
_NAMED = 10


def summarise(
    evaluator: Evaluator,
    *,
    set_name: str,
    normalised: bool,
    skipped: int = 0,
    made_with: Sequence[Mapping[str, Any]] | None = None,
) -> Evaluation:
    """What the utterances come to.

    made_with: per system, what its results say of their making

    Raises EvaluationError where there is no utterance or no reference word, and where a system lacks utterances.
    """
    table = _Table(evaluator)
    tallies = evaluator.tallies()
    made = [{}, *(made_with or [{}] * len(evaluator.systems)), {}]
    return Evaluation(
        set_name=set_name,
        utterances=len(evaluator.rows),
        skipped=skipped,
        depth=evaluator.depth,
        normalised=normalised,
        choices=evaluator.choices,
        systems=tuple(table.system(place, made[place]) for place in range(len(tallies))),
        comparisons=tuple(table.comparisons()),
        oracles=tuple(_ranked_oracle(tally, table.words, evaluator.depth) for tally in tallies[:-1]),
        breakdowns=breakdowns(evaluator.groups, table.counts, table.words),
        software={"nbest": version("nbest-rescoring"), "jiwer": version("jiwer")},
    )


class _Table:
    """All numbers as one array, and the sums of its resamples.

    words:      (n,) of the references
    characters: (n,) of the references
    counts:     (systems, 5, n) per system, in the order of `Evaluator.tallies`: S, D, I, character errors, wrong
    """

    def __init__(self, evaluator: Evaluator) -> None:
        if not evaluator.rows:
            raise EvaluationError("there is no utterance to evaluate")
        self._evaluator = evaluator
        self._choices = evaluator.choices
        self._tallies = evaluator.tallies()
        for tally in self._tallies:
            _check_whole(tally, evaluator)
        self.words = view(evaluator.words).astype(np.int64)
        self.characters = view(evaluator.characters).astype(np.int64)
        if not self.words.any():
            raise EvaluationError("the references hold no word, so there is no word error rate")
        self.counts = np.stack([_numbers(tally) for tally in self._tallies])
        flat = np.concatenate([*self.counts, [self.words, self.characters]])
        sums = resampled_sums(flat, self.words, resamples=self._choices.resamples, seed=self._choices.seed)
        n = len(self.words)
        observed = flat.sum(axis=1, dtype=np.float64)[:, None]
        self._rates = [_rates(sums, place, n) for place in range(len(self._tallies))]
        self._observed = [_rates(observed, place, n) for place in range(len(self._tallies))]
        self._wer = Resampled(
            np.stack([rates["wer"] for rates in self._rates]),
            np.array([rates["wer"][0] for rates in self._observed]),
        )

    def system(self, place: int, made_with: Mapping[str, Any]) -> SystemResult:
        """The result of the system at a place among the tallies."""
        tally, columns = self._tallies[place], self.counts[place]
        S, D, I, character_errors, wrong = (int(number) for number in columns.sum(axis=1))  # noqa: E741 - as in the field
        rates = {
            name: Rate(float(self._observed[place][name][0]), middle(drawn))
            for name, drawn in self._rates[place].items()
        }
        chosen = bool(self._choices.normalisation)
        return SystemResult(
            name=tally.name,
            made_with=made_with,
            counts=ErrorCounts(int(self.words.sum()), S, D, I, len(self.words), wrong),
            characters=CharacterCounts(int(self.characters.sum()), character_errors),
            **rates,
            before=Before(tally.errors_before, self._evaluator.words_before) if chosen else None,
            to_first_pass=self._wer.difference(place, 0) if place else None,
            effect=self._effect(place) if 0 < place < len(self._tallies) - 1 else None,
            confusions=tally.confusions.most_frequent(self._choices.confusions),
            worst=tally.worst.worst_first(),
        )

    def comparisons(self) -> Iterator[Comparison]:
        """Each rescored system with the first pass, then these systems, two and two; p-values corrected over all."""
        rescored = range(1, len(self._tallies) - 1)
        pairs = [(place, 0) for place in rescored] + [(b, a) for a, b in combinations(rescored, 2)]
        slots = [tally.slots_in_order(self.words) for tally in self._tallies[:-1]] if pairs else []
        differences = [self._wer.difference(one, other) for one, other in pairs]
        tests = [
            matched_pairs(slots[one], slots[other], self.words, boundary_words=self._choices.boundary_words)
            for one, other in pairs
        ]
        bootstrap_corrected = holm([difference.p_value for difference in differences])
        tests_corrected = holm([test.p_value for test in tests])
        for (one, other), difference, corrected, test, test_corrected in zip(
            pairs, differences, bootstrap_corrected, tests, tests_corrected, strict=True
        ):
            assert corrected is not None
            names = self._tallies[one].name, self._tallies[other].name
            yield Comparison(*names, difference, corrected, test, test_corrected)

    def _effect(self, place: int) -> Effect:
        errors = self.counts[:, _ERRORS].sum(axis=1)
        first, rescored, oracle = errors[0], errors[place], errors[-1]
        fewer = first - rescored
        changed = view(self._tallies[place].changed) > 0
        gap = int(first.sum() - oracle.sum())
        return Effect(
            helped=int((fewer > 0).sum()),
            hurt=int((fewer < 0).sum()),
            as_many=int((changed & (fewer == 0)).sum()),
            unchanged=int((~changed).sum()),
            errors_removed=int(fewer[fewer > 0].sum()),
            errors_added=int(-fewer[fewer < 0].sum()),
            gap_closed_percent=100 * int(fewer.sum()) / gap if gap else None,
        )


def _numbers(tally: SystemTally) -> IntArray:
    """(5, n) the rows of a system."""
    kinds = [view(column) for column in (tally.substitutions, tally.deletions, tally.insertions)]
    wrong = (kinds[0] + kinds[1] + kinds[2] > 0).astype(np.int64)
    return np.stack([*kinds, view(tally.character_errors), wrong]).astype(np.int64)


def _rates(sums: FloatArray, place: int, n: int) -> dict[str, FloatArray]:
    """(R,) each rate of a system, in per cent, from (k, R) sums of counts over n utterances."""
    S, D, I, character_errors, wrong = sums[_ROWS * place : _ROWS * (place + 1)]  # noqa: E741 - the letters of the field
    words, characters = sums[-2:]
    errors, hits, hypothesis_words = S + D + I, words - S - D, words - D + I
    # Where nothing was recognised all information is lost, and no hypothesis word need be there to divide by.
    preserved = hits**2 / (words * np.maximum(hypothesis_words, 1))
    return {
        "wer": 100 * errors / words,
        "cer": 100 * character_errors / characters,
        "ser": 100 * wrong / n,
        "mer": 100 * errors / (words + I),
        "wil": 100 * (1 - preserved),
    }


def _ranked_oracle(tally: SystemTally, words: IntArray, depth: int) -> RankedOracle:
    total = int(words.sum())
    ranks = view(tally.best_rank)
    classes = np.bincount([RANK_CLASSES.of(int(rank)) for rank in ranks])
    # Beyond the longest list nothing changes, so the first depth that is not short of it stands for the whole list.
    depths = [*(int(d) for d in DEPTHS if d < depth), depth]
    curve = [
        OraclePoint(d, int(errors), 100 * int(errors) / total)
        for d, errors in zip(depths, tally.depth_errors, strict=False)
    ]
    return RankedOracle(
        ranking=tally.name,
        curve=tuple(curve),
        mean_rank=float(ranks.mean()),
        median_rank=float(np.median(ranks)),
        ranks=tuple(RankClass(RANK_CLASSES.label(place), int(n)) for place, n in enumerate(classes)),
    )


def _check_whole(tally: SystemTally, evaluator: Evaluator) -> None:
    missing = tally.missing()
    if len(missing):
        ids = list(evaluator.rows)
        named = ", ".join(repr(ids[row]) for row in missing[:_NAMED])
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise EvaluationError(f"{tally.name}: lacks utterances: {named}{more}")
