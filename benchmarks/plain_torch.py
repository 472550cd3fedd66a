"""What the engine is measured against: the same network as one would first write it in torch.

Hypotheses are taken 256 at a time and padded to the longest of them. The recurrent layer runs over the columns of the
batch, one product brings all logits, log_softmax normalises them, and gather picks the wanted words. Prefixes that
hypotheses share are computed again for each. `packed` gives the output layer only the positions that hold a word, and
batches hypotheses of like length, which is the best one can do without looking at the words.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from models.rnnlm import EOS_CLASS, RARE_CLASS, ElmanLM

BATCH = 256
# The logits of a batch are stored whole, so vocabularies above this one make the batch smaller.
_CLASSES_OF_A_WHOLE_BATCH = 10_000


class PlainElman:
    """A network, scored in padded batches.

    packed: see the head of this file
    """

    def __init__(self, model: ElmanLM, *, packed: bool) -> None:
        self._model = model
        self._packed = packed
        self._batch = max(BATCH * _CLASSES_OF_A_WHOLE_BATCH // max(model.classes.count, _CLASSES_OF_A_WHOLE_BATCH), 8)
        self._ln_rare = float(np.log(model.classes.rare_members))

    @torch.inference_mode()
    def score(self, sentences: Sequence[Sequence[int]]) -> Tensor:
        """(sentences,) ln P of each sentence of word ids."""
        order = list(range(len(sentences)))
        if self._packed:
            order.sort(key=lambda number: len(sentences[number]))
        out = torch.empty(len(sentences))
        for first in range(0, len(order), self._batch):
            numbers = order[first : first + self._batch]
            out[numbers] = self._score([sentences[number] for number in numbers])
        return out

    def _score(self, sentences: list[Sequence[int]]) -> Tensor:
        lengths = torch.tensor([len(sentence) + 1 for sentence in sentences])
        B, T = len(sentences), int(lengths.max())
        targets = torch.full((B, T), EOS_CLASS)
        for row, sentence in zip(targets, sentences, strict=True):
            row[: len(sentence)] = torch.from_numpy(self._model.classes.of_event[np.asarray(sentence, np.int64)])
        inputs = torch.cat([torch.full((B, 1), EOS_CLASS), targets[:, :-1]], dim=1)
        within = torch.arange(T) < lengths[:, None]

        U, W, V = self._model.weights.named().values()
        state = torch.full((B, self._model.hidden_size), self._model.initial_state)
        states = []
        for column in inputs.T:
            state = torch.sigmoid(U[column] + state @ W.T)
            states.append(state)
        hidden = torch.stack(states, dim=1)  # (B, T, H)
        log_probs = torch.zeros(B, T)
        if self._packed:
            scores = torch.log_softmax(hidden[within] @ V.T, dim=-1)
            log_probs[within] = scores.gather(-1, targets[within][:, None])[:, 0]
        else:
            scores = torch.log_softmax(hidden @ V.T, dim=-1)
            log_probs = scores.gather(-1, targets[..., None])[..., 0] * within
        log_probs -= self._ln_rare * ((targets == RARE_CLASS) & within)
        return log_probs.sum(1)
