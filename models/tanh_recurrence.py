"""The recurrent layer in centred coordinates, unrolled over the steps of a batch, with its gradient."""

from typing import Any

import torch
from torch import Tensor


class TanhRecurrence(torch.autograd.Function):
    """t_k = tanh(e_k + R (keep_k t_{k-1})) over T steps; the gradient of R is one product, not T."""

    @staticmethod
    def forward(ctx: Any, embedded: Tensor, R: Tensor, start: Tensor, keep: Tensor) -> Tensor:
        """(T, B, H) inputs, (H, H), (B, H) state before, (T, B, 1) 0 where the state is reset -> (T, B, H)."""
        states = torch.empty_like(embedded)
        previous = torch.empty_like(embedded)
        state, transposed = start, R.T.contiguous()
        for k, (before, after) in enumerate(zip(previous.unbind(), states.unbind(), strict=True)):
            torch.mul(state, keep[k], out=before)
            state = torch.addmm(embedded[k], before, transposed, out=after).tanh_()
        ctx.save_for_backward(states, previous, keep, R)
        return states

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Errors through time, last step first."""
        states, previous, keep, R = ctx.saved_tensors
        slopes = torch.addcmul(torch.ones((), dtype=states.dtype, device=states.device), states, states, value=-1)
        errors = gradient * slopes
        # What one step back passes on: its own slope, and nothing across a reset.
        slopes[:-1] *= keep[1:]
        for k in range(len(errors) - 1, 0, -1):
            errors[k - 1].addcmul_(errors[k] @ R, slopes[k - 1])
        H = R.shape[0]
        return errors, errors.view(-1, H).T @ previous.view(-1, H), None, None
