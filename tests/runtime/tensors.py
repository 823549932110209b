"""Helpers of the runtime's tests for tensors."""

from __future__ import annotations

import torch
from conftest import MIB
from releases import TensorBase


def floats(mib: float) -> int:
    """The number of float32 values in this number of MiB."""
    return int(mib * MIB) // 4


def pattern(mib: float, start: int = 0, device: str = "cuda") -> torch.Tensor:
    """A float32 tensor of this size whose elements depend on their positions."""
    return (torch.arange(floats(mib), dtype=torch.float32) % 1021 + start).to(device)


def managed(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor after an operator has used it: from then on LMS can page it out."""
    tensor.sum()
    return tensor


def turn_on() -> None:
    """Turns LMS on, and makes it watch at once: in these tests, the devices are almost empty."""
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()


def older(mib: float, stream: torch.cuda.Stream) -> tuple[torch.Tensor, torch.Tensor]:
    """A pattern(), and a tensor like it, made on a stream while LMS was off.

    So LMS does not know on which one.
    """
    torch.cuda.set_enabled_lms(False)
    with torch.cuda.stream(stream):
        x = pattern(mib)
        like = torch.empty_like(x)
    turn_on()
    return x, like


def evict() -> None:
    """Pages out all idle storages."""
    torch.cuda.reclaim_inactive()


def is_resident(tensor: torch.Tensor) -> bool:
    return torch.cuda.lms.is_resident(tensor)


def raw_address(tensor: torch.Tensor) -> int:
    """The address as C++ code reads it, without the Python method that tells LMS."""
    return int(TensorBase.data_ptr(tensor))


def stat(name: str) -> int:
    return torch.cuda.lms.stats()[name]


def caught() -> int:
    """How often the release check found a write that LMS had not seen."""
    torch.cuda.synchronize()
    return torch.cuda.lms.stats().get("release_caught", 0)
