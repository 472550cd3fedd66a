"""What the comparisons say, in plain words."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..evaluator import FIRST_PASS
from .tables import all_comparisons

LEVEL = 0.05


def conclusions(report: Mapping[str, Any]) -> list[str]:
    """A sentence or two for each comparison."""
    found = all_comparisons(report)
    return [" ".join(_sentences(one, len(found))) for one in found]


def _sentences(one: Mapping[str, Any], comparisons: int) -> Iterator[str]:
    difference = one["points_percent"]
    low, high = one["interval_percent"]
    system, against = one["system"], _called(one["against"])
    if difference == 0:
        yield f"{system} makes as many errors as {against}."
    else:
        than = "lower" if difference < 0 else "higher"
        yield (
            f"The WER of {system} is {abs(difference):.2f} points {than} than that of {against} "
            f"(95% interval of the difference: {_signed(low)} to {_signed(high)})."
        )
    yield _verdict(one, difference, " after correction" if comparisons > 1 else "")


def _verdict(one: Mapping[str, Any], difference: float, after: str) -> str:
    bootstrap, pairs = one["p_value_corrected"], one["matched_pairs"]["p_value_corrected"]
    sure = [p is not None and p < LEVEL for p in (bootstrap, pairs)]
    level = f"at the 5% level{after}"
    if pairs is None:
        said = "finds a difference" if sure[0] else "shows no difference"
        return f"The paired bootstrap {said} {level}; the matched-pairs test is not defined here."
    if all(sure) and difference:
        return f"Both tests find a difference {level}: chance alone would seldom give one as large."
    if not any(sure) or not difference:
        return f"Neither test shows a difference {level}: it may be chance, or the set may be too small."
    tests = ("paired bootstrap", "matched-pairs test")
    finds, other = tests if sure[0] else reversed(tests)
    return f"The tests disagree {level}: the {finds} finds a difference, the {other} does not."


def _called(name: str) -> str:
    return f"the {name}" if name == FIRST_PASS else name


def _signed(number: float) -> str:
    return f"{number:+.2f}".replace("-", "\u2212")
