"""Recipe fast: the same network, trained in parallel streams, to a lower perplexity in a fraction of the time.

What it does differently from the paper's online training, and why (figures in docs/training.md):

- Centred coordinates. With t = 2 s - 1 the recurrence s = sigmoid(U x + W s') is t = tanh(E x + R t'), where
  U = 2 E - 2 R 1, W = 4 R. Zero-mean hidden units are what gradient descent wants; the network stays the same,
  and `weights` turns it back. One hidden unit is held at 1, so that the output layer has a bias in V's column.
- Parallel streams: the text is cut into B streams read side by side, T words at a time, the hidden state carried
  and the error propagated through the T words (truncated BPTT with tau up to T).
- A sampled softmax: the cross-entropy over the batch's own targets and K drawn classes, each logit lowered by the
  logarithm of how likely its class was to be among them (Jean et al. 2015; Bengio and Senecal 2008).
  Or a class-factored output, exact and as cheap; or a penalty on the normaliser, which scoring can then leave out.
- AdaGrad (Duchi et al. 2011) with one accumulator a matrix row; only rows that were used are touched. The rate falls
  linearly to zero over the epochs planned.
- Dropout of centred hidden units towards the output, of components of the word vectors, and of whole input words. A
  stream keeps its mask for the T words of a step (Gal and Ghahramani 2016).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from models.class_factored import NAME as CLASS_FACTORED
from models.class_factored import ClassGroups
from models.distributed import Group
from models.errors import TrainingError
from models.factored_gradients import FactoredGradients
from models.recipe import RecipeState, perplexity_of
from models.rnnlm import EOS_CLASS, ElmanWeights
from models.row_adagrad import EPSILON, RowGradient, clipping, row_step
from models.scratch import Scratch
from models.softmax_gradients import softmax_gradients
from models.tanh_recurrence import TanhRecurrence
from models.training_text import ClassStream

# sigmoid(30) is 1 in float32: the unit that is always on.
_ALWAYS_ON = 30.0
# AdaGrad's first steps are as long as its rate allows, whatever the gradient: begin with a small one.
_WARM_UP_STEPS = 500
_WARM_UP_SHARE = 0.05
_LAST_RATE = 1e-3
_CLIP = 1.0
_ALONE = Group()


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
    bf16:          compute the output layer's products in bfloat16
    output:        "softmax", or "class-factored" (models/class_factored.py), of which no classes are drawn
    groups:        of a class-factored output; 0 for about the square root of the number of classes
    normaliser_penalty: alpha, on the square of ln Z: the network learns to do without its normaliser
                   (models/self_normalised.py). Where classes are drawn, Z is estimated from them

    Raises TrainingError for options that do not go together.
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
    output: Literal["softmax", "class-factored"] = "softmax"
    groups: int = 0
    normaliser_penalty: float = 0.0

    def __post_init__(self) -> None:
        if self.output == CLASS_FACTORED and (self.bf16 or self.normaliser_penalty):
            raise TrainingError("a class-factored output takes neither bf16 nor a penalty on its normaliser")
        if self.output != CLASS_FACTORED and self.groups:
            raise TrainingError("groups are those of a class-factored output")


class Fast:
    """Training in centred coordinates.

    stream:  the training text
    classes: C, the size of the input and output layers
    hidden_size: H of the network, the constant unit included
    group:   the processes that share the streams. Each draws what is random for all streams and takes its own part,
             so that what is learnt does not depend on how many they are
    """

    # The initial state in the network's own coordinates, t = 0.
    initial_state = 0.5

    def __init__(
        self,
        stream: ClassStream,
        classes: int,
        hidden_size: int,
        options: FastOptions,
        seed: int,
        device: torch.device,
        group: Group = _ALONE,
    ) -> None:
        # A stream holds a word at least.
        self._options = options = replace(options, streams=min(options.streams, len(stream)))
        if options.streams < group.size:
            raise TrainingError(f"{options.streams} streams are too few for {group.size} processes")
        self._device = device
        self._group, self._share = group, group.share(options.streams)
        self._scratch = Scratch()
        self._generator = torch.Generator().manual_seed(seed)
        self._inputs, self._targets = stream.inputs.to(device), stream.targets.to(device)
        counts = torch.bincount(stream.targets, minlength=classes).double() + 1e-3
        unigram = counts / counts.sum()
        self._proposal = counts**0.75 / (counts**0.75).sum()
        self._cumulative = self._proposal.cumsum(0)
        self._correction = self._log_inclusion(unigram).to(device)
        self._factored: FactoredGradients | None = None
        bias = torch.log(unigram).float().to(device)
        if options.output == CLASS_FACTORED:
            frequencies = torch.bincount(stream.targets, minlength=classes).numpy()
            self._factored = FactoredGradients(ClassGroups.by_frequency(frequencies, options.groups), device)
            bias = self._factored.begun(bias)
        H = hidden_size - 1
        recurrent = torch.linalg.qr(torch.randn(H, H, generator=self._generator)).Q
        self._parameters = {
            "E": (torch.randn(classes, H, generator=self._generator) * 0.1).to(device),
            "R": recurrent.contiguous().to(device),
            "O": torch.zeros(len(bias), H, device=device),
            "c": bias,
        }
        self._squares = {
            "E": torch.zeros(classes, 1, device=device),
            "R": torch.zeros(1, device=device),
            "O": torch.zeros(len(bias), 1, device=device),
        }
        self._step = 0
        self._epoch = 0
        self._begin_epoch()

    def _log_inclusion(self, unigram: Tensor) -> Tensor:
        """(C,) ln of the probability that a class is among a step's candidates: drawn, or some word's target."""
        o = self._options
        missed = o.samples * torch.log1p(-self._proposal) + o.streams * o.tau * torch.log1p(-unigram)
        return torch.log(-torch.expm1(missed)).float()

    def _begin_epoch(self) -> None:
        # The cut into streams starts at another place each epoch, so that each sees other boundaries.
        self._offset = int(torch.randint(len(self._targets), (1,), generator=self._generator))
        self._column = 0
        streams = self._share.stop - self._share.start
        self._state = torch.zeros(streams, self._parameters["R"].shape[0], device=self._device)
        self._loss, self._words = torch.zeros((), dtype=torch.float64, device=self._device), 0

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
            words = self._learn(inputs[rows], targets[rows])
            self._column += self._options.tau
            yield words
        self._epoch += 1

    def _learn(self, inputs: Tensor, targets: Tensor) -> int:
        """One step on (T, B) inputs and their (T, B) targets."""
        p, o, words = self._parameters, self._options, targets.numel()
        read, place = torch.unique(inputs, return_inverse=True)
        candidates, wanted = self._candidates(targets)
        E, R = p["E"][read].requires_grad_(), p["R"].detach().requires_grad_()
        a_stream = (1, inputs.shape[1], R.shape[0])
        vectors = (E * self._mask((len(read), 1), o.input_dropout))[place[:, self._share]]
        states = self._unroll(vectors * self._streams_mask(a_stream, o.vector_dropout), inputs, R)
        hidden = states * self._streams_mask(a_stream, o.dropout)
        if candidates is None:
            O, c = p["O"], p["c"]  # noqa: E741 - the output matrix
        else:
            O, c = p["O"][candidates], p["c"][candidates] - self._correction[candidates]  # noqa: E741 - the output matrix
        flat, index = hidden.detach().flatten(0, 1), wanted[:, self._share].reshape(-1)
        if self._factored is not None:
            out = self._factored(flat, O, c, index, words)
        else:
            out = softmax_gradients(
                flat, O, c, index, words, bf16=o.bf16, penalty=o.normaliser_penalty, scratch=self._scratch
            )
        gradient_E, gradient_R = torch.autograd.grad(hidden, [E, R], out.hidden.view_as(hidden))
        loss = out.loss.float()
        self._group.sum([gradient_E, gradient_R, out.O, out.c, loss])
        self._update(RowGradient.of(gradient_E, read), gradient_R, RowGradient.of(out.O, candidates), out.c)
        self._loss += loss
        self._words += words
        return words

    def _candidates(self, targets: Tensor) -> tuple[Tensor | None, Tensor]:
        """The classes of a step's softmax, None for all, and where among them each target is."""
        if not self._options.samples or self._factored is not None:
            return None, targets
        uniform = torch.rand(self._options.samples, generator=self._generator, dtype=torch.float64)
        drawn = torch.searchsorted(self._cumulative, uniform).clamp_(max=len(self._cumulative) - 1)
        candidates, index = torch.unique(torch.cat([targets.flatten(), drawn.to(self._device)]), return_inverse=True)
        return candidates, index[: targets.numel()].view_as(targets)

    def _unroll(self, embedded: Tensor, inputs: Tensor, R: Tensor) -> Tensor:
        """(T, B, H) word vectors -> (T, B, H) hidden states, from the carried state on; of this process's streams."""
        drawn = torch.rand(inputs.shape, generator=self._generator).to(self._device)
        keep = ((inputs != EOS_CLASS) | (drawn >= self._options.reset_share))[:, self._share]
        states: Tensor = TanhRecurrence.apply(embedded, R, self._state, keep.unsqueeze(-1).float())  # type: ignore[no-untyped-call] # torch leaves apply untyped
        self._state = states[-1].detach()
        return states

    def _mask(self, shape: tuple[int, ...], share: float) -> Tensor | float:
        if not share:
            return 1.0
        kept = torch.rand(shape, generator=self._generator) >= share
        return (kept / (1 - share)).to(self._device)

    def _streams_mask(self, shape: tuple[int, int, int], share: float) -> Tensor | float:
        """A mask of (T, B, H) values, drawn for all streams: this process's part of it."""
        mask = self._mask(shape, share)
        return mask[:, self._share] if isinstance(mask, Tensor) else mask

    def _update(self, E: RowGradient, R: Tensor, O: RowGradient, c: Tensor) -> None:  # noqa: E741 - the output matrix
        """One clipped AdaGrad step on the rows that were used."""
        planned = self._step / self._steps_planned
        warm = min(1.0, (self._step + 1) / min(_WARM_UP_STEPS, 1 + _WARM_UP_SHARE * self._steps_planned))
        rate = self._options.rate * (warm * max(0.0, 1 - planned) + _LAST_RATE)
        p, squares = self._parameters, self._squares
        scale = clipping([E.squares, R.square(), O.squares, c.square()], _CLIP)
        row_step(p["E"], squares["E"], E, scale, rate)
        row_step(p["O"], squares["O"], O, scale, rate)
        squares["R"] += R.square().mean() * scale.square()
        p["R"].addcmul_(R, scale / (squares["R"].sqrt() + EPSILON), value=-rate)
        if O.rows is None:
            p["c"].addcmul_(c, scale, value=-rate)
        else:
            p["c"].index_add_(0, O.rows, c * scale, alpha=-rate)
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
        return {"train_perplexity": perplexity_of(float(self._loss) / max(1, self._words)), "rate": rate}

    def weights(self) -> ElmanWeights:
        """The network in its own coordinates: U = 2 E - 2 R 1, W = 4 R, V = 2 O, and the constant unit last."""
        p = {name: value.double() for name, value in self._parameters.items()}
        C, H = p["E"].shape
        U = torch.full((C, H + 1), _ALWAYS_ON, dtype=torch.float64, device=self._device)
        U[:, :H] = 2 * p["E"] - 2 * p["R"].sum(1)
        W = torch.zeros(H + 1, H + 1, dtype=torch.float64, device=self._device)
        W[:H, :H] = 4 * p["R"]
        V = torch.empty(len(p["O"]), H + 1, dtype=torch.float64, device=self._device)
        V[:, :H] = 2 * p["O"]
        V[:, H] = p["c"] - p["O"].sum(1)
        if self._factored is not None:
            V = self._factored.by_class(V)
        return ElmanWeights(U.float(), W.float(), V.float())

    @property
    def groups(self) -> ClassGroups | None:
        """See Recipe."""
        return self._factored.groups if self._factored is not None else None

    def state(self) -> RecipeState:
        """See Recipe."""
        tensors = {
            **self._parameters,
            **{f"squares.{name}": value for name, value in self._squares.items()},
            "state": self._group.gather(self._state, self._options.streams),
            "generator": self._generator.get_state(),
        }
        values = {
            "step": self._step,
            "epoch": self._epoch,
            "offset": self._offset,
            "column": self._column,
            "loss": float(self._loss),
            "words": self._words,
        }
        return RecipeState({name: tensor.clone() for name, tensor in tensors.items()}, values)

    def restore(self, state: RecipeState) -> None:
        """See Recipe."""
        on_device = {name: tensor.to(self._device) for name, tensor in state.tensors.items()}
        self._parameters = {name: on_device[name] for name in "EROc"}
        self._squares = {name: on_device[f"squares.{name}"] for name in "ERO"}
        self._state = on_device["state"][self._share]
        self._generator.set_state(state.tensors["generator"])
        values = state.values
        self._step, self._epoch, self._offset = values["step"], values["epoch"], values["offset"]
        self._column, self._words = values["column"], values["words"]
        self._loss = torch.tensor(values["loss"], dtype=torch.float64, device=self._device)
