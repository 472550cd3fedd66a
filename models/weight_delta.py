"""What a session's network differs by from the shared one: a low-rank difference, never a copy of the weights.

    V' = V + G^T S        W' = W + delta.W        U'[c] = U[c] + delta.U's row of c, for the classes that were read

Every step of online learning adds one outer product to V and tau to W (models/dynamic.py), so after r words G and S
have r rows. They never have more than H: a matrix of H columns has no higher rank, so at that point
G^T S is multiplied out, which is exact, and S is the identity from then on.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from models.errors import SessionError
from models.rnnlm import ElmanWeights


@dataclass(frozen=True, slots=True)
class WeightDelta:
    """A difference from shared weights; H hidden units, C classes. Never changed in place.

    G:       (rank, C) output factors, the learning rate already in them
    S:       (rank, H) the hidden states they belong to
    W:       (H, H) difference of the recurrent matrix; (0, 0) while nothing was learnt
    classes: (rows,) the input classes that were read and learnt, ascending
    U:       (rows, H) their differences

    It holds rank (C + H) + H^2 + rows H numbers, rank and rows being no more than the words learnt.
    """

    G: Tensor
    S: Tensor
    W: Tensor
    classes: Tensor
    U: Tensor

    @classmethod
    def none(cls, weights: ElmanWeights) -> "WeightDelta":
        """No difference."""
        C, H = weights.V.shape
        new = weights.V.new_empty
        classes = torch.empty(0, dtype=torch.int64, device=weights.V.device)
        return cls(new(0, C), new(0, H), new(0, 0), classes, new(0, H))

    @property
    def rank(self) -> int:
        """Rank of the output difference, at most H."""
        return len(self.S)

    @property
    def empty(self) -> bool:
        """Whether nothing was learnt."""
        return not self.W.numel()

    @property
    def bytes(self) -> int:
        """Memory held."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.named().values())

    @property
    def finite(self) -> bool:
        """Whether every number is finite."""
        return all(bool(torch.isfinite(tensor).all()) for tensor in (self.G, self.S, self.W, self.U))

    def named(self) -> dict[str, Tensor]:
        """The tensors by name, as a snapshot stores them."""
        return {"G": self.G, "S": self.S, "W": self.W, "classes": self.classes, "U": self.U}

    @classmethod
    def from_named(cls, tensors: Mapping[str, Tensor], weights: ElmanWeights) -> "WeightDelta":
        """Read a snapshot's tensors back. Raises SessionError when they do not fit the weights."""
        try:
            delta = cls(**{name: tensors[name] for name in ("G", "S", "W", "classes", "U")})
        except KeyError as error:
            raise SessionError(f"tensor {error} is missing") from error
        C, H = weights.V.shape
        for name, tensor in delta.named().items():
            expected = torch.int64 if name == "classes" else weights.V.dtype
            if tensor.dtype != expected:
                raise SessionError(f"tensor {name} holds {tensor.dtype}, not {expected}")
        # Of a scalar, too, the length can be asked.
        rank, rows = delta.S.numel() // H, delta.classes.numel()
        square = (H, H) if rank or rows else (0, 0)
        shapes = {"G": (rank, C), "S": (rank, H), "W": square, "classes": (rows,), "U": (rows, H)}
        for name, shape in shapes.items():
            if tuple(delta.named()[name].shape) != shape:
                raise SessionError(f"tensor {name} has shape {tuple(delta.named()[name].shape)}, not {shape}")
        in_range = not rows or (int(delta.classes.min()) >= 0 and int(delta.classes.max()) < len(weights.U))
        compact = rank < H or torch.equal(delta.S, torch.eye(H, dtype=delta.S.dtype, device=delta.S.device))
        if rank > H or not compact or not in_range or not bool((delta.classes.diff() > 0).all()):
            raise SessionError("the tensors are no difference of this network")
        if not delta.finite:
            raise SessionError("a tensor holds a number that is not finite")
        return delta

    def input_rows(self, classes: Tensor) -> Tensor:
        """(n,) classes -> (n, H) what is added to their rows of U."""
        out = self.U.new_zeros(len(classes), self.U.shape[1])
        if len(self.classes):
            place = torch.searchsorted(self.classes, classes).clamp_(max=len(self.classes) - 1)
            known = self.classes[place] == classes
            out[known] = self.U[place[known]]
        return out

    def learnt(self, steps: "Steps", kept: float) -> "WeightDelta":
        """This difference, shrunk by the factor `kept`, plus some steps of learning."""
        H = self.S.shape[1]
        if self.rank == H:
            G, S = torch.addmm(self.G, steps.states.T, steps.output_errors, beta=kept), self.S
        else:
            G, S = torch.cat([self.G * kept, steps.output_errors]), torch.cat([self.S, steps.states])
            if len(S) >= H:
                G, S = S.T @ G, torch.eye(H, dtype=S.dtype, device=S.device)
        W = steps.hidden_errors.T @ steps.previous
        if not self.empty:
            W += self.W * kept
        classes, place = torch.unique(torch.cat([self.classes, steps.classes]), return_inverse=True)
        rows = torch.cat([self.U * kept, steps.hidden_errors])
        U = rows.new_zeros(len(classes), H).index_add_(0, place, rows)
        return WeightDelta(G, S, W, classes, U)

    def applied(self, weights: ElmanWeights) -> ElmanWeights:
        """The session's network in full: (U', W', V')."""
        U, W = weights.U.clone(), weights.W.clone()
        if len(self.classes):
            U[self.classes] += self.U
        if not self.empty:
            W += self.W
        return ElmanWeights(U, W, torch.addmm(weights.V, self.G.T, self.S))


@dataclass(frozen=True, slots=True)
class Steps:
    """The factors of some consecutive learning steps, learning rate and decay already in the errors; n words.

    output_errors: (n, C) and states: (n, H), V += output_errors^T states
    hidden_errors: (m, H), previous: (m, H) and classes: (m,), at most tau a word:
                   W += hidden_errors^T previous, U[classes] += hidden_errors
    """

    output_errors: Tensor
    states: Tensor
    hidden_errors: Tensor
    previous: Tensor
    classes: Tensor
