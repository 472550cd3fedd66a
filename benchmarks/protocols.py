"""Does a session help, and by what: its state, its learning, or the order? Eight protocols on two test sets.

    python benchmarks/protocols.py --data FOLDER [--bundle BUNDLE]

FOLDER holds the N-best lists lj.dev, lj.test and arctic.a (.nbest.jsonl.gz); the bundle is the demo's, which is trained
where it is missing. lj.test is consecutive sentences of one chapter, arctic.a isolated ones. All choices are made on
lj.dev: the weights of KN5 + RNN are the bundle's own, so the static cells are the demo's; learning rate and gradient
reach are chosen by the mixture's perplexity on the static winners, each word scored before it is learnt, in a session
that carries its state. No reference takes part in that second choice.

Then static and dynamic sessions are compared once more, each with weights tuned on lj.dev in a session of its kind, and
beside them one that learns the references: what learning could do if the accepted texts held no errors.

What an earlier run left in the folder `protocols` beside the bundle is used again; delete it to begin anew.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from figures import Figure, write
from full_text import TEST_SETS, nbest

from models.bundle import load_bundle
from models.evaluation_set import EvaluationSet
from models.learning import LearningOptions
from models.learning_search import RATES, FoundLearning, search_learning
from models.session_scoring import accepted_texts
from models.tuning import score_lists
from models.tuning_command import read_nbest

DEMO = Path(__file__).parent.parent / "examples" / "ljspeech" / "demo.py"
REACHES = (1, 3)
# arctic.a is three times as large, and its sentences stand in no order that could be lost.
SHUFFLES = {"lj.test": 3, "arctic.a": 1}
DOCS = Path(__file__).parent.parent / "docs"


def lists(data: Path, name: str) -> Path:
    """The file of a set."""
    return data / f"{name}.nbest.jsonl.gz"


def chosen(data: Path, folder: Path, bundle: Path) -> FoundLearning:
    """What `choose` finds, kept in a file."""
    path = folder / "learning.json"
    if not path.exists():
        found = choose(data, bundle)
        tried = [[option.rate, option.tau, value] for option, value in found.perplexities.items()]
        path.write_text(json.dumps({"static": found.static, "tried": tried}))
    document = json.loads(path.read_text())
    perplexities = {LearningOptions(rate, tau): value for rate, tau, value in document["tried"]}
    return FoundLearning(min(perplexities, key=perplexities.__getitem__), perplexities, document["static"])


def choose(data: Path, bundle_folder: Path) -> FoundLearning:
    """The mixture's perplexity on lj.dev's winners under every learning option, and the best of them."""
    bundle = load_bundle(bundle_folder, device="auto")
    rescorer, weights = bundle.rescorer, bundle.weights
    lists_with_references = read_nbest(lists(data, "lj.dev"))
    development = EvaluationSet.prepare(rescorer, lists_with_references)
    scored = score_lists(rescorer, lists_with_references, list(weights.interpolation))
    found = search_learning(
        rescorer,
        weights,
        accepted_texts(scored, weights, development),
        reaches=REACHES,
        report=lambda o, value: print(f"lj.dev: rate {o.rate:g}, tau {o.tau}: perplexity {value:.2f}", flush=True),
    )
    if found.best.rate in (RATES[0], RATES[-1]) or found.best.tau == REACHES[-1]:
        print(f"note: rate {found.best.rate:g}, tau {found.best.tau} lies at the edge of the grid")
    return found


def tuned_in_sessions(
    data: Path, folder: Path, bundle: Path, learning: LearningOptions
) -> dict[str, tuple[Path, list[object]]]:
    """Session -> weights tuned on lj.dev in just such a session, and the options that make one."""
    learns: list[object] = ["--dynamic", "--rate", learning.rate, "--tau", learning.tau]
    tuned_as: dict[str, list[object]] = {"static": [], "dynamic": learns}
    weights = {name: folder / f"weights.{name}.json" for name in tuned_as}
    for name, switches in tuned_as.items():
        options = ["--session-per", "file", "--output", weights[name]]
        if not weights[name].exists():
            nbest("tune", bundle, lists(data, "lj.dev"), *options, *switches)
    return {
        "static": (weights["static"], []),
        "dynamic": (weights["dynamic"], learns),
        "dynamic, learning the references": (weights["dynamic"], [*learns, "--learn-from", "confirmed"]),
    }


def compare(data: Path, folder: Path, bundle: Path, sessions: dict[str, tuple[Path, list[object]]]) -> list[Figure]:
    """WER of each session on the test sets, each with the weights tuned for it, and against the first of them."""
    out = []
    for test_set in TEST_SETS:
        results = []
        for name, (weights, switches) in sessions.items():
            results.append(folder / f"{test_set}.{name.replace(', ', '-').replace(' ', '-')}.jsonl")
            options = ["--options", weights, "--session-per", "file", *switches, "--output", results[-1]]
            if not results[-1].exists():
                nbest("rescore", lists(data, test_set), "--bundle", bundle, *options)
        report = folder / f"{test_set}.tuned.json"
        nbest("evaluate", *results, "--set-name", test_set, "--json", report)
        document = json.loads(report.read_text())
        systems = dict(zip(sessions, document["systems"][1:-1], strict=True))
        first = next(iter(systems.values()))["name"]
        for name, system in systems.items():
            label = f"{test_set}, each with weights tuned in its own session: {name}"
            out.append(Figure(f"{label}: WER", system["wer_percent"], "%"))
            for entry in document["comparisons"]:
                if (entry["system"], entry["against"]) == (system["name"], first):
                    (low, high), goal = entry["interval_percent"], "< 0" if test_set == "lj.test" else ""
                    out += [
                        Figure(f"{label}: WER less that of static", entry["points_percent"], "points", goal),
                        Figure(f"{label}: that difference, low end of the 95 % interval", low, "points"),
                        Figure(f"{label}: that difference, high end of the 95 % interval", high, "points"),
                        Figure(f"{label}: that difference, p", entry["p_value"], ""),
                    ]
    return out


def run(data: Path, folder: Path, bundle: Path, learning: LearningOptions) -> list[Figure]:
    """Run `nbest protocols` on the test sets."""
    out = []
    for test_set in TEST_SETS:
        report = folder / f"{test_set}.json"
        options = ["--rate", learning.rate, "--tau", learning.tau, "--shuffles", SHUFFLES[test_set]]
        files = ["--json", report, "--svg", DOCS / f"protocols.{test_set}.svg"]
        if not report.exists():
            nbest("protocols", bundle, lists(data, test_set), *options, *files)
        out += figures(test_set, json.loads(report.read_text()))
    return out


def figures(test_set: str, document: Mapping[str, Any]) -> list[Figure]:
    """What the eight cells of a set gave."""
    out = []
    for cell in document["cells"]:
        label, wer = f"{test_set}, {cell['name']}", cell["wer_percent"]
        goal = "< 0" if (test_set, cell["name"]) == ("lj.test", "original, carried, dynamic") else ""
        (low, high), (least, most) = wer["interval"], wer["difference_interval"]
        out += [
            Figure(f"{label}: WER", wer["value"], "%"),
            Figure(f"{label}: WER, low end of the 95 % interval", low, "%"),
            Figure(f"{label}: WER, high end of the 95 % interval", high, "%"),
            Figure(f"{label}: WER less that of original, reset, static", wer["difference"], "points", goal),
            Figure(f"{label}: that difference, low end of the 95 % interval", least, "points"),
            Figure(f"{label}: that difference, high end of the 95 % interval", most, "points"),
            Figure(f"{label}: that difference, p", wer["p_value"], ""),
        ]
        if len(wer["by_pass"]) > 1:
            out.append(Figure(f"{label}: WER of the best order", min(wer["by_pass"]), "%"))
            out.append(Figure(f"{label}: WER of the worst order", max(wer["by_pass"]), "%"))
        for source, measure in cell["perplexity"].items():
            out.append(Figure(f"{label}: perplexity of the references, {source}", measure["value"], "perplexity"))
        out.append(Figure(f"{label}: updates a pass", cell["updates"], "words"))
        out.append(Figure(f"{label}: lessons undone a pass", cell["undone"], "utterances"))
        out.append(Figure(f"{label}: seconds a pass", cell["seconds"], "s"))
    return out


def main() -> None:
    """Run the experiment."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the N-best lists")
    parser.add_argument("--bundle", type=Path, default=Path("demo/bundle"), help="the demo's bundle, or one like it")
    arguments = parser.parse_args()
    bundle = arguments.bundle
    subprocess.run([sys.executable, DEMO, "--train-only", "--output", bundle], check=True)
    folder = bundle.parent / "protocols"
    folder.mkdir(exist_ok=True)
    found = chosen(arguments.data, folder, bundle)
    tried = [Figure("lj.dev winners, static: perplexity, mixture", found.static, "perplexity")]
    tried += [
        Figure(f"lj.dev winners, rate {o.rate:g}, tau {o.tau}: perplexity, mixture", value, "perplexity")
        for o, value in sorted(found.perplexities.items(), key=lambda item: item[1])
    ]
    own = compare(arguments.data, folder, bundle, tuned_in_sessions(arguments.data, folder, bundle, found.best))
    cells = run(arguments.data, folder, bundle, found.best)
    print(f"written to {write('protocols', tried + own + cells, 'make protocols DATA=DIR')}")


if __name__ == "__main__":
    main()
