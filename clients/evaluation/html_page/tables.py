"""Tables of the page, and the ones that every evaluation has. Every number is one of the JSON report's."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..evaluator import FIRST_PASS

_SMALLEST_P = 0.0001
_LONGEST = 200
_HASH = 12


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a cell.

    value:  the number itself, unrounded, where it is one; tables are sorted by it
    absent: whether it says that there is no number
    """

    text: str
    value: float | int | None = None
    absent: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first cell of a row says what the row is of. note: what has to be said with it."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def wordy(self, column: int) -> bool:
        """Whether a column holds words rather than numbers."""
        return all(row[column].value is None and not row[column].absent for row in self.rows)


def words(text: str) -> Cell:
    """A cell of words, long ones cut off."""
    return Cell(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")


def count(number: int) -> Cell:
    """A whole number."""
    return Cell(f"{number:,}".replace(",", "\u202f"), number)


def rate(percent: float | None, *, none: str = "none", digits: int = 2) -> Cell:
    """A rate in per cent."""
    return Cell(none, absent=True) if percent is None else Cell(f"{percent:.{digits}f}", percent)


def points(difference: float) -> Cell:
    """A difference of rates, with its sign."""
    return Cell(f"{difference:+.2f}".replace("-", "\u2212"), difference)


def span(interval: Sequence[float], *, signed: bool = False) -> Cell:
    """An interval; it is sorted by its lower end."""
    low, high = interval
    text = f"{low:+.2f} to {high:+.2f}" if signed else f"{low:.2f} to {high:.2f}"
    return Cell(text.replace("-", "\u2212"), low)


def probability(p: float | None) -> Cell:
    """A p-value."""
    if p is None:
        return Cell("none", absent=True)
    return Cell(f"{p:.4f}" if p >= _SMALLEST_P else f"<{_SMALLEST_P}", p)


def systems(report: Mapping[str, Any]) -> Table:
    """All rates of all systems."""
    columns = ["System", "WER %", "95% interval", "Errors", "S", "D", "I", "Words", "CER %", "SER %", "MER %", "WIL %"]
    rows = [
        (
            words(system["name"]),
            rate(system["wer_percent"]),
            span(system["wer_interval_percent"]),
            *(count(system[name]) for name in ("errors", "substitutions", "deletions", "insertions")),
            count(system["hypothesis_words"]),
            *(rate(system[f"{name}_percent"]) for name in ("cer", "ser", "mer", "wil")),
        )
        for system in report["systems"]
    ]
    return Table("systems", "Error rates", tuple(columns), tuple(rows))


def intervals(report: Mapping[str, Any]) -> Table:
    """The intervals of the other rates."""
    names = ("cer", "ser", "mer", "wil")
    rows = [
        (words(system["name"]), *(span(system[f"{name}_interval_percent"]) for name in names))
        for system in report["systems"]
    ]
    columns = ("System", *(f"{name.upper()} %" for name in names))
    return Table("intervals", "95% intervals of the other rates", columns, tuple(rows))


def normalisation(report: Mapping[str, Any]) -> Table | None:
    """WER before and after the normalisation that was chosen; None where it changed no system."""
    rows = []
    for system in report["systems"]:
        before = system.get("before_normalisation")
        if before and (before["errors"], before["reference_words"]) != (system["errors"], system["reference_words"]):
            numbers = (rate(before["wer_percent"]), count(before["errors"]), count(before["reference_words"]))
            rows.append((words(system["name"]), *numbers, rate(system["wer_percent"]), count(system["errors"])))
    columns = ("System", "WER % before", "Errors before", "Words before", "WER % after", "Errors after")
    return Table("normalisation", "Before and after normalisation", columns, tuple(rows)) if rows else None


def all_comparisons(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those with the first pass, then the others, all of one shape."""
    with_first = [
        {"system": system["name"], "against": FIRST_PASS, **system["against_first_pass"]}
        for system in report["systems"][1:-1]
    ]
    return [*with_first, *report["comparisons"]]


def comparisons(report: Mapping[str, Any]) -> Table | None:
    """Both tests of every comparison; None where nothing is compared."""
    found = all_comparisons(report)
    if not found:
        return None
    columns = ["Comparison", "WER points", "95% interval", "p, bootstrap", "Holm"]
    columns += ["Segments", "z", "p, matched pairs", "Holm"]
    rows = []
    for one in found:
        test = one["matched_pairs"]
        z = Cell("none", absent=True) if test["z"] is None else points(test["z"])
        rows.append(
            (
                words(f"{one['system']} less {one['against']}"),
                points(one["points_percent"]),
                span(one["interval_percent"], signed=True),
                probability(one["p_value"]),
                probability(one["p_value_corrected"]),
                count(test["segments"]),
                z,
                probability(test["p_value"]),
                probability(test["p_value_corrected"]),
            )
        )
    several = f"Holm: the p-value to its left, corrected for {len(found)} comparisons. " if len(found) > 1 else ""
    note = f"{several}A negative difference means fewer errors."
    return Table("comparisons", "Paired bootstrap and matched-pairs test", tuple(columns), tuple(rows), note)


def effects(report: Mapping[str, Any]) -> Table | None:
    """What rescoring did, utterance by utterance; None where nothing was rescored."""
    names = (
        "utterances_helped",
        "utterances_hurt",
        "utterances_with_as_many_errors",
        "utterances_unchanged",
        "errors_removed",
        "errors_added",
    )
    columns = ("System", "Helped", "Hurt", "As many errors", "Same words", "Errors removed", "Errors added")
    rows = [
        (
            words(system["name"]),
            *(count(system["effect"][name]) for name in names),
            rate(system["effect"]["oracle_gap_closed_percent"], digits=1),
        )
        for system in report["systems"]
        if "effect" in system
    ]
    caption = "What rescoring did to the first pass, in utterances and in word errors"
    return Table("effects", caption, (*columns, "Of the gap to the oracle %"), tuple(rows)) if rows else None


def ranks(report: Mapping[str, Any]) -> Table:
    """How far down the best hypothesis stands."""
    oracles = report["oracle_by_depth"]
    classes: Iterable[str] = dict.fromkeys(c["ranks"] for o in oracles for c in o["rank_of_best"]["classes"])
    names = list(classes)
    rows = []
    for oracle in oracles:
        best = oracle["rank_of_best"]
        found = {c["ranks"]: c["utterances"] for c in best["classes"]}
        rows.append(
            (
                words(oracle["ranking"]),
                rate(best["mean"], digits=1),
                Cell(f"{best['median']:g}", best["median"]),
                *(count(found.get(name, 0)) for name in names),
            )
        )
    caption = "Utterances by the rank of their best hypothesis"
    columns = ("Ranked by", "Mean rank", "Median rank", *names)
    return Table("ranks", caption, columns, tuple(rows))


def made_with(report: Mapping[str, Any]) -> Table | None:
    """What each rescored system was made with, rounded; signatures have it in full. None where nothing is known."""
    found = [system for system in report["systems"] if system.get("weights") or system.get("bundle")]
    if not found:
        return None
    scales = list(dict.fromkeys(name for s in found for name, v in (s.get("weights") or {}).items() if _plain(v)))
    rows = []
    for system in found:
        weights = system.get("weights") or {}
        mixture = weights.get("interpolation") or {}
        rows.append(
            (
                words(system["name"]),
                words(str(system.get("bundle") or "none")[:_HASH]),
                words(", ".join(f"{model} {value:.4g}" for model, value in mixture.items() if _plain(value)) or "none"),
                *(Cell(f"{weights[n]:.4g}", weights[n]) if n in weights else Cell("none", absent=True) for n in scales),
                words(str(system.get("state") or "none")),
                words(str(system.get("decision") or "total")),
            )
        )
    columns = ("System", "Bundle", "Mixture", *scales, "State", "Decision")
    return Table("made-with", "What the systems were made with", columns, tuple(rows))


def _plain(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
