"""The training text of a recurrent network: one stream of classes, a sentence boundary after each sentence."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.rnnlm import EOS_CLASS, WordClasses
from models.vocabulary import EOS_ID, Vocabulary


@dataclass(frozen=True, slots=True)
class ClassStream:
    """Running text as the network reads it.

    targets: (tokens,) the class to predict at each position; the sentence boundary is EOS_CLASS
    """

    targets: Tensor

    @classmethod
    def from_sentences(
        cls, sentences: Sequence[Sequence[str]], vocabulary: Vocabulary, classes: WordClasses
    ) -> "ClassStream":
        """Lay sentences end to end, each followed by its boundary."""
        ids: list[int] = []
        for sentence in sentences:
            ids.extend(vocabulary.ids(sentence))
            ids.append(EOS_ID)
        return cls(torch.from_numpy(classes.of_event[np.asarray(ids, np.int64)]))

    @property
    def inputs(self) -> Tensor:
        """(tokens,) the class read before each target: the text one step late, a boundary first."""
        return torch.cat([torch.tensor([EOS_CLASS]), self.targets[:-1]])

    @property
    def sha256(self) -> str:
        """A hash of the stream, by which a resumed training knows its text."""
        return hashlib.sha256(self.targets.numpy().tobytes()).hexdigest()

    def __len__(self) -> int:
        return len(self.targets)
