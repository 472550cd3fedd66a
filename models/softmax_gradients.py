"""The output layer in training: a batch's cross-entropy and its gradients, computed together.

With y = softmax(O h + c) and w the class wanted, the cross-entropy -ln y_w has the gradients

    d / d logits = y - onehot(w)      d / dh = O^T (y - onehot(w))      d / dO = (y - onehot(w)) h^T

so one pass over the logits, a block of words at a time, gives loss and gradients; the logits of the whole batch are
never stored.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from models.scratch import Scratch

# Logits computed at once: 8 MiB of them in float32.
_LOGITS = 2**21
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
    scratch: where to compute; the gradient of O then stands there until the next call
    """
    kind = torch.bfloat16 if bf16 else hidden.dtype
    h, M = hidden.to(kind), O.to(kind)
    scratch = scratch or Scratch()
    rows = max(1, min(len(h), _LOGITS // len(M)))
    logits, y = (scratch.take(name, rows, len(M), hidden) for name in ("logits", "y"))
    loss = torch.zeros((), dtype=torch.float64, device=hidden.device)
    columns = -(-M.shape[1] // _ALIGNED) * _ALIGNED
    back, gradient = (
        scratch.take(name, len(matrix), columns, matrix)[:, : M.shape[1]] for name, matrix in (("hidden", h), ("O", M))
    )
    gradient_c = torch.zeros_like(c)
    tiny = torch.finfo(hidden.dtype).tiny
    for first in range(0, len(h), rows):
        part = h[first : first + rows]
        index = wanted[first : first + rows, None]
        block, errors = logits[: len(part)], y[: len(part)]
        if bf16:
            torch.add(part @ M.T, c, out=block)
        else:
            torch.addmm(c, part, M.T, out=block)
        torch.softmax(block, 1, out=errors)
        loss -= errors.gather(1, index).clamp_(min=tiny).log_().sum()
        if penalty:
            top, likeliest = errors.max(1, keepdim=True)
            log_z = block.gather(1, likeliest) - top.log()
            errors.mul_(log_z.mul_(2 * penalty).add_(1.0))
        errors.scatter_add_(1, index, errors.new_full((), -1.0).expand_as(index))
        gradient_c.add_(errors.sum(0), alpha=1 / words)
        e = errors.to(kind)
        gradient.addmm_(e.T, part, beta=1 if first else 0, alpha=1 / words)
        torch.mm(e, M, out=back[first : first + rows])
    return SoftmaxGradients(loss, (back / words).to(hidden.dtype), gradient.to(O.dtype), gradient_c)
