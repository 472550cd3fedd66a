"""Which devices a list of names means, checked before anything is loaded."""

import torch

from models.errors import InvalidOptionError


def named_devices(names: str) -> tuple[str, ...]:
    """The devices of "auto", "cpu", "cuda", "cuda:1" or "cuda:0,cuda:1", each as `load_bundle` takes it.

    A CUDA device named twice works for two. Raises InvalidOptionError where a device is unknown or not there, and where
    several are named of which one is no CUDA device: the processor's cores all work for one already.
    """
    devices = tuple(name.strip() for name in names.split(","))
    if devices == ("auto",):
        return ("cuda" if torch.cuda.is_available() else "cpu",)
    for name in devices:
        _check(name, alone=len(devices) == 1)
    return devices


def _check(name: str, *, alone: bool) -> None:
    kind, colon, number = name.partition(":")
    if name == "cpu" and alone:
        return
    if kind != "cuda" or (colon and not (number.isascii() and number.isdecimal())):
        if name in ("auto", "cpu"):
            raise InvalidOptionError(f"{name!r} stands alone; only CUDA devices can be several: cuda:0,cuda:1")
        raise InvalidOptionError(f"no such device: {name!r}; use auto, cpu, cuda, or several: cuda:0,cuda:1")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise InvalidOptionError(f"device {name!r} is asked for, but torch sees no CUDA device")
    if int(number or 0) >= count:
        raise InvalidOptionError(f"device {name!r} is asked for, but torch sees only {count}: cuda:0 to {count - 1}")
