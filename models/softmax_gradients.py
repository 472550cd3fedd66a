"""The output layer in training: a batch's cross-entropy and its gradients, computed together.

With y = softmax(O h + c) and w the class wanted, the cross-entropy -ln y_w has the gradients

    d / d logits = y - onehot(w)      d / dh = O^T (y - onehot(w))      d / dO = (y - onehot(w)) h^T

The logits are computed once, a block of classes at a time, and raised to powers while the block is in the cache. What
a word's powers have to be divided by is known only after the last block, but it is one number a word: it is divided out
of h instead, and onehot(w) is taken off where it is not zero. Nothing passes over all logits again but two products.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from models.output_layer import LOG2_E, nothing_lost
from models.scratch import Scratch

# Powers kept at once: 16 MiB of them in float32.
_POWERS = 2**22
# Classes whose logits are computed at once.
_BLOCK = 1024
# A product is a third slower on a processor when the rows it is written to do not begin at such multiples.
_ALIGNED = 8


class SoftmaxGradients(NamedTuple):
    """The loss of N words, and the gradients of loss / words.

    loss:   () the summed cross-entropy, in nats
    hidden: (N, H)
    O:      (K, H)
    c:      (K,)
    """

    loss: Tensor
    hidden: Tensor
    O: Tensor  # noqa: E741 - the output matrix
    c: Tensor


def softmax_gradients(
    hidden: Tensor,
    O: Tensor,  # noqa: E741 - the output matrix
    c: Tensor,
    wanted: Tensor,
    words: int,
    *,
    bf16: bool = False,
    penalty: float = 0.0,
    scratch: Scratch | None = None,
) -> SoftmaxGradients:
    """Cross-entropy of softmax(O h + c), with the gradients of cross-entropy + penalty * (ln Z)^2.

    Z is the sum of exp(O h + c), which (ln Z)^2 draws towards 1 for every h; its gradient is 2 ln Z y (Devlin et al.,
    ACL 2014). The loss given is the cross-entropy alone.

    hidden: (N, H)
    O, c:   (K, H) and (K,)
    wanted: (N,) the row of O that is right for each word
    words:  what the gradients are divided by: the words of the batch, of which these N may be a part
    bf16:   compute the products in bfloat16
    penalty: on (ln Z)^2
    scratch: where to compute; the gradients of O and hidden then stand there until the next call
    """
    layer = _Layer(hidden, O, c, torch.bfloat16 if bf16 else hidden.dtype, scratch or Scratch())
    loss = torch.zeros((), dtype=torch.float64, device=hidden.device)
    gradient, gradient_c = layer.aligned("O", len(O), O.shape[1]), torch.zeros_like(c)
    back = layer.aligned("hidden", len(hidden), O.shape[1])
    for first in range(0, len(hidden), layer.rows):
        part = slice(first, first + layer.rows)
        h, right = hidden[part], wanted[part]
        log_z, scale = layer.fill(h, back[part])
        chosen = O[right]
        loss += (log_z - (h * chosen).sum(1) - c[right]).sum()
        # y = powers * scale; the penalty makes it (1 + 2 alpha ln Z) y.
        scale *= (1 + 2 * penalty * log_z) / words if penalty else 1 / words
        back[part].mul_(scale[:, None]).sub_(chosen, alpha=1 / words)
        layer.add_products(h, scale, gradient, gradient_c, first=not first)
        gradient.index_add_(0, right, h, alpha=-1 / words)
        gradient_c.index_add_(0, right, torch.ones_like(scale), alpha=-1 / words)
    return SoftmaxGradients(loss, back, gradient, gradient_c)


class _Layer:
    """The output layer at work on `rows` words at a time; exponents are of 2, for that is the cheaper function."""

    def __init__(
        self,
        hidden: Tensor,
        O: Tensor,  # noqa: E741 - the output matrix
        c: Tensor,
        kind: torch.dtype,
        scratch: Scratch,
    ) -> None:
        self._like, self._scratch, self._kind = hidden, scratch, kind
        self._O, self._c = O.to(kind), c * LOG2_E
        width = _BLOCK if hidden.device.type == "cpu" else len(O)
        self._blocks = [slice(first, min(first + width, len(O))) for first in range(0, len(O), width)]
        self.rows = max(1, min(len(hidden), _POWERS // len(O)))
        self._powers = [
            self.aligned(f"powers {block.start}", self.rows, block.stop - block.start) for block in self._blocks
        ]

    def aligned(self, name: str, rows: int, columns: int) -> Tensor:
        """(rows, columns) from the scratch, whatever they hold."""
        return self._scratch.take(name, rows, -(-columns // _ALIGNED) * _ALIGNED, self._like)[:, :columns]

    def fill(self, h: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the powers of n words, and what they add up to.

        h:       (n, H)
        back:    (n, H) to be filled with powers O
        returns: (n,) ln Z, and (n,) what makes powers probabilities
        """
        scaled = (h * LOG2_E).to(self._kind)
        sums = self._sum_up(scaled, back, None)
        if bool(nothing_lost(sums, len(self._O)).all()):
            return sums.log(), sums.reciprocal()
        largest = torch.stack([self._logits(scaled, number).amax(1) for number in range(len(self._blocks))]).amax(0)
        sums = self._sum_up(scaled, back, largest)
        return sums.log() + largest / LOG2_E, sums.reciprocal()

    def _logits(self, scaled: Tensor, number: int) -> Tensor:
        """(n, width) a block's logits, where its powers will be."""
        block, out = self._blocks[number], self._powers[number][: len(scaled)]
        if self._kind == out.dtype:
            return torch.addmm(self._c[block], scaled, self._O[block].T, out=out)
        return torch.add(scaled @ self._O[block].T, self._c[block], out=out)

    def _sum_up(self, scaled: Tensor, back: Tensor, less: Tensor | None) -> Tensor:
        """(n,) sums of powers, of logits less `less`; see `fill`."""
        sums = scaled.new_zeros(len(scaled), dtype=back.dtype)
        for number, block in enumerate(self._blocks):
            logits = self._logits(scaled, number)
            powers = (logits if less is None else logits.sub_(less[:, None])).exp2_()
            sums += powers.sum(1)
            product = powers.to(self._kind) @ self._O[block]
            if number:
                back += product
            else:
                back.copy_(product)
        return sums

    def add_products(self, h: Tensor, scale: Tensor, gradient: Tensor, gradient_c: Tensor, *, first: bool) -> None:
        """Add y^T h to the gradient of O, or set it to that, and y^T 1 to that of c; y = powers * scale."""
        scaled = (h * scale[:, None]).to(self._kind)
        for block, powers in zip(self._blocks, self._powers, strict=True):
            y = powers[: len(h)]
            gradient_c[block].addmv_(y.T, scale)
            if self._kind == gradient.dtype:
                gradient[block].addmm_(y.T, scaled, beta=0 if first else 1)
            elif first:
                gradient[block] = y.to(self._kind).T @ scaled
            else:
                gradient[block] += y.to(self._kind).T @ scaled
