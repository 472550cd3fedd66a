"""Training of the Kneser-Ney n-gram: KenLM's own lmplz and build_binary, run as the programs they are.

Modified Kneser-Ney smoothing: Chen and Goodman 1998; its estimation by lmplz: Heafield et al. 2013.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from models.errors import TrainingError
from models.ngram import UNK_IN_TEXT
from models.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class KneserNeyOptions:
    """How the n-gram is estimated.

    order:             n
    discount_fallback: use lmplz's default discounts where the text is too small to estimate them
    memory:            lmplz's sorting memory, in its own notation, such as 1G
    prune:             per order, counts at or below which n-grams are dropped; empty prunes nothing
    """

    order: int = 5
    discount_fallback: bool = False
    memory: str = "1G"
    prune: tuple[int, ...] = ()


def find_program(name: str) -> str:
    """The path of one of KenLM's programs: beside this Python, else on PATH. Raises TrainingError."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise TrainingError(
            f"KenLM's program {name} is not installed; scripts/build-kenlm.sh builds it from KenLM's own sources"
        )
    return found


def train_kneser_ney(
    corpus: Iterable[Sequence[str]], vocabulary: Vocabulary, output: Path, options: KneserNeyOptions
) -> None:
    """Estimate a modified Kneser-Ney model over the vocabulary and write KenLM's probing binary to `output`.

    Words outside the vocabulary count as <unk>. Raises TrainingError in a user's words, also when the text lacks
    words of the vocabulary: the model would not know them.
    """
    lmplz, build_binary = find_program("lmplz"), find_program("build_binary")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kn-", dir=output.parent) as folder:
        text, arpa, binary = Path(folder, "text"), Path(folder, "arpa"), Path(folder, "binary")
        _write_text(corpus, vocabulary, text)
        command = [lmplz, "-o", str(options.order), "-S", options.memory, "-T", folder]
        command += ["--text", str(text), "--arpa", str(arpa)]
        if options.discount_fallback:
            command.append("--discount_fallback")
        if options.prune:
            command += ["--prune", *map(str, options.prune)]
        _run(command)
        _run([build_binary, "-T", folder, "probing", str(arpa), str(binary)])
        binary.replace(output)


def _write_text(corpus: Iterable[Sequence[str]], vocabulary: Vocabulary, path: Path) -> None:
    known = set(vocabulary.words)
    unseen = set(known)
    with path.open("w", encoding="utf-8", newline="\n") as out:
        for sentence in corpus:
            unseen.difference_update(sentence)
            out.write(" ".join(word if word in known else UNK_IN_TEXT for word in sentence))
            out.write("\n")
    if unseen:
        raise TrainingError(
            f"the text lacks {len(unseen)} words of the bundle's vocabulary, such as {min(unseen)!r}: "
            "train the n-gram on all the text that the vocabulary was built from"
        )


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise TrainingError(_explain(Path(command[0]).name, done.stderr))


def _explain(program: str, output: str) -> str:
    if "BadDiscountException" in output:
        return (
            "the text is too small or too regular to estimate Kneser-Ney discounts; "
            "more text is the cure, --discount-fallback (fixed discounts) the makeshift"
        )
    if "No space left" in output or "ENOSPC" in output:
        return f"{program} ran out of disk space"
    if "allocate" in output or "bad_alloc" in output or "MallocException" in output:
        return f"{program} ran out of memory; a smaller --memory makes it sort on disk"
    lines = [line for line in output.splitlines() if line.strip()]
    return f"{program} failed: {lines[-1].strip() if lines else 'it said nothing'}"
