"""Which drawings the page has, and what each shows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .charts import Chart, Row, Series, interval_chart, line_chart
from .order import Block
from .perplexity import Perplexity
from .scores import Scores
from .sweep import Sweep
from .tables import Cell, Table, all_comparisons, count, points, rate, span, words

_BOTH = 2


def summary_plots(report: Mapping[str, Any]) -> Iterator[Chart]:
    """WER and differences with their intervals."""
    systems = report["systems"]
    rows = [Row(s["name"], style, s["wer_percent"], *s["wer_interval_percent"]) for style, s in enumerate(systems)]
    table = Table(
        "wer-numbers",
        "WER with its interval",
        ("System", "WER %", "95% interval"),
        tuple((words(s["name"]), rate(s["wer_percent"]), span(s["wer_interval_percent"])) for s in systems),
    )
    said = "; ".join(f"{row.name} {row.value:.2f} ({row.low:.2f} to {row.high:.2f})" for row in rows)
    yield interval_chart(
        "wer",
        "Word error rate",
        f"WER in per cent, with 95% intervals: {said}.",
        rows,
        table,
        x_label="WER, %, with its 95% interval",
    )
    found = all_comparisons(report)
    if not found:
        return
    style = {s["name"]: number for number, s in enumerate(systems)}
    rows = [
        Row(f"{c['system']} less {c['against']}", style[c["system"]], c["points_percent"], *c["interval_percent"])
        for c in found
    ]
    table = Table(
        "difference-numbers",
        "Differences with their intervals",
        ("Comparison", "WER points", "95% interval"),
        tuple((words(row.name), points(row.value), span((row.low, row.high), signed=True)) for row in rows),
    )
    said = "; ".join(f"{row.name} {row.value:+.2f} ({row.low:+.2f} to {row.high:+.2f})" for row in rows)
    yield interval_chart(
        "differences",
        "Differences",
        f"Points of WER, with 95% intervals; left of 0 is better: {said}.",
        rows,
        table,
        x_label="points of WER, with the 95% interval; left of 0 is better",
        signed=True,
    )


def list_plots(report: Mapping[str, Any]) -> Iterator[Chart]:
    """The oracle by depth."""
    oracles = report["oracle_by_depth"]
    depths = [point["depth"] for point in oracles[0]["curve"]]
    series = [
        Series(o["ranking"], style, tuple((p["depth"], p["wer_percent"]) for p in o["curve"]))
        for style, o in enumerate(oracles)
    ]
    table = Table(
        "oracle-numbers",
        "Oracle WER % among the first N",
        ("N", *(f"Ranked by {o['ranking']}" for o in oracles)),
        tuple(
            (count(depth), *(rate(o["curve"][place]["wer_percent"]) for o in oracles))
            for place, depth in enumerate(depths)
        ),
    )
    ends = "; ".join(f"{s.name}: {s.points[0][1]:.2f} at 1, {s.points[-1][1]:.2f} at {depths[-1]}" for s in series)
    yield line_chart(
        "oracle",
        "Oracle by N",
        f"WER of the best among the first N hypotheses of each ranking; it falls as N grows. {ends}.",
        series,
        table,
        x_label="N, the first so many hypotheses of a ranking",
        log_x=depths[-1] > _BOTH,
        x_ticks=depths if depths[-1] > _BOTH else (),
    )


def order_plots(blocks: Sequence[Block], names: Sequence[str]) -> Iterator[Chart]:
    """WER block by block, and up to each; nothing where there are no blocks. names: first pass, then systems."""
    if not blocks:
        return
    for name, title, what, rates in (
        ("blocks", "WER along the set", "of consecutive utterances, block by block", [b.wer for b in blocks]),
        ("running", "Running WER", "of all utterances up to this one", [b.running for b in blocks]),
    ):
        series = [
            Series(system, style, tuple((b.last, r[style]) for b, r in zip(blocks, rates, strict=True)))
            for style, system in enumerate(names)
        ]
        table = Table(
            f"{name}-numbers",
            f"WER % {what}",
            ("Utterances", *names),
            tuple(
                (Cell(f"{b.first if name == 'blocks' else 1}-{b.last}", b.last), *(rate(x, none="no words") for x in r))
                for b, r in zip(blocks, rates, strict=True)
            ),
        )
        every = [y for one in series for _, y in one.points if y is not None]
        if not every:
            continue
        yield line_chart(
            name,
            title,
            f"WER {what}, in the order in which utterances came, in {len(blocks)} blocks: from {min(every):.2f} to "
            f"{max(every):.2f}. A system that learns on the way should gain more over the first pass later on.",
            series,
            table,
            x_label="utterances, in the order in which they came",
        )


def score_plots(scores: Scores, styles: Mapping[str, int]) -> Iterator[Chart]:
    """WER by lm_scale, and perplexity against WER, of the systems that have them."""
    if scores.sweeps:
        yield _sweeps(scores.sweeps, styles)
    if scores.perplexities:
        yield _perplexities(scores.perplexities, styles)


def _sweeps(sweeps: Sequence[Sweep], styles: Mapping[str, int]) -> Chart:
    series = [
        Series(
            s.system,
            styles[s.system],
            tuple((p.lm_scale, p.wer) for p in s.points),
            tuple((p.lm_scale, p.wer) for p in s.points if p.lm_scale == s.own),
        )
        for s in sweeps
    ]
    table = Table(
        "sweep-numbers",
        "WER by lm_scale",
        ("System", "lm_scale", "Errors", "WER %"),
        tuple(
            (words(s.system), Cell(f"{p.lm_scale:.4g}", p.lm_scale), count(p.errors), rate(p.wer))
            for s in sweeps
            for p in s.points
        ),
        "These errors were counted on the evaluated set itself: to choose a weight here would be to tune on the test.",
    )
    best = [min(s.points, key=lambda p: p.errors) for s in sweeps]
    said = "; ".join(
        f"{s.system}: lowest {p.wer:.2f} at {p.lm_scale:.4g}, made with {s.own:.4g}"
        for s, p in zip(sweeps, best, strict=True)
    )
    return line_chart(
        "sweep",
        "WER by weight",
        "WER when lm_scale alone is changed, all other weights and the mixture of models as they are; the large mark "
        f"is the scale that was used. {said}.",
        series,
        table,
        x_label="lm_scale; the large mark is the one that was used",
    )


def _perplexities(perplexities: Sequence[Perplexity], styles: Mapping[str, int]) -> Chart:
    series = [
        Series(
            p.system,
            styles[p.system],
            tuple((b.perplexity, b.wer) for b in p.bins),
            ((p.all.perplexity, p.all.wer),),
        )
        for p in perplexities
    ]
    rows = [
        (
            words(p.system),
            Cell("all" if point is p.all else "bin"),
            count(point.utterances),
            Cell(f"{point.perplexity:.1f}", point.perplexity),
            rate(point.wer),
        )
        for p in perplexities
        for point in (p.all, *p.bins)
    ]
    table = Table(
        "perplexity-numbers",
        "Perplexity and WER",
        ("System", "Utterances are", "Number", "Perplexity", "WER %"),
        tuple(rows),
        "Perplexity is that of the hypothesis with the fewest errors (the first of several), which is the same text "
        "for every system: exp(-Σ lm / Σ (words + 1)), lm being the natural log that the system's mixture gives, "
        "unscaled. Words outside the vocabulary are counted, and so is each sentence end.",
    )
    said = "; ".join(f"{p.system}: perplexity {p.all.perplexity:.1f}, WER {p.all.wer:.2f}" for p in perplexities)
    return line_chart(
        "perplexity",
        "Perplexity against WER",
        "Across: perplexity of the hypotheses nearest to the references. Up: WER of each system's answers. Large "
        f"marks are all utterances, small ones equal bins of them from easy to hard. {said}.",
        series,
        table,
        x_label="perplexity of the hypotheses nearest to the references",
        log_x=True,
    )
