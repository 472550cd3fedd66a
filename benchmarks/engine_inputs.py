"""Lists and models for measuring the engine: real lists, real n-grams, networks with random weights."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from models.corpus import sentences, word_counts
from models.kn_training import KneserNeyOptions, train_kneser_ney
from models.nbest import Hypothesis, NBest
from models.ngram import KenLMNgram
from models.normaliser import Normaliser
from models.rnnlm import ElmanLM, ElmanWeights, WordClasses
from models.tuning_command import read_nbest
from models.vocabulary import Vocabulary

EXAMPLE = Path(__file__).parent.parent / "examples" / "ljspeech"
# Splices tried for each hypothesis that is wanted: a list of short texts may not have so many in it.
_ATTEMPTS = 20


class Inputs:
    """What all points of the benchmark are made from.

    lists:  real N-best lists, those of the test set first
    folder: where the n-gram model goes
    """

    def __init__(self, files: Sequence[Path], folder: Path) -> None:
        self.normaliser = Normaliser()
        self.lists: list[NBest] = [nbest for file in files for nbest in read_nbest(file)]
        self._text = list(sentences([EXAMPLE / "ljspeech_text.txt.xz"], self.normaliser))
        self._counts = word_counts(self._text)
        self._folder = folder

    def vocabulary(self, classes: int) -> Vocabulary:
        """The commonest words of the example text, filled up with words that nobody says."""
        real = [word for word, _ in self._counts.most_common(classes - 2)]
        return Vocabulary((*real, *(f"word{number}" for number in range(classes - 2 - len(real)))))

    def ngram(self, vocabulary: Vocabulary) -> KenLMNgram:
        """A 5-gram of the example text. Raises TrainingError where KenLM's programs are not installed."""
        path = self._folder / "ngram.kenlm"
        train_kneser_ney(self._text, vocabulary, path, KneserNeyOptions(discount_fallback=True))
        return KenLMNgram(path, vocabulary)

    def network(self, vocabulary: Vocabulary, hidden: int) -> ElmanLM:
        """A network with weights of the size that training gives; speed does not depend on them."""
        counts = word_counts([vocabulary.words])
        classes = WordClasses.from_counts(vocabulary, counts, 0)
        draw = torch.Generator().manual_seed(1)
        U, W, V = (
            torch.randn(rows, hidden, generator=draw) * spread
            for rows, spread in ((classes.count, 0.5), (hidden, 0.1), (classes.count, 0.2))
        )
        return ElmanLM(ElmanWeights(U, W, V), classes)

    def cut(self, count: int, hypotheses: int) -> list[NBest]:
        """The first lists, each of so many hypotheses."""
        return [sized(nbest, hypotheses) for nbest in self.lists[:count]]


def sized(nbest: NBest, count: int) -> NBest:
    """The first hypotheses of a list; where it has too few, new ones are spliced from the beginning and end of two.

    A recogniser's longer list is made of the same pieces in other combinations, so this keeps how prefixes are shared.
    """
    if len(nbest.hypotheses) >= count:
        return replace(nbest, hypotheses=nbest.hypotheses[:count])
    draw = random.Random(f"{nbest.utterance_id} {count}")
    texts = [h.text.split() for h in nbest.hypotheses]
    known = {h.text: h for h in nbest.hypotheses}
    for _ in range(_ATTEMPTS * count):
        first, second = draw.choices(range(len(texts)), k=2)
        cut = draw.randint(0, min(len(texts[first]), len(texts[second])))
        text = " ".join([*texts[first][:cut], *texts[second][cut:]])
        known.setdefault(text, Hypothesis(text, nbest.hypotheses[first].acoustic, nbest.hypotheses[second].first_pass))
        if len(known) == count:
            break
    return replace(nbest, hypotheses=tuple(known.values()))
