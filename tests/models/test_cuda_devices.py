"""Which devices a list of names means, on machines with none, one and four CUDA devices."""

import pytest
import torch

from models.cuda_devices import named_devices
from models.errors import InvalidOptionError


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: request.param > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: request.param)


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize(
    ("devices", "names", "found"),
    [
        (0, "auto", ("cpu",)),
        (0, "cpu", ("cpu",)),
        (1, "auto", ("cuda",)),
        (1, "cpu", ("cpu",)),
        (1, "cuda", ("cuda",)),
        (1, "cuda:0,cuda:0", ("cuda:0", "cuda:0")),
        (4, "auto", ("cuda",)),
        (4, "cuda:3", ("cuda:3",)),
        (4, "cuda:2, cuda:0", ("cuda:2", "cuda:0")),
    ],
    indirect=["devices"],
)
def test_names_of_what_is_there_are_taken_in_their_order(names: str, found: tuple[str, ...]) -> None:
    assert named_devices(names) == found


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize(
    ("devices", "names", "said"),
    [
        (0, "cuda", r"^device 'cuda' is asked for, but torch sees no CUDA device$"),
        (0, "cuda:0,cuda:1", r"^device 'cuda:0' is asked for, but torch sees no CUDA device$"),
        (1, "cuda:0,cuda:1", r"^device 'cuda:1' is asked for, but torch sees only 1: cuda:0 to 0$"),
        (4, "cuda:4", r"^device 'cuda:4' is asked for, but torch sees only 4: cuda:0 to 3$"),
        (4, "cpu,cpu", r"^'cpu' stands alone; only CUDA devices can be several"),
        (4, "cuda:0,cpu", r"^'cpu' stands alone"),
        (4, "cuda:0,auto", r"^'auto' stands alone"),
        (4, "tpu", r"^no such device: 'tpu'"),
        (4, "cuda:x", r"^no such device: 'cuda:x'"),
        (4, "cuda:", r"^no such device: 'cuda:'"),
        (4, "cuda:-1", r"^no such device: 'cuda:-1'"),
        (4, "cuda:²", r"^no such device"),
        (4, "cuda:0,,cuda:1", r"^no such device: ''"),
        (4, "", r"^no such device: ''"),
    ],
    indirect=["devices"],
)
def test_what_is_no_device_or_not_there_is_refused_by_name(names: str, said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        named_devices(names)
