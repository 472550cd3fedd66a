"""The subcommand `nbest evaluate`. Importing this imports typer alone."""

from typing import Annotated, Literal

import typer

from .kinds import By, ExportFormat

_Results = Annotated[list[str], typer.Argument(metavar="RESULT...", help="Result files, or N-best files.")]
_Json = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Also write the report as JSON; - for stdout.")
]
_NBest = Annotated[
    str | None,
    typer.Option(
        "--nbest",
        metavar="FILE",
        help="Take texts and references from this N-best file, not from the results.",
    ),
]
_SetName = Annotated[str | None, typer.Option(help="What to call the utterances; the file's name when left out.")]
_Skip = Annotated[
    bool,
    typer.Option("--skip-missing-reference", help="Leave out utterances without a reference; say how many."),
]
_Resamples = Annotated[int, typer.Option(min=100, help="Resamples of the bootstrap.")]
_Seed = Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")]
_Boundary = Annotated[int, typer.Option(min=1, help="Correct words that part two segments of the matched-pairs test.")]
_Lowercase = Annotated[bool, typer.Option("--lowercase", help="Compare in lower case.")]
_Punctuation = Annotated[
    bool,
    typer.Option("--strip-punctuation", help="Take out punctuation that does not stand between letters or digits."),
]
_UnicodeForm = Annotated[
    Literal["NFC", "NFKC"] | None,
    typer.Option(case_sensitive=False, help="Compare in this Unicode form."),
]
_DropWord = Annotated[
    list[str] | None, typer.Option(metavar="WORD", help="Leave out this word, such as uh; may be repeated.")
]
_By = Annotated[
    list[By] | None,
    typer.Option(help="Print the WER of groups of utterances; may be repeated. The JSON has all of them."),
]
_Confusions = Annotated[
    int | None, typer.Option(min=1, metavar="K", help="Print the K most frequent errors of each kind.")
]
_Worst = Annotated[int, typer.Option(min=0, metavar="K", help="Print the K worst utterances, aligned.")]
_Export = Annotated[
    str | None, typer.Option(metavar="DIR", help="Write every alignment into this folder, a file per system.")
]
_ExportFormat = Annotated[
    list[ExportFormat] | None,
    typer.Option(help="With --export: Kaldi's per_utt, sclite's pra or trn; may be repeated; all when left out."),
]

_CONFUSIONS_IN_JSON = 20


def evaluate(
    results: _Results,
    *,
    json_file: _Json = None,
    nbest: _NBest = None,
    set_name: _SetName = None,
    skip_missing_reference: _Skip = False,
    resamples: _Resamples = 10_000,
    seed: _Seed = 1,
    boundary_words: _Boundary = 2,
    lowercase: _Lowercase = False,
    strip_punctuation: _Punctuation = False,
    unicode_form: _UnicodeForm = None,
    drop_word: _DropWord = None,
    by: _By = None,
    confusions: _Confusions = None,
    worst: _Worst = 0,
    export: _Export = None,
    export_format: _ExportFormat = None,
) -> None:
    """Word error rates of first pass, rescored and oracle, and what stands behind them.

    Several result files are compared with each other too; all must be of the same utterances.
    """
    from ..errors import UsageError  # noqa: PLC0415 - a command imports what it runs
    from .evaluator import Choices  # noqa: PLC0415 - a command imports what it runs
    from .normalisation import Normalisation  # noqa: PLC0415 - a command imports what it runs
    from .printing import print_report, write_json  # noqa: PLC0415 - a command imports what it runs
    from .run import Settings, evaluate  # noqa: PLC0415 - a command imports what it runs

    if export_format and export is None:
        raise UsageError("--export-format says how to write, but --export does not say where")
    choices = Choices(
        normalisation=Normalisation(unicode_form, lowercase, strip_punctuation, frozenset(drop_word or [])),
        resamples=resamples,
        seed=seed,
        boundary_words=boundary_words,
        confusions=confusions or _CONFUSIONS_IN_JSON,
        worst=worst,
    )
    formats = export_format or list(ExportFormat)
    evaluation = evaluate(results, Settings(nbest, set_name, skip_missing_reference, choices, export, formats))
    print_report(evaluation, by=by or [], confusions=confusions is not None, to_stderr=json_file == "-")
    if json_file is not None:
        write_json(evaluation, json_file)
