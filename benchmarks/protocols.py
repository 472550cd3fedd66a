"""Does a session help, and by what: its state, its learning, or the order? Eight protocols on two test sets.

    python benchmarks/protocols.py --data FOLDER [--work FOLDER] [--shuffles K]

FOLDER and the models are those of full_text.py, which trains what is missing. lj.test is consecutive sentences of one
chapter, arctic.a isolated ones. All choices are made on lj.dev: the weights of KN5 + RNN are those of full_text.py with
the recogniser's trigram kept, so the static cells are its rows; learning rate and gradient reach are chosen by the
mixture's perplexity on the static winners, each word scored before it is learnt, in a session that carries its state.
No reference takes part in that second choice.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from figures import Figure, write
from full_text import PROTOCOLS, TEST_SETS, nbest, train, tuned

from models.bundle import Bundle, load_bundle, weights_from_json
from models.errors import RescoringError
from models.learning import LearningOptions
from models.score import Weights
from models.session import SessionModel, SessionOptions
from models.tuning_command import read_nbest

TUNING = PROTOCOLS["first-pass LM kept"]
MIXTURE = "kn5+rnn"
RATES = (0.025, 0.05, 0.1, 0.2, 0.4)
REACHES = (1, 3, 5)
DOCS = Path(__file__).parent.parent / "docs"
_LISTS_A_BATCH = 16


def lists(data: Path, name: str) -> Path:
    """The file of a set."""
    return data / f"{name}.nbest.jsonl.gz"


def static_winners(bundle: Bundle, weights: Weights, path: Path) -> list[Sequence[int]]:
    """Word ids of each list's winner without any session: the text that learning options are judged on."""
    rescorer = bundle.rescorer
    prepared = [rescorer.prepare(entry) for entry in read_nbest(path)]
    winners: list[Sequence[int]] = []
    for first in range(0, len(prepared), _LISTS_A_BATCH):
        batch = prepared[first : first + _LISTS_A_BATCH]
        for entry, result in zip(batch, rescorer.rescore(batch, [weights] * len(batch)), strict=True):
            if isinstance(result, RescoringError):
                raise result
            winners.append(entry.ids[result.best.index])
    return winners


def choose(data: Path, bundle_folder: Path, weights_file: Path) -> dict[LearningOptions, float]:
    """The mixture's perplexity on lj.dev's winners under every learning option, the best first."""
    bundle = load_bundle(bundle_folder, device="auto")
    weights = weights_from_json(json.loads(weights_file.read_text()))
    texts = static_winners(bundle, weights, lists(data, "lj.dev"))
    found = {}
    for learning in (LearningOptions(rate, tau) for tau in REACHES for rate in RATES):
        model = SessionModel(bundle.rescorer, weights, SessionOptions(learning=learning))
        state = model.fresh()
        for words in texts:
            state = model.accept(state, words, confirmed=False)
        perplexities = state.tallies["mixture"].perplexities()
        assert perplexities is not None
        found[learning] = perplexities[0]
        print(f"lj.dev: rate {learning.rate:g}, tau {learning.tau}: perplexity {found[learning]:.2f}", flush=True)
    best = min(found, key=found.__getitem__)
    if best.rate in (RATES[0], RATES[-1]) or best.tau == REACHES[-1]:
        print(f"note: rate {best.rate:g}, tau {best.tau} lies at the edge of the grid; the best may lie beyond")
    return dict(sorted(found.items(), key=lambda item: item[1]))


def run(
    data: Path, folder: Path, bundle: Path, weights: Path, learning: LearningOptions, shuffles: int
) -> list[Figure]:
    """Run `nbest protocols` on the test sets."""
    out = []
    for test_set in TEST_SETS:
        report = folder / f"{test_set}.json"
        options = ["--options", weights, "--rate", learning.rate, "--tau", learning.tau, "--shuffles", shuffles]
        files = ["--json", report, "--svg", DOCS / f"protocols.{test_set}.svg"]
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
    parser.add_argument("--data", type=Path, required=True, help="folder of the texts and N-best lists")
    parser.add_argument("--work", type=Path, default=Path("demo/full-text"), help="where models are kept")
    parser.add_argument("--shuffles", type=int, default=5, help="shuffled orders a set")
    arguments = parser.parse_args()
    folder = arguments.work / "protocols"
    folder.mkdir(parents=True, exist_ok=True)
    bundle = train(arguments.data, arguments.work)
    weights = tuned(arguments.data, arguments.work, bundle, TUNING, MIXTURE)
    tried = choose(arguments.data, bundle, weights)
    learning = next(iter(tried))
    chosen = [
        Figure(f"lj.dev winners, rate {o.rate:g}, tau {o.tau}: perplexity, mixture", value, "perplexity")
        for o, value in tried.items()
    ]
    found = run(arguments.data, folder, bundle, weights, learning, arguments.shuffles)
    print(f"written to {write('protocols', chosen + found, 'make protocols DATA=DIR')}")


if __name__ == "__main__":
    main()
