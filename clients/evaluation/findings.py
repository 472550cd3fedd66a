"""What a reader of the figures must not miss, in sentences."""

from collections.abc import Iterator

from .result import Evaluation, SystemResult

_FEW_SEGMENTS = 50


def findings(evaluation: Evaluation) -> tuple[str, ...]:
    """Where rescoring does harm or shows no gain, and where a figure stands on little."""
    return tuple(_findings(evaluation))


def _findings(evaluation: Evaluation) -> Iterator[str]:
    for system in evaluation.rescored:
        yield from _of_system(system)
    for comparison in evaluation.comparisons:
        segments = comparison.matched_pairs.segments
        if 0 < segments < _FEW_SEGMENTS:
            yield (
                f"{comparison.system} and {comparison.against} differ or err in {segments} segments only: the "
                "matched-pairs test is rough below fifty"
            )


def _of_system(system: SystemResult) -> Iterator[str]:
    difference = system.to_first_pass
    assert difference is not None
    if difference.points > 0:
        yield f"{system.name} is worse than the first pass, by {difference.points:.2f} points of WER"
    elif difference.points == 0:
        yield f"{system.name} makes as many errors as the first pass"
    elif difference.interval.high >= 0:
        yield f"{system.name} is better than the first pass, but the interval of the difference holds 0"
    scale = (system.made_with.get("weights") or {}).get("lm_scale")
    if isinstance(scale, int | float) and scale < 0:
        yield f"{system.name} was made with a negative lm_scale, {scale:g}: its language model does not help"
