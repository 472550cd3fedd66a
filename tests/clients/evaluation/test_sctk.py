"""Held against NIST's sclite and sc_stats (Debian's package sctk; `make test-sctk` installs it).

sclite weighs a substitution 4, a deletion or insertion 3, where the word error rate weighs all alike: where an
utterance can be aligned in several ways, it may choose one with more errors, and split equal totals differently.
"""

import random
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from clients.cli import main
from clients.evaluation.alignment import Alignment
from clients.evaluation.counts import ErrorCounts
from clients.evaluation.evaluator import Choices, Evaluator
from clients.evaluation.exports import Exporter
from clients.evaluation.kinds import ExportFormat
from clients.evaluation.matched_pairs import matched_pairs
from clients.evaluation.result import Evaluation
from clients.evaluation.summary import summarise
from clients.evaluation.utterance import Utterance

LISTS = Path(__file__).parents[3] / "examples" / "ljspeech" / "lj.test.nbest.jsonl.gz"
FIELDS = ("Ref. words", "Percent Substitution", "Percent Deletions", "Percent Insertions", "sentences", "with errors")

pytestmark = [
    pytest.mark.sctk,
    pytest.mark.skipif(shutil.which("sctk") is None, reason="sctk is not installed: make test-sctk does that"),
]

Said = list[str]
Pair = tuple[Said, Said]


def sctk(folder: Path, *arguments: str, given: bytes = b"") -> str:
    program = shutil.which("sctk")
    assert program is not None
    done = subprocess.run([program, *arguments], cwd=folder, input=given, capture_output=True, check=True)
    return done.stdout.decode("utf-8", errors="replace")


def sclite(folder: Path, system: str, report: str) -> str:
    files = ("-r", "reference.trn", "trn", "-h", f"{system}.trn", "trn", system)
    return sctk(folder, "sclite", "-s", "-e", "utf-8", "-i", "spu_id", *files, "-o", report, "stdout")


def totals(folder: Path, system: str) -> ErrorCounts:
    """sclite's, from its detailed report."""
    report = sclite(folder, system, "dtl")
    found = [re.search(rf"^ *{re.escape(field)} .*?\(? *(\d+)\)?$", report, re.MULTILINE) for field in FIELDS]
    return ErrorCounts(*(int(match[1]) for match in found if match))


def alignments(folder: Path, system: str) -> dict[str, Alignment]:
    """sclite's own alignments, by id."""
    out = {}
    for identifier, body in re.findall(
        r'<PATH id="\((.*?)\)"[^>]*>\n(.*?)\n</PATH>', sclite(folder, system, "sgml"), re.DOTALL
    ):
        columns = re.findall(r'([CSDI]),(?:"([^"]*)")?,(?:"([^"]*)")?', body)
        reference, hypothesis = (tuple(column[side] for column in columns if column[side]) for side in (1, 2))
        out[identifier] = Alignment(reference, hypothesis, "".join(letter for letter, _, _ in columns))
    return out


@dataclass(frozen=True)
class Statistics:
    segments: int
    mean: float
    z: float


def statistics(folder: Path, one: str, other: str) -> Statistics:
    """sc_stats' matched-pairs test, of `one` less `other`."""
    both = "".join(sclite(folder, system, "sgml") for system in (one, other))
    sctk(folder, "sc_stats", "-p", "-t", "mapsswe", "-v", "-n", "tested", "-O", ".", given=both.encode())
    report = (folder / "tested.stats.mapsswe").read_bytes().decode("utf-8", errors="replace")
    line = next(line for line in report.splitlines() if line.startswith("MTCH_PR_RESULTS"))
    numbers = [re.search(rf"\({name}: *([-\d.]+)\)", line) for name in ("# segs", "mean", "Z Stat")]
    segments, mean, z = (match[1] for match in numbers if match)
    return Statistics(int(segments), float(mean), float(z))


def exported(folder: Path, rows: list[tuple[Said, Said, Said]]) -> Evaluation:
    """Utterances of a first pass and another system, s, whose transcripts are written for sclite."""
    with Exporter(folder, ["first pass", "s", "oracle"], [ExportFormat.TRN]) as sink:
        evaluator = Evaluator(Choices(resamples=100), sink)
        evaluator.add_system("s")
        for number, (reference, first, second) in enumerate(rows):
            evaluator.add(Utterance(f"spk{number % 3}-u{number}", reference, [first, second], [[1, 0]]))
        return summarise(evaluator, set_name="test", normalised=True)


def with_one_reading(rng: random.Random, reference: Said) -> Said:
    """Errors with two right words at least on both sides, and no word twice: there is one way to align that."""
    out: Said = []
    since = 1
    for place, word in enumerate(reference):
        since += 1
        kind = rng.choice("CCCSDI") if since > 2 and place < len(reference) - 2 else "C"
        since = 0 if kind != "C" else since
        out += {"C": [word], "S": [f"{word}!"], "D": [], "I": [f"{word}+", word]}[kind]
    return out


def with_many_readings(rng: random.Random, reference: Said) -> Said:
    words = [word for word in reference if rng.random() > 0.2]
    for _ in range(rng.randrange(4)):
        words.insert(rng.randrange(len(words) + 1), rng.choice("abcd"))
    return words


def many(
    change: Callable[[random.Random, Said], Said], alphabet: str = "", seed: int = 1
) -> list[tuple[Said, Said, Said]]:
    """References of two to twenty words: of the alphabet, or all different."""
    rng = random.Random(seed)
    rows = []
    for _ in range(300):
        length = rng.randint(2, 20)
        reference = [rng.choice(alphabet) if alphabet else f"w{place}" for place in range(length)]
        rows.append((reference, change(rng, reference), change(rng, reference)))
    return rows


def test_where_there_is_one_alignment_all_counts_are_sclites(tmp_path: Path) -> None:
    result = exported(tmp_path, many(with_one_reading))
    for system, name in zip(result.systems, ("first-pass", "s"), strict=False):
        assert totals(tmp_path, name) == system.counts
        assert min(system.counts.substitutions, system.counts.deletions, system.counts.insertions) > 50


def test_where_there_are_many_alignments_ours_has_the_fewest_errors_and_sclites_the_least_cost(tmp_path: Path) -> None:
    result = exported(tmp_path, many(with_many_readings, "abcd"))
    for system, name in zip(result.systems, ("first-pass", "s"), strict=False):
        ours, theirs = system.counts, totals(tmp_path, name)
        assert (theirs.words, theirs.utterances, theirs.wrong) == (ours.words, ours.utterances, ours.wrong)
        assert theirs.hypothesis_words == ours.hypothesis_words
        assert theirs.errors >= ours.errors
        assert cost(theirs) <= cost(ours)


def cost(counts: ErrorCounts) -> int:
    return 4 * counts.substitutions + 3 * counts.deletions + 3 * counts.insertions


def test_on_real_lists_sclite_counts_the_same_words_and_sentences_and_no_fewer_errors(tmp_path: Path) -> None:
    arguments = [str(LISTS), "--resamples", "100", "--lowercase", "--strip-punctuation", "--export-format", "trn"]
    assert main(["evaluate", *arguments, "--export", str(tmp_path), "--json", str(tmp_path / "report.json")]) == 0
    report = (tmp_path / "report.json").read_text(encoding="utf-8")
    kaldi = re.findall(r"%WER [\d.]+ \[ (\d+) / (\d+), (\d+) ins, (\d+) del, (\d+) sub \]", report)
    sentences = re.findall(r"%SER [\d.]+ \[ (\d+) / (\d+) \]", report)
    for name, counted, wrong in zip(("first-pass", "oracle"), kaldi, sentences, strict=True):
        theirs = totals(tmp_path, name)
        errors, words, insertions, deletions, _ = map(int, counted)
        assert (theirs.words, theirs.wrong, theirs.utterances) == (words, int(wrong[0]), int(wrong[1]))
        assert theirs.deletions - theirs.insertions == deletions - insertions
        assert errors <= theirs.errors <= 1.01 * errors


def test_the_matched_pairs_test_is_that_of_sc_stats(tmp_path: Path) -> None:
    result = exported(tmp_path, many(with_one_reading))
    theirs, (comparison,) = statistics(tmp_path, "s", "first-pass"), result.comparisons
    ours = comparison.matched_pairs
    assert ours.z is not None
    assert ours.segments == theirs.segments > 300
    assert (ours.mean, ours.z) == pytest.approx((theirs.mean, theirs.z), abs=5.1e-4)


def test_given_sclites_alignments_the_segments_are_those_of_sc_stats(tmp_path: Path) -> None:
    exported(tmp_path, many(with_many_readings, "abcd", seed=2))
    one, other = (alignments(tmp_path, system) for system in ("s", "first-pass"))
    words = np.array([len(alignment.reference) for alignment in one.values()])
    first, second = (
        np.array([number for identifier in one for number in side[identifier].slots()], np.int64)
        for side in (one, other)
    )
    ours, theirs = matched_pairs(first, second, words), statistics(tmp_path, "s", "first-pass")
    assert ours.z is not None
    assert ours.segments == theirs.segments > 300
    assert (ours.mean, ours.z) == pytest.approx((theirs.mean, theirs.z), abs=5.1e-4)
