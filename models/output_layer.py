"""Output layers: from the hidden states of a recurrent network to log probabilities of the classes that follow."""

import logging
import math
from collections.abc import Mapping
from itertools import product
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from models.cuda_logsumexp import fused_where_possible
from models.errors import InvalidOptionError
from models.threads import share_out, thread_count

Precision = Literal["float32", "bfloat16"]
PRECISIONS: tuple[str, ...] = get_args(Precision)

# A power of two is the cheaper function: e^x = 2^(LOG2_E x).
LOG2_E = math.log2(math.e)

_LOG = logging.getLogger(__name__)

# A tile of logits is at most so many rows high and holds so many numbers: on a processor they stay in its cache.
_ROWS = 512
_TILE = 2**18
_ROWS_CUDA, _TILE_CUDA = 8192, 2**25
# Events whose vectors are gathered at a time.
_EVENTS, _EVENTS_CUDA = 1024, 2**16


class OutputLayer(Protocol):
    """A distribution over C classes given a hidden state."""

    @property
    def classes(self) -> int:
        """C."""
        ...

    def log_probs(self, states: Tensor, histories: Tensor, classes: Tensor) -> Tensor:
        """Score the class of each event.

        states:    (nodes, H) hidden states
        histories: (events,) the node that each event continues
        classes:   (events,) the class of each event
        returns:   (events,) ln P(class | history), in the precision of the states
        """
        ...

    def describe(self) -> dict[str, Any]:
        """What a user may want to know of the layer, as JSON; "output" names it."""
        ...


def check_precision(layers: Mapping[str, OutputLayer], precision: Precision) -> None:
    """Say for which networks a precision does nothing; only a full softmax's normaliser has one to choose.

    layers: name -> the network's output layer

    Raises InvalidOptionError where it does nothing for any network. Where it does something for others, it is logged.
    """
    if precision == "float32":
        return
    said = {name: layer.describe() for name, layer in layers.items()}
    deaf = {name: layer["output"] for name, layer in said.items() if layer.get("precision") != precision}
    what = "; ".join(f"the output of {name!r} is {output!r}" for name, output in deaf.items())
    if len(deaf) == len(layers):
        raise InvalidOptionError(
            f"precision {precision!r} goes with a full softmax that is normalised, which no network here has"
            f"{f': {what}' if what else ''}"
        )
    if deaf:
        _LOG.warning("precision %r is for full softmaxes, so not for all networks here: %s", precision, what)


class FullSoftmax:
    """The softmax over all classes, exact: P(c | s) = exp(V_c . s) / sum_d exp(V_d . s).

    V:         (C, H)
    precision: "bfloat16" takes the normaliser's products from V and s rounded to bfloat16; exponentials are summed,
               and the wanted classes' own logits computed, in the precision of V all the same
    """

    def __init__(self, V: Tensor, precision: Precision = "float32") -> None:
        self.V = V
        self.precision = precision
        self._multiplied = V.bfloat16() if precision == "bfloat16" else V

    @property
    def classes(self) -> int:
        """C."""
        return len(self.V)

    def log_probs(self, states: Tensor, histories: Tensor, classes: Tensor) -> Tensor:
        """See OutputLayer."""
        normaliser = fast_log_normaliser(states, self._multiplied)
        out = wanted_logits(states, self.V, histories, classes)
        return out.sub_(normaliser[histories])

    def describe(self) -> dict[str, Any]:
        """See OutputLayer."""
        return {"output": "softmax", "precision": self.precision}


def wanted_logits(states: Tensor, V: Tensor, histories: Tensor, classes: Tensor) -> Tensor:
    """(events,) V_class . s of each event; see OutputLayer for the rest."""
    out = torch.empty(len(histories), dtype=states.dtype, device=states.device)
    events = _EVENTS if states.device.type == "cpu" else _EVENTS_CUDA
    for first in range(0, len(histories), events):
        rows = slice(first, first + events)
        gathered = states.index_select(0, histories[rows])
        gathered *= V.index_select(0, classes[rows])
        torch.sum(gathered, dim=1, out=out[rows])
    return out


def fast_log_normaliser(states: Tensor, V: Tensor) -> Tensor:
    """Ln sum_c exp(V_c . s) for each state: `log_normaliser` in the fewest passes over the logits.

    A tile of logits is computed, raised to a power and summed while it is in the cache. It is a power of two, with
    log2(e) multiplied into the states, for that is the cheaper function; and the largest logit is not looked for
    first, for that would be another pass. A row whose sum then leaves the range in which no term has been lost, above
    or below, is computed again by `log_normaliser`. On a GPU with Triton see models/cuda_logsumexp.py instead.

    states:  (nodes, H)
    V:       (C, H); in a lower precision than the states, the products are taken in it
    returns: (nodes,) in the precision of the states
    """
    fused = fused_where_possible(states, V)
    if fused is not None:
        return fused
    sums = _sums_of_exponentials(states, V)
    out = sums.log()
    lost = ~nothing_lost(sums, len(V))
    if bool(lost.any()):
        out[lost] = log_normaliser(states[lost], V.to(states.dtype))
    return out


def nothing_lost(sums: Tensor, terms: int) -> Tensor:
    """Which sums of so many exponentials are what they would be in a kind of numbers without bounds, up to rounding."""
    kind = torch.finfo(sums.dtype)
    # Terms below `tiny` may be lost: together less than rounding does to a sum above this.
    return (sums > kind.tiny * terms / kind.eps) & (sums < torch.inf)


def _sums_of_exponentials(states: Tensor, V: Tensor) -> Tensor:
    """(nodes,) sum_c exp(V_c . s), infinite or 0 where that is out of range."""
    on_cpu = states.device.type == "cpu"
    rows_a_tile, tile = (_ROWS, _TILE) if on_cpu else (_ROWS_CUDA, _TILE_CUDA)
    blocks = -(-len(states) // rows_a_tile)
    # Each thread gets the same share: of the rows where there are enough, else of the classes.
    sharing = thread_count() if on_cpu else 1
    groups = 1 if blocks >= sharing else sharing
    if groups == 1:
        blocks = -(-blocks // sharing) * sharing
    rows = max(-(-len(states) // max(blocks, 1)), 1)
    sums = states.new_zeros(groups, len(states))
    every = V.tensor_split(groups)

    def add(piece: tuple[int, int]) -> None:
        first, group = piece
        scaled = (states[first : first + rows] * LOG2_E).to(V.dtype)
        _add_powers_of_two(scaled, every[group], sums[group, first : first + rows], tile)

    pieces = product(range(0, len(states), rows), range(groups))
    if on_cpu:
        share_out(add, pieces)
    else:
        for piece in pieces:
            add(piece)
    return sums.sum(0)


def _add_powers_of_two(states: Tensor, V: Tensor, sums: Tensor, tile: int) -> None:
    """Add sum_c 2^(V_c . s) to the sum of each row, through one buffer of `tile` numbers."""
    rows = len(states)
    classes = max(tile // rows, 1)
    products = states.new_empty(rows * classes)
    powers = products if sums.dtype == states.dtype else sums.new_empty(rows * classes)
    for first in range(0, len(V), classes):
        block = V[first : first + classes]
        shape = (rows, len(block))
        logits, terms = (buffer[: rows * len(block)].view(shape) for buffer in (products, powers))
        torch.mm(states, block.T, out=logits)
        if terms.data_ptr() != logits.data_ptr():
            terms.copy_(logits)
        sums += terms.exp2_().sum(1)


def log_normaliser(states: Tensor, V: Tensor) -> Tensor:
    """Ln sum_c exp(V_c . s) for each state, whatever the size of the logits, which are never stored whole.

    states:  (nodes, H)
    V:       (C, H)
    returns: (nodes,)
    """
    out = torch.full((len(states),), -torch.inf, dtype=states.dtype, device=states.device)
    for first in range(0, len(states), _ROWS):
        rows = states[first : first + _ROWS]
        classes = max(_TILE // len(rows), 1)
        for start in range(0, len(V), classes):
            part = torch.logsumexp(rows @ V[start : start + classes].T, dim=1)
            out[first : first + _ROWS] = torch.logaddexp(out[first : first + _ROWS], part)
    return out
