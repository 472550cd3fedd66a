"""The demo: train on real text, serve, rescore real N-best lists over HTTP, and see the word error rate fall.

    python examples/ljspeech/demo.py [--train-only] [--output FOLDER]

It runs nothing but `nbest` commands, and prints each before running it. What an earlier run trained and tuned is
used again; delete the folder to begin anew.
"""

import argparse
import contextlib
import json
import lzma
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

HERE = Path(__file__).parent
TEXT = [HERE / "ljspeech_text.txt.xz", HERE / "standardebooks_60k.txt.xz"]
DEV = HERE / "lj.dev.nbest.jsonl.gz"
TEST = HERE / "lj.test.nbest.jsonl.gz"
ALONE = ("kn5", "rnn")
BOTH = "kn5+rnn"
VALIDATION_LINES = 400
SENTENCES_TO_SHOW = 3
SECONDS_TO_START = 120


def nbest(*arguments: object) -> list[str]:
    """The command line of an `nbest` command of the Python that runs this."""
    return [str(Path(sys.executable).parent / "nbest"), *map(str, arguments)]


def show(command: list[str]) -> None:
    """Print a command as one would type it."""
    print(f"\n$ nbest {shlex.join(shorten(word) for word in command[1:])}", flush=True)


def shorten(word: str) -> str:
    """A path below the working folder as seen from there."""
    path = Path(word)
    return str(path.relative_to(Path.cwd())) if path.is_absolute() and path.is_relative_to(Path.cwd()) else word


def run(*arguments: object) -> None:
    """Show and run an `nbest` command; end the demo when it fails."""
    command = nbest(*arguments)
    show(command)
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def split_text(folder: Path) -> tuple[list[Path], Path]:
    """Set the last lines of the LJ Speech text aside to validate the network on."""
    lines = lzma.decompress(TEXT[0].read_bytes()).decode().splitlines(keepends=True)
    train, valid = folder / "rnn-train.txt", folder / "rnn-valid.txt"
    train.write_text("".join(lines[:-VALIDATION_LINES]), encoding="utf-8")
    valid.write_text("".join(lines[-VALIDATION_LINES:]), encoding="utf-8")
    # The text nearest to the test set comes last, so that it is read last.
    return [TEXT[1], train], valid


def trained(bundle: Path) -> set[str]:
    """The models that the bundle holds already."""
    manifest = bundle / "bundle.json"
    return set(json.loads(manifest.read_text())["models"]) if manifest.exists() else set()


def train(folder: Path, bundle: Path) -> None:
    """Train both models, unless an earlier run has."""
    if "kn5" not in trained(bundle):
        run("train", "kn", bundle, *(word for text in TEXT for word in ("--text", text)))
    if "rnn" not in trained(bundle):
        text, valid = split_text(folder)
        arguments = [word for path in text for word in ("--text", path)]
        resume = ["--resume"] if (bundle / ".training-rnn" / "checkpoint.safetensors").exists() else []
        run("train", "rnn", bundle, *arguments, "--valid", valid, "--epochs", 3, *resume)


def tune(folder: Path, bundle: Path) -> dict[str, list[str]]:
    """Tune each model alone, then both, whose weights become the bundle's own. Returns options for `nbest rescore`."""
    files = {name: folder / f"weights.{name}.json" for name in ALONE}
    for name, file in files.items():
        if not file.exists():
            run("tune", bundle, DEV, "--models", name, "--output", file)
    if json.loads((bundle / "bundle.json").read_text())["weights"] is None:
        run("tune", bundle, DEV)
    return {**{name: ["--options", str(file)] for name, file in files.items()}, BOTH: []}


@contextlib.contextmanager
def serving(bundle: Path, log: Path) -> Iterator[str]:
    """Serve the bundle on a free port of this machine; yields the address once the service is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = nbest("serve", bundle, "--port", port)
    show(command)
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            wait_until_ready(server, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(30)


def wait_until_ready(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Return once the service has scored a sentence."""
    begun = time.monotonic()
    while time.monotonic() - begun < SECONDS_TO_START:
        if server.poll() is not None:
            sys.exit(f"the service did not start; it said:\n{log.read_text()}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health/ready", timeout=5).is_success:
                print(f"ready at {url} after {time.monotonic() - begun:.1f} s")
                return
        time.sleep(0.1)
    sys.exit(f"the service was not ready after {SECONDS_TO_START} s; see {log}")


def put_right(results: Path) -> list[tuple[str, str, str]]:
    """(reference, first pass, rescored) of sentences that rescoring put right, the longest first."""
    found = []
    for line in results.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        first = next(entry for entry in result["ranking"] if entry["index"] == 0)
        best = result["ranking"][0]
        reference = result["scored_reference"]
        if best["scored_text"] == reference != first["scored_text"]:
            found.append((reference, first["scored_text"], best["scored_text"]))
    return sorted(found, key=lambda entry: -len(entry[0]))


def mark(text: str, other: str) -> str:
    """The text with the words that the other lacks in capitals."""
    known = set(other.split())
    return " ".join(word if word in known else word.upper() for word in text.split())


def summarise(folder: Path, results: dict[str, Path], report: Path) -> None:
    """Print the table and three sentences, and write results.json."""
    systems = {entry["name"]: entry["wer_percent"] for entry in json.loads(report.read_text())["systems"]}
    names = {"first pass": "first_pass", **{path.stem: name for name, path in results.items()}, "oracle": "oracle"}
    table = {key: round(systems[name], 2) for name, key in names.items()}
    print("\nSentences that rescoring put right (differences in capitals):")
    for reference, first, best in put_right(results[BOTH])[:SENTENCES_TO_SHOW]:
        print(f"  first pass  {mark(first, reference)}\n  rescored    {mark(best, first)}\n")
    print("lj.test, 199 utterances, weights tuned on lj.dev; word error rate in per cent")
    for name, value in table.items():
        print(f"  {name:12}{value:6.2f}")
    output = folder / "results.json"
    output.write_text(json.dumps({"lj.test": table}, indent=2) + "\n")
    print(f"\nwritten to {shorten(str(output.absolute()))}")


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo"), help="where everything is written")
    parser.add_argument("--train-only", action="store_true", help="make the bundle in the output folder, then stop")
    arguments = parser.parse_args()
    folder: Path = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    bundle = folder if arguments.train_only else folder / "bundle"
    begun = time.monotonic()
    train(folder, bundle)
    weights = tune(folder, bundle)
    if arguments.train_only:
        return
    results = {}
    with serving(bundle, folder / "serve.log") as url:
        for name, options in weights.items():
            results[name] = folder / f"lj.test.{name}.jsonl"
            run("rescore", TEST, "--url", url, *options, "--output", results[name])
    report = folder / "evaluation.json"
    run("evaluate", *results.values(), "--set-name", "lj.test", "--json", report)
    summarise(folder, results, report)
    print(f"{time.monotonic() - begun:.0f} s in all")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
