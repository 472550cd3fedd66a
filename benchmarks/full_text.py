"""The full-text experiment: word error rates on data nobody tuned on, with all the text there is.

    python benchmarks/full_text.py --data FOLDER [--work FOLDER]

FOLDER holds ljspeech_text.txt.xz and standardebooks.txt.xz (6.4 million words) and the N-best lists
lj.dev, lj.test and arctic.a (.nbest.jsonl.gz). All weights are tuned on lj.dev alone; lj.test is the next chapter of
the same book, arctic.a another speaker, text and recording. Trained models are kept in the work folder and used
again; an interrupted training is resumed.
"""

import argparse
import json
import lzma
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from figures import Figure, write

# Per text, the lines trained on and the lines after them that the network is validated on. The text nearest to the
# test set comes last, so that the network reads it last.
LINES = {"standardebooks.txt.xz": (329_000, 600), "ljspeech_text.txt.xz": (12_145, 400)}
# Larger and shorter than recipe fast's defaults: there is seven times the text of Penn Treebank.
NETWORK = {
    "hidden": 400,
    "rare": 5,
    "epochs": 4,
    "rate": 0.04,
    "streams": 32,
    "samples": 800,
    "dropout": 0.1,
    "vector-dropout": 0.05,
    "input-dropout": 0,
    "reset-share": 0.2,
}
TEST_SETS = ("lj.test", "arctic.a")
MIXTURES = {"kn5": "kn5", "rnn": "rnn", "kn5+rnn": "kn5,rnn"}
GOAL_KN5 = 19.9
GOAL_RELATIVE = 4.0


@dataclass(frozen=True)
class Protocol:
    """What the tuning may use of the recogniser's own language model, the state switch, and what is compared."""

    kept: bool
    state: str
    mixtures: tuple[str, ...]

    @property
    def tuning(self) -> str:
        """Where weights tuned this way are kept; the tuning does not depend on the rest."""
        return "kept" if self.kept else "replaced"


PROTOCOLS = {
    "first-pass LM kept": Protocol(kept=True, state="reset", mixtures=tuple(MIXTURES)),
    "first-pass LM replaced": Protocol(kept=False, state="reset", mixtures=tuple(MIXTURES)),
    # The n-gram has no state to carry.
    "first-pass LM kept, state carried": Protocol(kept=True, state="carried", mixtures=("kn5+rnn",)),
}


def nbest(*arguments: object) -> None:
    """Run an `nbest` command; end when it fails."""
    command = [str(Path(sys.executable).parent / "nbest"), *map(str, arguments)]
    print("$", *command[1:], flush=True)
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def split(data: Path, work: Path) -> tuple[list[Path], Path]:
    """Training texts and the validation text."""
    valid: list[str] = []
    train: list[Path] = []
    for name, (trained_on, held_out) in LINES.items():
        lines = lzma.decompress((data / name).read_bytes()).decode().splitlines(keepends=True)
        train.append(work / f"train.{name.removesuffix('.xz')}")
        train[-1].write_text("".join(lines[:trained_on]), encoding="utf-8")
        valid = lines[trained_on : trained_on + held_out] + valid
    (work / "valid.txt").write_text("".join(valid), encoding="utf-8")
    return train, work / "valid.txt"


def train(data: Path, work: Path) -> Path:
    """Train what the bundle lacks."""
    bundle = work / "bundle"
    manifest = bundle / "bundle.json"
    have = json.loads(manifest.read_text())["models"] if manifest.exists() else {}
    texts, valid = split(data, work)
    options = [word for text in texts for word in ("--text", text)]
    if "kn5" not in have:
        nbest("train", "kn", bundle, *options)
    if "rnn" not in have:
        settings = [word for name, value in NETWORK.items() for word in (f"--{name}", value)]
        resume = ["--resume"] if (bundle / ".training-rnn" / "checkpoint.safetensors").exists() else []
        nbest("train", "rnn", bundle, *options, "--valid", valid, *settings, *resume)
    return bundle


def tuned(data: Path, work: Path, bundle: Path, protocol: Protocol, mixture: str) -> Path:
    """Weights of a mixture, tuned on lj.dev."""
    weights = work / f"weights.{mixture}.{protocol.tuning}.json"
    if not weights.exists():
        without = [] if protocol.kept else ["--without", "first_pass_scale"]
        development = data / "lj.dev.nbest.jsonl.gz"
        nbest("tune", bundle, development, "--models", MIXTURES[mixture], "--output", weights, *without)
    return weights


def rescore(data: Path, work: Path, bundle: Path, name: str) -> dict[str, dict[str, float]]:
    """Rescore and evaluate the test sets under one protocol. Returns set -> system -> WER in per cent."""
    protocol = PROTOCOLS[name]
    folder = work / name.replace(" ", "-").replace(",", "")
    folder.mkdir(exist_ok=True)
    rates = {}
    for test_set in TEST_SETS:
        results = []
        for mixture in protocol.mixtures:
            results.append(folder / f"{test_set}.{mixture}.jsonl")
            options = ["--options", tuned(data, work, bundle, protocol, mixture), "--state", protocol.state]
            lists = data / f"{test_set}.nbest.jsonl.gz"
            nbest("rescore", lists, "--bundle", bundle, *options, "--output", results[-1])
        report = folder / f"{test_set}.json"
        nbest("evaluate", *results, "--set-name", test_set, "--json", report)
        systems = json.loads(report.read_text())["systems"]
        names = ["first pass", *protocol.mixtures, "oracle"]
        rates[test_set] = {name: system["wer_percent"] for name, system in zip(names, systems, strict=True)}
    return rates


def figures(rates: dict[str, dict[str, dict[str, float]]]) -> list[Figure]:
    """Every rate, and how far the mixture lies below KN5."""
    out = []
    for protocol, sets in rates.items():
        for test_set, systems in sets.items():
            for system, rate in systems.items():
                # A goal for what the tuning gives when nothing is held back from it.
                goal = f"<= {GOAL_KN5}" if PROTOCOLS[protocol].kept and (test_set, system) == ("lj.test", "kn5") else ""
                out.append(Figure(f"{test_set}, {protocol}: WER of {system}", rate, "%", goal))
            if "kn5" not in systems:
                continue
            relative = 100 * (1 - systems["kn5+rnn"] / systems["kn5"])
            label = f"{test_set}, {protocol}: kn5+rnn below kn5"
            out.append(Figure(label, relative, "% relative", f">= {GOAL_RELATIVE:g}"))
    return out


def main() -> None:
    """Run the experiment."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the texts and N-best lists")
    parser.add_argument("--work", type=Path, default=Path("demo/full-text"), help="where models are kept")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    bundle = train(arguments.data, arguments.work)
    rates = {name: rescore(arguments.data, arguments.work, bundle, name) for name in PROTOCOLS}
    print(f"written to {write('results', figures(rates), 'make results DATA=DIR')}")


if __name__ == "__main__":
    main()
