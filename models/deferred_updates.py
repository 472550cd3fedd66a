"""The output matrix of online training: rank-one updates kept aside and applied several at a time.

Each word changes the whole output matrix, V += rate * error state^T, and reading and writing it is what online training
spends its time on. Kept aside, the last k updates are a product of two thin matrices, so what V would be is known
exactly without touching it:

    (V + E^T S) s = V s + E^T (S s)            (V + E^T S)^T e = V^T e + S^T (E e)
"""

import torch
from torch import Tensor

_UPDATES_KEPT = 16


class OutputMatrix:
    """V under rank-one updates, equal at any time to V with each applied at once, up to rounding.

    V is kept transposed, (H, C): all products with it then read memory in order.
    """

    def __init__(self, V: Tensor) -> None:
        """V: (C, H); it is copied."""
        self._Vt = V.T.contiguous()
        self._E = torch.empty(_UPDATES_KEPT, V.shape[0], dtype=V.dtype)
        self._S = torch.empty(_UPDATES_KEPT, V.shape[1], dtype=V.dtype)
        self._kept = 0

    def logits(self, state: Tensor) -> Tensor:
        """(H,) -> (C,): V s."""
        out = state @ self._Vt
        if self._kept:
            out.addmv_(self._E[: self._kept].T, self._S[: self._kept] @ state)
        return out

    def back(self, error: Tensor) -> Tensor:
        """(C,) -> (H,): V^T e."""
        out = self._Vt @ error
        if self._kept:
            out.addmv_(self._S[: self._kept].T, self._E[: self._kept] @ error)
        return out

    def add(self, error: Tensor, state: Tensor, rate: float) -> None:
        """V += rate * error state^T."""
        torch.mul(error, rate, out=self._E[self._kept])
        self._S[self._kept] = state
        self._kept += 1
        if self._kept == _UPDATES_KEPT:
            self.apply()

    def value(self) -> Tensor:
        """(C, H) a copy of V with every update applied."""
        self.apply()
        return self._Vt.T.contiguous()

    def apply(self) -> None:
        """Apply the updates that are kept aside."""
        if self._kept:
            self._Vt.addmm_(self._S[: self._kept].T, self._E[: self._kept])
            self._kept = 0
