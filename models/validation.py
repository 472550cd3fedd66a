"""What a network makes of validation text, read as one stream with its state carried."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from models.class_factored import ClassFactored, ClassGroups
from models.output_layer import FullSoftmax, OutputLayer, log_normaliser, wanted_logits
from models.recipe import perplexity_of
from models.rnnlm import RARE_CLASS, ElmanWeights, WordClasses
from models.self_normalised import SelfNormalisation
from models.training_text import ClassStream

_STREAMS = 32
_STEPS = 32


def output_layer(weights: ElmanWeights, groups: ClassGroups | None) -> OutputLayer:
    """The exact output layer of a network, with groups or without."""
    return FullSoftmax(weights.V) if groups is None else ClassFactored(weights.V, groups)


def stream_perplexity(
    weights: ElmanWeights,
    stream: ClassStream,
    classes: WordClasses,
    initial_state: float,
    layer: OutputLayer | None = None,
) -> float:
    """Perplexity over running text, </s> counted, state carried, the rare class's share divided among its members.

    layer: the output layer; the full softmax when left out
    """
    layer = layer or FullSoftmax(weights.V)
    total = 0.0
    for hidden, wanted in _stream_states(weights, stream, initial_state):
        with torch.inference_mode():
            each = torch.arange(len(wanted), device=wanted.device)
            total += float(layer.log_probs(hidden, each, wanted).double().sum())
    rare = int((stream.targets == RARE_CLASS).sum())
    entropy = -(total - rare * math.log(classes.rare_members)) / len(stream)
    return perplexity_of(entropy)


def self_normalisation(weights: ElmanWeights, stream: ClassStream, initial_state: float) -> SelfNormalisation:
    """How nearly a network normalises itself over running text; see `_stream_states`."""
    normalisers, logits = [], []
    for hidden, wanted in _stream_states(weights, stream, initial_state):
        with torch.inference_mode():
            normalisers.append(log_normaliser(hidden, weights.V))
            each = torch.arange(len(wanted), device=wanted.device)
            logits.append(wanted_logits(hidden, weights.V, each, wanted))
    return SelfNormalisation.measured(torch.cat(normalisers), torch.cat(logits))


def _stream_states(weights: ElmanWeights, stream: ClassStream, initial_state: float) -> Iterator[tuple[Tensor, Tensor]]:
    """(n, H) hidden states over running text, the state carried, and the (n,) classes that come next; n at a time.

    The text is read in parallel streams, each from the initial state; a text of under a thousand words is read as
    one.
    """
    streams = max(1, min(_STREAMS, len(stream) // 1000))
    device = weights.U.device
    length = math.ceil(len(stream) / streams)
    padded = torch.full((2, streams * length), -1)
    padded[0, : len(stream)], padded[1, : len(stream)] = stream.inputs, stream.targets
    inputs, targets = padded.view(2, streams, length).transpose(1, 2).to(device)
    state = torch.full((streams, weights.W.shape[0]), initial_state, dtype=weights.U.dtype, device=device)
    for first in range(0, length, _STEPS):
        states = []
        with torch.inference_mode():
            for row in inputs[first : first + _STEPS]:
                state = torch.sigmoid(torch.addmm(weights.U[row], state, weights.W.T))
                states.append(state)
            wanted = targets[first : first + _STEPS].reshape(-1)
            hidden = torch.cat(states)[wanted >= 0]
        yield hidden, wanted[wanted >= 0]
