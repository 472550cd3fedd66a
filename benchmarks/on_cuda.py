"""The engine's CUDA column: the same points on a GPU, where there is one.

Results are on the host when a score returns, so what is timed is all of it. Before anything counts, every path is run
until its kernels are compiled and its graphs recorded.
"""

from collections.abc import Callable

import numpy as np
import torch
from figures import Figure
from roofline import seconds

from models.output_layer import FullSoftmax, Precision
from models.prefix_tree import PrefixTree
from models.rnnlm import ElmanLM

PATHS: dict[str, Precision] = {"CUDA": "float32", "CUDA bfloat16": "bfloat16"}
_DEVICE = torch.device("cuda")
_WARM_UP = 6
_ROWS = 8192
_MOST_LOGITS = 2**28


def there() -> bool:
    """Whether there is a CUDA device."""
    return torch.cuda.is_available()


def moved(network: ElmanLM, precision: Precision) -> ElmanLM:
    """The network on the GPU."""
    weights = network.weights.to(_DEVICE)
    return ElmanLM(weights, network.classes, network.initial_state, output=FullSoftmax(weights.V, precision))


def warm_up(work: Callable[[], object]) -> None:
    """Do some work until it is as fast as it will be."""
    for _ in range(_WARM_UP):
        work()


class MatrixRate:
    """Products of states and the output matrix alone on the GPU, logits written and nothing done with them."""

    def __init__(self, hidden: int, classes: int, precision: Precision) -> None:
        kind = torch.bfloat16 if precision == "bfloat16" else torch.float32
        rows = max(min(_ROWS, _MOST_LOGITS // classes), 1)
        self._states = torch.rand(rows, hidden, device=_DEVICE).to(kind)
        self._V = torch.rand(classes, hidden, device=_DEVICE).to(kind)
        self._logits = torch.empty(rows, classes, device=_DEVICE, dtype=kind)

    def measure(self) -> float:
        """Operations a second, a multiplication and an addition being two."""
        times = 10

        def products() -> None:
            for _ in range(times):
                torch.mm(self._states, self._V.T, out=self._logits)
            torch.cuda.synchronize()

        torch.cuda.synchronize()
        return 2 * times * self._states.numel() * len(self._V) / seconds(products)


def differences(network: ElmanLM, tree: PrefixTree) -> list[Figure]:
    """How far the GPU's values of a word are from the processor's, and what GPU it is."""
    here, _ = network.score(tree)
    figures = []
    for name, precision in PATHS.items():
        away = abs(moved(network, precision).score(tree)[0] - here)
        goal = "<= 0.0001" if precision == "float32" else ""
        figures += [
            Figure(f"largest difference of {name}", float(np.max(away)), "nats a word", goal),
            Figure(f"mean difference of {name}", float(np.mean(away)), "nats a word"),
        ]
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    return [*figures, Figure(f"memory of {torch.cuda.get_device_name(0)}", memory, "GiB")]
