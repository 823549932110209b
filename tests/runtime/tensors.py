"""What the runtime's tests do with tensors."""

from __future__ import annotations

import torch
from conftest import MIB
from releases import TensorBase


def floats(mib: float) -> int:
    """How many float32 numbers are that many MiB."""
    return int(mib * MIB) // 4


def pattern(mib: float, start: int = 0, device: str = "cuda") -> torch.Tensor:
    """A float32 tensor of that size whose elements tell where they belong."""
    return (torch.arange(floats(mib), dtype=torch.float32) % 1021 + start).to(device)


def managed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, after an operator has used it: from then on LMS can page it out."""
    tensor.sum()
    return tensor


def turn_on() -> None:
    """LMS on, and looking at operators from the first: these tests' devices are all but empty."""
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms._watch()


def evict() -> None:
    """Pages out everything idle."""
    torch.cuda.reclaim_inactive()


def is_resident(tensor: torch.Tensor) -> bool:
    return torch.cuda.lms.is_resident(tensor)


def raw_address(tensor: torch.Tensor) -> int:
    """The address as C++ code reads it: past the Python method that tells LMS."""
    return int(TensorBase.data_ptr(tensor))


def stat(name: str) -> int:
    return torch.cuda.lms.stats()[name]
