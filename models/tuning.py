"""Tuning on a development set: interpolation weights for likelihood, then scales and bonuses for word errors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from models.base import FloatArray
from models.development_set import PARAMETERS, DevelopmentSet
from models.errors import TuningError
from models.interpolation import FittedMixture, fit_lambdas
from models.nbest import NBest
from models.perplexity import text_log_probs
from models.rescoring import Rescorer
from models.score import Weights
from models.scored_lists import PreparedList, ScoredLists
from models.weight_search import RANGES, FoundWeights, steady_search

_LISTS_A_BATCH = 16
_OOV_SHARE_TO_WARN_OF = 0.05
_POSTERIOR_SCALES = np.geomspace(1e-3, 1.0, 31)


@dataclass(frozen=True, slots=True)
class TuningResult:
    """What was found, and how far it can be trusted.

    weights:           for the bundle
    mixture:           the fit of the interpolation weights on the held-out text
    first_pass_errors, tuned_errors, oracle_errors: word errors on the development set
    held_out_errors:   word errors when each fold is scored with weights tuned on the others
    words:             reference words
    lists, folds:      utterances, and cross-validation folds
    warnings:          what the user should know, as sentences
    """

    weights: Weights
    mixture: FittedMixture
    first_pass_errors: int
    tuned_errors: int
    oracle_errors: int
    held_out_errors: int
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
    report: Callable[[int], None] = lambda _: None,
) -> TuningResult:
    """Tune scales and bonuses for given interpolation weights.

    scored:   the development lists, scored by `score_lists` or in sessions
    lambdas:  interpolation weights by model, and the fit that gave them: see `fit_mixture`
    off:      names of weights held at zero
    folds:    of the cross-validation; blocks of consecutive utterances
    report:   called with the number of searches done, of folds + 1

    Raises TuningError when there are fewer lists than folds, or no reference word.
    """
    development = DevelopmentSet.from_scores(scored, lambdas)
    if development.lists < folds:
        raise TuningError(f"{development.lists} utterances are too few for {folds} folds")
    if not development.words.sum():
        raise TuningError("the references of the development set hold no word")
    if not development.features[:, PARAMETERS.index("first_pass_scale")].any():
        off |= {"first_pass_scale"}
    found = steady_search(development, off=off, seed=seed)
    report(1)
    fold_of = np.arange(development.lists) * folds // development.lists
    held_out_errors = 0
    for fold in range(folds):
        others = steady_search(development.subset(fold_of != fold), off=off, seed=seed)
        this = development.subset(fold_of == fold)
        held_out_errors += int(this.chosen_errors(others.values[:, None]).sum())
        report(fold + 2)
    weights = Weights(interpolation=lambdas, posterior_scale=_posterior_scale(development, found), **found.by_name())
    first_pass = int(development.first_pass_errors.sum())
    return TuningResult(
        weights=weights,
        mixture=mixture,
        first_pass_errors=first_pass,
        tuned_errors=found.errors,
        oracle_errors=int(development.oracle_errors.sum()),
        held_out_errors=held_out_errors,
        words=int(development.words.sum()),
        lists=development.lists,
        folds=folds,
        warnings=tuple(_warnings(development, found.by_name(), off, held_out_errors, first_pass)),
    )


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
    development: DevelopmentSet, found: Mapping[str, float], off: frozenset[str], held_out: int, first_pass: int
) -> list[str]:
    out = []
    for name, value in found.items():
        spread = RANGES[name]
        if name not in off and value != 0 and not spread.low < value < spread.high:
            out.append(f"{name} = {value:g} lies at the edge of its range; the best may lie beyond")
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
