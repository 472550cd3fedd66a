"""The subcommand `nbest evaluate`. Importing this imports typer alone."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .kinds import By, ExportFormat

if TYPE_CHECKING:
    from .evaluator import Choices
    from .html_page.notes import Notes
    from .result import Evaluation

_Results = Annotated[list[str], typer.Argument(metavar="RESULT...", help="Result files, or N-best files.")]
_Json = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Also write the report as JSON; - for stdout.")
]
_Html = Annotated[
    str | None,
    typer.Option("--html", metavar="FILE", help="Also write the report as one HTML page, with plots; - for stdout."),
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
_Worst = Annotated[
    int | None,
    typer.Option(min=0, metavar="K", help="Print the K worst utterances, aligned. The HTML page has 10 when left out."),
]
_Export = Annotated[
    str | None, typer.Option(metavar="DIR", help="Write every alignment into this folder, a file per system.")
]
_ExportFormat = Annotated[
    list[ExportFormat] | None,
    typer.Option(help="With --export: Kaldi's per_utt, sclite's pra or trn; may be repeated; all when left out."),
]
_Url = Annotated[
    str | None,
    typer.Option(help="Rescore and evaluate there: the service, such as http://localhost:8000, and one N-best file."),
]
_ApiKey = Annotated[
    str | None,
    typer.Option(envvar="NBEST_API_KEY", show_default=False, help="With --url: the key that the service asks for."),
]
_RetryFor = Annotated[
    float,
    typer.Option(min=0.0, metavar="SECONDS", help="With --url: how long to keep trying while it is away or busy."),
]
_Options = Annotated[
    str | None, typer.Option(metavar="FILE.json", help="With --url: weights that override the bundle's.")
]
_Weight = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="With --url: one weight; may be repeated.")
]
_Interpolation = Annotated[
    str | None, typer.Option(metavar="MODEL=WEIGHT,...", help="With --url: interpolation weights.")
]
_Decision = Annotated[
    Literal["total", "mbr", "consensus"] | None, typer.Option(help="With --url: how lists are decided on.")
]
_LogBase = Annotated[
    Literal["e", "10"] | None, typer.Option(help="With --url: the base of the logarithms in the file; e if left out.")
]

_CONFUSIONS_IN_JSON = 20
_WORST_IN_HTML = 10


def evaluate(
    results: _Results,
    *,
    json_file: _Json = None,
    html: _Html = None,
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
    worst: _Worst = None,
    export: _Export = None,
    export_format: _ExportFormat = None,
    url: _Url = None,
    api_key: _ApiKey = None,
    retry_for: _RetryFor = 120.0,
    options: _Options = None,
    weight: _Weight = None,
    interpolation: _Interpolation = None,
    decision: _Decision = None,
    log_base: _LogBase = None,
) -> None:
    """Word error rates of first pass, rescored and oracle, and what stands behind them.

    Several result files are compared with each other too; all must be of the same utterances. With --url, one N-best
    file with references is rescored and evaluated by the service.
    """
    from ..errors import UsageError  # noqa: PLC0415 - a command imports what it runs
    from ..options import read_options  # noqa: PLC0415 - a command imports what it runs
    from .evaluator import Choices  # noqa: PLC0415 - a command imports what it runs
    from .normalisation import Normalisation  # noqa: PLC0415 - a command imports what it runs
    from .printing import print_report, write_json  # noqa: PLC0415 - a command imports what it runs
    from .run import Settings, evaluate, system_names  # noqa: PLC0415 - a command imports what it runs

    if export_format and export is None:
        raise UsageError("--export-format says how to write, but --export does not say where")
    if html == json_file == "-":
        raise UsageError("--json and --html cannot both write to standard output")
    unasked = 0 if html is None else _WORST_IN_HTML
    choices = Choices(
        normalisation=Normalisation(unicode_form, lowercase, strip_punctuation, frozenset(drop_word or [])),
        resamples=resamples,
        seed=seed,
        boundary_words=boundary_words,
        confusions=confusions or _CONFUSIONS_IN_JSON,
        worst=unasked if worst is None else worst,
    )
    formats = export_format or list(ExportFormat)
    settings = Settings(nbest, set_name, skip_missing_reference, choices, export, formats)
    notes: Notes | None = None
    chosen = read_options(options, weight or [], interpolation, None, decision)
    if url is not None:
        from .served import Service, evaluate_on_service  # noqa: PLC0415 - a command imports what it runs

        evaluation = evaluate_on_service(results, settings, Service(url, api_key, retry_for, chosen, log_base or "e"))
    elif chosen or log_base:
        raise UsageError("weights, --decision and --log-base say how the service rescores: they need --url")
    else:
        notes = None if html is None else _notes(choices)
        evaluation = evaluate(results, settings, notes)
    printed = evaluation if worst is not None else _without_worst(evaluation)
    print_report(printed, by=by or [], confusions=confusions is not None, to_stderr="-" in {json_file, html})
    if json_file is not None:
        write_json(evaluation, json_file)
    if html is not None:
        from .html_page.write import write_page  # noqa: PLC0415 - a command imports what it runs

        files = dict(zip(system_names(results), results, strict=True))
        write_page(html, evaluation, notes, files, own_texts=nbest is None)


def _notes(choices: "Choices") -> "Notes":
    from .html_page.notes import Notes  # noqa: PLC0415 - a command imports what it runs

    return Notes(choices)


def _without_worst(evaluation: "Evaluation") -> "Evaluation":
    """The evaluation without the utterances that the page alone was to have."""
    return replace(evaluation, systems=tuple(replace(system, worst=()) for system in evaluation.systems))
