"""Recipe fast: the same network, trained in parallel streams, to a lower perplexity in a fraction of the time.

What it does differently from the paper's online training, and why (figures in docs/training.md):

- Centred coordinates. With t = 2 s - 1 the recurrence s = sigmoid(U x + W s') is t = tanh(E x + R t'), where
  U = 2 E - 2 R 1, W = 4 R. Zero-mean hidden units are what gradient descent wants; the network stays the same,
  and `weights` turns it back. One hidden unit is held at 1, so that the output layer has a bias in V's column.
- Parallel streams: the text is cut into B streams read side by side, T words at a time, the hidden state carried
  and the error propagated through the T words (truncated BPTT with tau up to T).
- A sampled softmax: the cross-entropy over the batch's own targets and K drawn classes, each logit lowered by the
  logarithm of how likely its class was to be among them (Jean et al. 2015; Bengio and Senecal 2008).
- AdaGrad (Duchi et al. 2011) with one accumulator a matrix row; only rows that were used are touched. The rate falls
  linearly to zero over the epochs planned.
- Dropout of centred hidden units towards the output, of components of the word vectors, and of whole input words. A
  stream keeps its mask for the T words of a step (Gal and Ghahramani 2016).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from models.recipe import RecipeState, perplexity_of
from models.rnnlm import EOS_CLASS, ElmanWeights
from models.training_text import ClassStream

# sigmoid(30) is 1 in float32: the unit that is always on.
_ALWAYS_ON = 30.0
# AdaGrad's first steps are as long as its rate allows, whatever the gradient: begin with a small one.
_WARM_UP_STEPS = 500
_WARM_UP_SHARE = 0.05
_LAST_RATE = 1e-3
_CLIP = 1.0


@dataclass(frozen=True, slots=True)
class FastOptions:
    """The recipe's settings; the defaults are what we found best at hidden 200 to 400.

    epochs:        how many times the text is read
    rate:          AdaGrad's learning rate at the start
    streams:       B, streams read side by side
    tau:           T, words a step, hence how far back an error can reach
    samples:       K, classes drawn a step for the sampled softmax; 0 computes the full softmax
    dropout:       share of hidden units hidden from the output layer
    vector_dropout: share of the word vectors' components hidden from the network
    input_dropout: share of input words hidden from the network
    reset_share:   share of sentences begun from the initial state, so that the network knows both state switches
    bf16:          compute matrix products in bfloat16 (CUDA)
    """

    epochs: int = 8
    rate: float = 0.07
    streams: int = 20
    tau: int = 20
    samples: int = 600
    dropout: float = 0.15
    vector_dropout: float = 0.1
    input_dropout: float = 0.05
    reset_share: float = 0.1
    bf16: bool = False


class _TanhRecurrence(torch.autograd.Function):
    """t_k = tanh(e_k + R (keep_k t_{k-1})) over T steps; the gradient of R is one product, not T."""

    @staticmethod
    def forward(ctx: Any, embedded: Tensor, R: Tensor, start: Tensor, keep: Tensor) -> Tensor:
        """(T, B, H) inputs, (H, H), (B, H) state before, (T, B, 1) 0 where the state is reset -> (T, B, H)."""
        states = torch.empty(embedded.shape, dtype=start.dtype, device=start.device)
        state = start
        for k in range(len(embedded)):
            state = torch.tanh(torch.addmm(embedded[k], state * keep[k], R.T)).to(start.dtype)
            states[k] = state
        ctx.save_for_backward(states, torch.cat([start[None], states[:-1]]) * keep, keep, R)
        return states

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Errors through time, last step first."""
        states, previous, keep, R = ctx.saved_tensors
        errors = torch.addcmul(gradient, gradient, states.square(), value=-1)
        slopes = 1 - states.square()
        for k in range(len(errors) - 1, 0, -1):
            errors[k - 1].addcmul_((errors[k] @ R) * keep[k], slopes[k - 1])
        H = R.shape[0]
        return errors, errors.view(-1, H).T @ previous.view(-1, H), None, None


class Fast:
    """Training in centred coordinates.

    stream:  the training text
    classes: C, the size of the input and output layers
    hidden_size: H of the network, the constant unit included
    """

    # The initial state in the network's own coordinates, t = 0.
    initial_state = 0.5

    def __init__(
        self, stream: ClassStream, classes: int, hidden_size: int, options: FastOptions, seed: int, device: torch.device
    ) -> None:
        # A stream holds a word at least.
        self._options = options = replace(options, streams=min(options.streams, len(stream)))
        self._device = device
        self._generator = torch.Generator().manual_seed(seed)
        self._inputs, self._targets = stream.inputs.to(device), stream.targets.to(device)
        counts = torch.bincount(stream.targets, minlength=classes).double() + 1e-3
        unigram = counts / counts.sum()
        self._proposal = (counts**0.75 / (counts**0.75).sum()).float()
        self._correction = self._log_inclusion(unigram).to(device)
        H = hidden_size - 1
        recurrent = torch.linalg.qr(torch.randn(H, H, generator=self._generator)).Q
        self._parameters = {
            "E": (torch.randn(classes, H, generator=self._generator) * 0.1).to(device),
            "R": recurrent.contiguous().to(device),
            "O": torch.zeros(classes, H, device=device),
            "c": torch.log(unigram).float().to(device),
        }
        self._squares = {
            "E": torch.zeros(classes, 1, device=device),
            "R": torch.zeros(1, device=device),
            "O": torch.zeros(classes, 1, device=device),
        }
        self._step = 0
        self._epoch = 0
        self._begin_epoch()

    def _log_inclusion(self, unigram: Tensor) -> Tensor:
        """(C,) ln of the probability that a class is among a step's candidates: drawn, or some word's target."""
        o = self._options
        missed = o.samples * torch.log1p(-self._proposal.double()) + o.streams * o.tau * torch.log1p(-unigram)
        return torch.log(-torch.expm1(missed)).float()

    def _begin_epoch(self) -> None:
        # The cut into streams starts at another place each epoch, so that each sees other boundaries.
        self._offset = int(torch.randint(len(self._targets), (1,), generator=self._generator))
        self._column = 0
        self._state = torch.zeros(self._options.streams, self._parameters["R"].shape[0], device=self._device)
        self._loss, self._words = 0.0, 0

    @property
    def _stream_length(self) -> int:
        return max(1, len(self._targets) // self._options.streams)

    @property
    def _steps_planned(self) -> int:
        return self._options.epochs * math.ceil(self._stream_length / self._options.tau)

    def epoch(self) -> Iterator[int]:
        """Read the text once more; see Recipe."""
        streams = self._options.streams
        length = self._stream_length

        def cut(tokens: Tensor) -> Tensor:
            return tokens.roll(self._offset)[: streams * length].view(streams, length).T

        inputs, targets = cut(self._inputs), cut(self._targets)
        while self._column < length:
            rows = slice(self._column, self._column + self._options.tau)
            words = self._learn(inputs[rows], targets[rows].reshape(-1))
            self._column += self._options.tau
            yield words
        self._epoch += 1

    def _learn(self, inputs: Tensor, targets: Tensor) -> int:
        """One step on (T, B) inputs and their (T * B,) targets."""
        p, o = self._parameters, self._options
        read, place = torch.unique(inputs, return_inverse=True)
        if o.samples:
            drawn = torch.multinomial(self._proposal, o.samples, replacement=True, generator=self._generator)
            candidates, index = torch.unique(torch.cat([targets, drawn.to(self._device)]), return_inverse=True)
            wanted, correction = index[: len(targets)], self._correction[candidates]
        else:
            candidates, wanted = torch.arange(len(p["c"]), device=self._device), targets
            correction = torch.zeros_like(p["c"])
        E, R = p["E"][read].requires_grad_(), p["R"].detach().requires_grad_()
        O, c = p["O"][candidates].requires_grad_(), p["c"][candidates].requires_grad_()  # noqa: E741 - the output matrix
        with torch.autocast(self._device.type, torch.bfloat16, enabled=o.bf16):
            a_stream = (1, inputs.shape[1], R.shape[0])
            embedded = (E * self._mask((len(read), 1), o.input_dropout))[place] * self._mask(a_stream, o.vector_dropout)
            hidden = self._unroll(embedded, inputs, R) * self._mask(a_stream, o.dropout)
            logits = torch.addmm(c - correction, hidden.flatten(0, 1), O.T)
        loss = functional.cross_entropy(logits.float(), wanted)
        gradients = dict(zip("EROc", torch.autograd.grad(loss, [E, R, O, c]), strict=True))
        self._update(gradients, read, candidates)
        self._loss += float(loss.detach()) * len(targets)
        self._words += len(targets)
        return len(targets)

    def _unroll(self, embedded: Tensor, inputs: Tensor, R: Tensor) -> Tensor:
        """(T, B, H) word vectors -> (T, B, H) hidden states, from the carried state on."""
        T, B, _ = embedded.shape
        drawn = torch.rand(T, B, generator=self._generator).to(self._device)
        keep = (inputs != EOS_CLASS) | (drawn >= self._options.reset_share)
        states: Tensor = _TanhRecurrence.apply(embedded, R, self._state, keep.unsqueeze(-1).float())  # type: ignore[no-untyped-call] # torch leaves apply untyped
        self._state = states[-1].detach()
        return states

    def _mask(self, shape: tuple[int, ...], share: float) -> Tensor | float:
        if not share:
            return 1.0
        kept = torch.rand(shape, generator=self._generator) >= share
        return (kept / (1 - share)).to(self._device)

    def _update(self, gradients: dict[str, Tensor], read: Tensor, candidates: Tensor) -> None:
        """One clipped AdaGrad step on the rows that were used."""
        planned = self._step / self._steps_planned
        warm = min(1.0, (self._step + 1) / min(_WARM_UP_STEPS, 1 + _WARM_UP_SHARE * self._steps_planned))
        rate = self._options.rate * (warm * max(0.0, 1 - planned) + _LAST_RATE)
        norm = torch.sqrt(torch.stack([g.square().sum() for g in gradients.values()]).sum())
        scale = torch.clamp(_CLIP / (norm + 1e-9), max=1.0)
        E, R, O, c = (gradients[name] * scale for name in "EROc")  # noqa: E741 - the output matrix
        for name, gradient, rows in (("E", E, read), ("O", O, candidates)):
            squares = self._squares[name]
            squares.index_add_(0, rows, gradient.square().mean(1, keepdim=True))
            step = gradient / (squares[rows].sqrt() + 1e-8)
            self._parameters[name].index_add_(0, rows, step, alpha=-rate)
        self._squares["R"] += R.square().mean()
        self._parameters["R"].add_(R / (self._squares["R"].sqrt() + 1e-8), alpha=-rate)
        self._parameters["c"].index_add_(0, candidates, c, alpha=-rate)
        self._step += 1

    @property
    def done(self) -> bool:
        """After the epochs planned; see Recipe."""
        return self._epoch >= self._options.epochs

    def validated(self, perplexity: float) -> None:
        """See Recipe; validation does not change this recipe's course."""
        del perplexity
        self._begin_epoch()

    def progress(self) -> tuple[int, int | None]:
        """See Recipe."""
        return self._words, self._options.epochs

    def report(self) -> dict[str, float]:
        """See Recipe; the training perplexity is that of the sampled softmax, lower than the true one."""
        rate = self._options.rate * max(0.0, 1 - self._step / self._steps_planned)
        return {"train_perplexity": perplexity_of(self._loss / max(1, self._words)), "rate": rate}

    def weights(self) -> ElmanWeights:
        """The network in its own coordinates: U = 2 E - 2 R 1, W = 4 R, V = 2 O, and the constant unit last."""
        p = {name: value.double() for name, value in self._parameters.items()}
        C, H = p["E"].shape
        U = torch.full((C, H + 1), _ALWAYS_ON, dtype=torch.float64, device=self._device)
        U[:, :H] = 2 * p["E"] - 2 * p["R"].sum(1)
        W = torch.zeros(H + 1, H + 1, dtype=torch.float64, device=self._device)
        W[:H, :H] = 4 * p["R"]
        V = torch.empty(C, H + 1, dtype=torch.float64, device=self._device)
        V[:, :H] = 2 * p["O"]
        V[:, H] = p["c"] - p["O"].sum(1)
        return ElmanWeights(U.float(), W.float(), V.float())

    def state(self) -> RecipeState:
        """See Recipe."""
        tensors = {
            **self._parameters,
            **{f"squares.{name}": value for name, value in self._squares.items()},
            "state": self._state,
            "generator": self._generator.get_state(),
        }
        values = {
            "step": self._step,
            "epoch": self._epoch,
            "offset": self._offset,
            "column": self._column,
            "loss": self._loss,
            "words": self._words,
        }
        return RecipeState({name: tensor.clone() for name, tensor in tensors.items()}, values)

    def restore(self, state: RecipeState) -> None:
        """See Recipe."""
        on_device = {name: tensor.to(self._device) for name, tensor in state.tensors.items()}
        self._parameters = {name: on_device[name] for name in "EROc"}
        self._squares = {name: on_device[f"squares.{name}"] for name in "ERO"}
        self._state = on_device["state"]
        self._generator.set_state(state.tensors["generator"])
        values = state.values
        self._step, self._epoch, self._offset = values["step"], values["epoch"], values["offset"]
        self._column, self._loss, self._words = values["column"], values["loss"], values["words"]
