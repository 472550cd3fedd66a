"""Tuning on a development set: interpolation weights by EM or for word errors; scales and bonuses for word errors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.base import FloatArray
from models.bootstrap import RESAMPLES, Measure, measure_against, resampled_sums
from models.development_set import PARAMETERS, DevelopmentSet
from models.errors import TuningError
from models.interpolation import FittedMixture, fit_lambdas
from models.lambda_search import FoundMixture, LambdasFor, MixtureScores, search_lambdas
from models.nbest import NBest
from models.perplexity import text_log_probs
from models.prefix_tree import IntArray
from models.rescoring import Rescorer
from models.score import Weights
from models.scored_lists import PreparedList, ScoredLists
from models.weight_ranges import NO_REGULARISATION, RANGES, Regularisation
from models.weight_search import FoundWeights, steady_search

_LISTS_A_BATCH = 16
_OOV_SHARE_TO_WARN_OF = 0.05
_POSTERIOR_SCALES = np.geomspace(1e-3, 1.0, 31)


@dataclass(frozen=True, slots=True)
class Spread:
    """How far the values of one weight lie apart from fold to fold; deviation is that of a sample (K - 1)."""

    mean: float
    deviation: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class TuningResult:
    """What was found, and how far it can be trusted.

    weights:           for the bundle
    mixture:           the fit of the interpolation weights on the held-out text, by EM
    lambdas_for:       what the interpolation weights were chosen for
    first_pass_errors, tuned_errors, oracle_errors: word errors on the development set
    held_out_errors:   word errors when each fold is scored with weights tuned on the others
    held_out_rate:     the same as a word error rate in per cent; its difference is that to the first pass
    spread:            by weight, the values found for the folds; interpolation weights as "interpolation NAME"
    at_edge:           names of the weights at or beyond an end of their range
    words:             reference words
    lists, folds:      utterances, and cross-validation folds
    warnings:          what the user should know, as sentences
    """

    weights: Weights
    mixture: FittedMixture
    lambdas_for: LambdasFor
    first_pass_errors: int
    tuned_errors: int
    oracle_errors: int
    held_out_errors: int
    held_out_rate: Measure
    spread: Mapping[str, Spread]
    at_edge: tuple[str, ...]
    words: int
    lists: int
    folds: int
    warnings: tuple[str, ...]


def score_lists(
    rescorer: Rescorer, lists: Sequence[NBest], models: Sequence[str], report: Callable[[int], None] = lambda _: None
) -> list[ScoredLists]:
    """Run the models over the development lists, once. report: called with the number of lists done so far."""
    prepared = [rescorer.prepare(nbest) for nbest in lists]
    scored = []
    for first in range(0, len(prepared), _LISTS_A_BATCH):
        batch: list[PreparedList] = prepared[first : first + _LISTS_A_BATCH]
        scored.append(rescorer.score(batch, models))
        report(first + len(batch))
    return scored


def fit_mixture(
    rescorer: Rescorer, models: Sequence[str], held_out: Sequence[Sequence[str]]
) -> tuple[dict[str, float], FittedMixture]:
    """Interpolation weights by EM on held-out sentences. Returns them by model, and the fit."""
    ids = [rescorer.vocabulary.ids(sentence) for sentence in held_out]
    if not ids:
        raise TuningError("the held-out text is empty")
    return mix({name: np.concatenate(text_log_probs(rescorer.models[name], ids)) for name in models})


def mix(log_probs: Mapping[str, FloatArray]) -> tuple[dict[str, float], FittedMixture]:
    """Interpolation weights by EM from each model's (words,) ln P of one text. Returns them by model, and the fit."""
    fit = fit_lambdas(np.stack(list(log_probs.values())))
    return dict(zip(log_probs, fit.lambdas.tolist(), strict=True)), fit


def tune(
    scored: Sequence[ScoredLists],
    lambdas: dict[str, float],
    mixture: FittedMixture,
    *,
    off: frozenset[str] = frozenset(),
    folds: int = 5,
    seed: int = 0,
    lambdas_for: LambdasFor = "perplexity",
    regularisation: Regularisation = NO_REGULARISATION,
    report: Callable[[int], None] = lambda _: None,
) -> TuningResult:
    """Tune scales and bonuses, and interpolation weights if those given are a start only.

    scored:      the development lists, scored by `score_lists` or in sessions
    lambdas:     interpolation weights by model, and the fit that gave them: see `fit_mixture`
    off:         names of weights held at zero
    folds:       of the cross-validation; blocks of consecutive utterances
    lambdas_for: "perplexity" keeps the interpolation weights, "wer" goes on from them to fewer word errors
    report:      called with the number of searches done, of folds + 1

    Raises TuningError when there are fewer lists than folds, or no reference word.
    """
    development = DevelopmentSet.from_scores(scored, lambdas)
    if development.lists < folds:
        raise TuningError(f"{development.lists} utterances are too few for {folds} folds")
    if not development.words.sum():
        raise TuningError("the references of the development set hold no word")
    if not development.features[:, PARAMETERS.index("first_pass_scale")].any():
        off |= {"first_pass_scale"}
    search = _Search(
        development,
        MixtureScores.from_scores(scored, list(lambdas)) if lambdas_for == "wer" else None,
        np.array(list(lambdas.values())),
        {"off": off, "seed": seed, "regularisation": regularisation},
    )
    found = search.find(np.ones(development.lists, bool))
    report(1)
    fold_of = np.arange(development.lists) * folds // development.lists
    held_out = np.zeros(development.lists, np.int64)
    of_folds = []
    for fold in range(folds):
        of_folds.append(search.find(fold_of != fold))
        this = search.mixed(of_folds[-1].lambdas).subset(fold_of == fold)
        held_out[fold_of == fold] = this.chosen_errors(of_folds[-1].weights.values[:, None])[:, 0]
        report(fold + 2)
    by_name = found.weights.by_name()
    at_edge = tuple(
        name for name, value in by_name.items() if name not in off and value != 0 and RANGES[name].at_edge(value)
    )
    return TuningResult(
        weights=Weights(
            interpolation=dict(zip(lambdas, found.lambdas.tolist(), strict=True)),
            posterior_scale=_posterior_scale(search.mixed(found.lambdas), found.weights),
            **by_name,
        ),
        mixture=mixture,
        lambdas_for=lambdas_for,
        first_pass_errors=int(development.first_pass_errors.sum()),
        tuned_errors=found.weights.errors,
        oracle_errors=int(development.oracle_errors.sum()),
        held_out_errors=int(held_out.sum()),
        held_out_rate=_against_first_pass(development, held_out, seed),
        spread=_spread([_named(fold, list(lambdas)) for fold in of_folds]),
        at_edge=at_edge,
        words=int(development.words.sum()),
        lists=development.lists,
        folds=folds,
        warnings=tuple(_warnings(development, by_name, at_edge, int(held_out.sum()))),
    )


@dataclass(frozen=True, slots=True)
class _Search:
    """One way of tuning, for the whole set and for the rest of each fold.

    scores:  to mix anew where interpolation weights are searched for; None where those of the start stay
    start:   (M,) interpolation weights
    options: of `steady_search` and `search_lambdas`
    """

    development: DevelopmentSet
    scores: MixtureScores | None
    start: FloatArray
    options: Mapping[str, Any]

    def find(self, chosen: NDArray[np.bool_]) -> FoundMixture:
        """Tune on the lists marked True."""
        part = self.development.subset(chosen)
        if self.scores is None:
            return FoundMixture(self.start, steady_search(part, **self.options))
        hypotheses = np.repeat(chosen, np.diff(self.development.starts))
        return search_lambdas(part, self.scores.subset(hypotheses), self.start, **self.options)

    def mixed(self, lambdas: FloatArray) -> DevelopmentSet:
        """The whole set under these interpolation weights."""
        return self.development.with_lm(self.scores.lm(lambdas)) if self.scores else self.development


def _named(found: FoundMixture, models: Sequence[str]) -> dict[str, float]:
    """All that was found, by name."""
    lambdas = {f"interpolation {name}": value for name, value in zip(models, found.lambdas.tolist(), strict=True)}
    return {**lambdas, **found.weights.by_name()}


def _spread(of_folds: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    values = {name: np.array([fold[name] for fold in of_folds]) for name in of_folds[0]}
    return {
        name: Spread(float(v.mean()), float(v.std(ddof=1)), float(v.min()), float(v.max()))
        for name, v in values.items()
    }


def _against_first_pass(development: DevelopmentSet, held_out: IntArray, seed: int) -> Measure:
    """The word error rate of the held-out folds, and its difference to the first pass with a bootstrap interval."""
    words = development.words
    table = np.stack([held_out, development.first_pass_errors, words]).astype(np.float64)
    observed, drawn = (
        100 * sums[:2] / sums[2] for sums in (table.sum(axis=1), resampled_sums(table, words, RESAMPLES, seed))
    )
    return measure_against(observed, drawn, [float(observed[0])])


def _posterior_scale(development: DevelopmentSet, found: FoundWeights) -> float:
    """The scale at which the list's oracle hypotheses are most likely: ln P(oracle) summed over lists, maximised."""
    total = development.features @ found.values
    starts = development.starts
    scores = np.zeros(len(_POSTERIOR_SCALES))
    for first, last in pairwise(starts):
        errors = development.errors[first:last]
        scaled = _POSTERIOR_SCALES[:, None] * (total[first:last] - total[first:last].max())
        mass = np.exp(scaled)
        scores += np.log(mass[:, errors == errors.min()].sum(axis=1) / mass.sum(axis=1) + 1e-300)
    return float(_POSTERIOR_SCALES[np.argmax(scores)])


def _warnings(
    development: DevelopmentSet, found: Mapping[str, float], at_edge: Sequence[str], held_out: int
) -> list[str]:
    first_pass = int(development.first_pass_errors.sum())
    out = [f"{name} = {found[name]:g} lies at the edge of its range; the best may lie beyond" for name in at_edge]
    if found["lm_scale"] <= 0:
        out.append(f"lm_scale = {found['lm_scale']:g}: the language model does not help on this set")
    if found["acoustic_scale"] == 0:
        out.append("acoustic_scale = 0: the acoustic scores do not help on this set")
    if held_out >= first_pass:
        out.append(
            "rescoring does not beat the first pass on held-out folds "
            f"({held_out} word errors against {first_pass}): do not use these weights"
        )
    words, oov = (development.features[:, PARAMETERS.index(name)].sum() for name in ("word_bonus", "oov_bonus"))
    if words and oov / words > _OOV_SHARE_TO_WARN_OF:
        out.append(f"{oov / words:.1%} of the hypotheses' words are outside the vocabulary; look at the normaliser")
    return out
