"""The parts of the report that are printed when asked for: groups, confusions, the worst utterances."""

from rich.console import Console
from rich.table import Table

from .confusions import Confusion
from .kinds import By
from .result import Evaluation
from .text_formats import columns_text

_TITLES = {
    By.SPEAKER: "by speaker",
    By.SESSION: "by session",
    By.LENGTH: "by length of the reference, in words",
    By.POSITION: "by position in the session",
}


def print_breakdown(console: Console, evaluation: Evaluation, by: By) -> None:
    """WER of every system, group by group; a line where no utterance has what is asked for."""
    found = next((breakdown for breakdown in evaluation.breakdowns if breakdown.by == by), None)
    if found is None:
        console.print(f"no utterance says its {by}", soft_wrap=True)
        return
    table = Table(title=f"WER % {_TITLES[by]}")
    table.add_column(by)
    for heading in ("utterances", "words", *(system.name for system in evaluation.systems)):
        table.add_column(heading, justify="right", no_wrap=True)
    for group in found.groups:
        first = group.counts[0]
        rates = [f"{counts.wer:.2f}" if counts.words else "no words" for counts in group.counts]
        name = "(none)" if group.name is None else group.name
        table.add_row(name, str(first.utterances), str(first.words), *rates)
    console.print(table)


def print_confusions(console: Console, evaluation: Evaluation) -> None:
    """The most frequent substitutions, deletions and insertions of each system, side by side."""
    for system in evaluation.systems:
        confusions = system.confusions
        table = Table(title=f"most frequent errors of {system.name}")
        for kind in ("substitutions", "deletions", "insertions"):
            table.add_column("", justify="right")
            table.add_column(kind)
        columns = (confusions.substitutions, confusions.deletions, confusions.insertions)
        for place in range(max(map(len, columns))):
            cells: list[str] = []
            for column in columns:
                cells += _confusion(column[place]) if place < len(column) else ["", ""]
            table.add_row(*cells)
        console.print(table)
        if confusions.short_by_at_most:
            console.print(
                f"too many different errors to keep: counts may be short by up to {confusions.short_by_at_most}",
                soft_wrap=True,
            )


def print_worst(console: Console, evaluation: Evaluation) -> None:
    """The utterances with the most errors, aligned; where the evaluation holds some."""
    for system in evaluation.systems:
        for number, utterance in enumerate(system.worst, start=1):
            who = f", speaker {utterance.speaker}" if utterance.speaker is not None else ""
            console.print(
                f"worst {number} of {system.name}: {utterance.utterance_id}{who}, {utterance.errors} errors",
                soft_wrap=True,
            )
            for name, alignment in utterance.alignments.items():
                console.print(f"  {name}", soft_wrap=True)
                for line in columns_text(alignment):
                    console.print(f"    {line}", soft_wrap=True)


def _confusion(confusion: Confusion) -> list[str]:
    sides = [side for side in (confusion.reference, confusion.hypothesis) if side is not None]
    return [str(confusion.count), " > ".join(sides)]
