"""Scores that a model is still working on, so that devices work while the processor does.

A network on a GPU is begun: its work is handed over, which takes little time. Meanwhile the n-gram walks the same tree
on the processor. Then what was begun is waited for. On a processor nothing can be begun early, and nothing is: a model
then works when its result is asked for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from models.base import FloatArray, LanguageModel
from models.errors import ModelFailedError, RescoringError
from models.prefix_tree import PrefixTree

_T = TypeVar("_T")

Scores = tuple[FloatArray, FloatArray | None]


class Pending(Protocol):
    """Scores on their way."""

    def result(self) -> Scores:
        """Wait for them: what `score` of a LanguageModel returns or raises. To be called once."""
        ...


@runtime_checkable
class Begins(Protocol):
    """A language model that may work while others do."""

    def begin(self, tree: PrefixTree, start: FloatArray | None = None) -> Pending:
        """Hand over the work of `score`, see LanguageModel; returns without waiting where a device does it."""
        ...


@dataclass(frozen=True, slots=True)
class Later:
    """Work that is done when its result is asked for."""

    work: Callable[[], Scores]

    def result(self) -> Scores:
        """See Pending."""
        return self.work()


def score_all(
    models: Mapping[str, LanguageModel], tree: PrefixTree, starts: Mapping[str, FloatArray | None]
) -> dict[str, Scores]:
    """The scores of a tree under each model, in the order of the models.

    What can be begun is begun first; then the others score, one after another; then what was begun is waited for.

    starts: model name -> (tree.roots, H) the hidden states before the sentence boundary, or None for the initial state

    Raises ModelFailedError naming the model that failed.
    """
    begun = {
        name: _named(name, lambda model=model, name=name: model.begin(tree, starts[name]))  # type: ignore[misc]
        for name, model in models.items()
        if isinstance(model, Begins)
    }
    waiting: dict[str, Callable[[], Scores]] = {name: pending.result for name, pending in begun.items()}
    done = {
        name: _named(name, lambda model=model, name=name: model.score(tree, starts[name]))  # type: ignore[misc]
        for name, model in models.items()
        if name not in waiting
    }
    done |= {name: _named(name, result) for name, result in waiting.items()}
    return {name: done[name] for name in models}


def _named(name: str, work: Callable[[], _T]) -> _T:
    """Do some work of a model. Raises ModelFailedError naming the model, for whatever goes wrong unforeseen."""
    try:
        return work()
    except RescoringError:
        raise
    except Exception as error:
        raise ModelFailedError(f"model {name!r} failed: {type(error).__name__}") from error
