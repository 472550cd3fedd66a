"""The page of an evaluation into a file."""

from collections.abc import Mapping

from ...whole_file import write_whole
from ..result import Evaluation
from .notes import Notes
from .page import render
from .scores import Scores, read_scores


def write_page(
    path: str, evaluation: Evaluation, notes: Notes | None, files: Mapping[str, str], *, own_texts: bool
) -> None:
    """Make the page and write it to a file, as a whole, or to standard output for "-".

    notes:     None where the evaluation was not made here; then no scores are read either
    files:     what was evaluated, by name; plain N-best files may be among them
    own_texts: whether texts were the results' own

    Raises what `read_scores` raises, and OutputFileError. A lone surrogate, such as a file name that is not UTF-8
    brings, becomes a question mark.
    """
    scores = Scores()
    if notes is not None:
        rescored = {system.name: files[system.name] for system in evaluation.rescored}
        scores = read_scores(rescored, notes, evaluation.choices.normalisation, own_texts=own_texts)
    write_whole(path, render(evaluation, notes, scores).encode("utf-8", "replace"))
