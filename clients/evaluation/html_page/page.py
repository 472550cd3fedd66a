"""The page: the template filled with what the evaluation came to."""

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import partial
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from ..as_json import to_json
from ..result import Evaluation
from . import detail_tables, plots, tables
from .charts import WIDTH, shape
from .conclusions import conclusions
from .notes import Notes
from .order import blocks
from .scores import Scores
from .utterances import groups


def render(evaluation: Evaluation, notes: Notes | None = None, scores: Scores | None = None) -> str:
    """One HTML document that asks for nothing from elsewhere. Every text of the input is escaped.

    notes:  without them the page lacks the WER along the set and all utterances but the worst
    scores: without them it lacks WER by weight and perplexity
    """
    report = to_json(evaluation)
    scores = scores or Scores()
    names = [system.name for system in evaluation.systems[:-1]]
    styles = {name: style for style, name in enumerate(names)}
    drawn = {
        "summary": list(plots.summary_plots(report)),
        "lists": list(plots.list_plots(report)),
        "order": list(plots.order_plots(blocks(notes, names) if notes else (), names)),
        "scores": list(plots.score_plots(scores, styles)),
    }
    style, script = _resource("page.css"), _resource("page.js")
    chosen = evaluation.rescored or evaluation.systems[:1]
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            report=report,
            facts=_facts(evaluation, report),
            contents=_contents(evaluation, weights=bool(drawn["scores"] or scores.left_out)),
            tables={
                "systems": tables.systems(report),
                "intervals": tables.intervals(report),
                "normalisation": tables.normalisation(report),
                "comparisons": tables.comparisons(report),
                "effects": tables.effects(report),
                "ranks": tables.ranks(report),
                "made_with": tables.made_with(report),
            },
            conclusions=conclusions(report),
            plots=drawn,
            left_out=scores.left_out,
            breakdowns=detail_tables.breakdowns(report),
            confusions=detail_tables.confusions(report),
            open_system=chosen[-1].name,
            groups=groups(evaluation, notes),
            width=WIDTH,
            policy=_policy(style, script),
            style=style,
            script=script,
        )
    )


def _facts(evaluation: Evaluation, report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was evaluated."""
    facts = [
        ("Utterances", tables.count(evaluation.utterances).text),
        ("Words of the references", tables.count(evaluation.systems[0].counts.words).text),
        ("Hypotheses of the longest list (N)", tables.count(evaluation.depth).text),
        ("Words are", report["normalisation"]["in_words"]),
    ]
    if evaluation.skipped:
        facts.append(("Left out for want of a reference", tables.count(evaluation.skipped).text))
    return facts


def _contents(evaluation: Evaluation, *, weights: bool) -> list[tuple[str, str]]:
    out = [("summary", "Error rates")]
    out += [("comparisons", "Comparisons")] if evaluation.comparisons else []
    out += [("lists", "Behind the first hypothesis")]
    out += [("weights", "Weights and perplexity")] if weights else []
    out += [("where", "Where the errors are"), ("words", "Most frequent errors"), ("utterances", "Utterances")]
    return [*out, ("repeat", "To repeat these figures")]


def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_resource), autoescape=True, undefined=StrictUndefined, trim_blocks=False
    )
    environment.filters["exact"] = partial(json.dumps, allow_nan=False)
    environment.filters["key_shape"] = lambda style: shape(style, 15, 6, 4.5)
    return environment


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """A Content-Security-Policy under which this style and this script run, and nothing else."""
    allowed = {"style-src": _digest(style), "script-src": _digest(script), "img-src": "data:"}
    rules = ["default-src 'none'", *(f"{name} {source}" for name, source in allowed.items())]
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
