"""Tables of where the errors are: groups of utterances, and words that are mistaken."""

from collections.abc import Mapping, Sequence
from typing import Any

from .tables import Cell, Table, count, rate, words

_TITLES = {
    "speaker": "By speaker",
    "session": "By session",
    "length": "By length of the reference, in words",
    "position": "By position in the session, or in the file",
}
_MOST_GROUPS = 200
_MOST_CONFUSIONS = 100


def breakdowns(report: Mapping[str, Any]) -> list[Table]:
    """WER of every system in each group; of very many groups, those with the most words."""
    return [_breakdown(by, groups) for by, groups in report["breakdowns"].items()]


def _breakdown(by: str, groups: Sequence[Mapping[str, Any]]) -> Table:
    shown, note = groups, ""
    if len(groups) > _MOST_GROUPS:
        largest = sorted(range(len(groups)), key=lambda i: -groups[i]["reference_words"])[:_MOST_GROUPS]
        shown = [groups[i] for i in sorted(largest)]
        note = f"The {_MOST_GROUPS} groups with the most words, of {len(groups)}; the JSON report has all."
    rows = []
    for group in shown:
        name = Cell("(none)") if group["name"] is None else words(group["name"])
        rates = (rate(system["wer_percent"], none="no words") for system in group["systems"])
        rows.append((name, count(group["utterances"]), count(group["reference_words"]), *rates))
    systems = (f"{system['name']}, WER\u00a0%" for system in shown[0]["systems"])
    return Table(f"by-{by}", _TITLES[by], (by.capitalize(), "Utterances", "Words", *systems), tuple(rows), note)


def confusions(report: Mapping[str, Any]) -> list[tuple[str, list[Table]]]:
    """Of each system but the oracle, the most frequent errors of each kind."""
    systems = report["systems"][:-1]
    return [(system["name"], _confusions(number, system["confusions"])) for number, system in enumerate(systems)]


def _confusions(number: int, found: Mapping[str, Any]) -> list[Table]:
    short = found["short_by_at_most"]
    note = f"There were too many different errors to keep: counts may be short by up to {short}." if short else ""
    kinds = (
        ("substitutions", ("Said", "Recognised"), ("reference", "hypothesis")),
        ("deletions", ("Said, not recognised",), ("reference",)),
        ("insertions", ("Recognised, not said",), ("hypothesis",)),
    )
    return [
        Table(
            f"{kind}-{number}",
            kind.capitalize(),
            (*columns, "Times"),
            tuple(
                (*(words(entry[side]) for side in sides), count(entry["count"]))
                for entry in found[kind][:_MOST_CONFUSIONS]
            ),
            note,
        )
        for kind, columns, sides in kinds
    ]
