"""Settings with which two runs of the same program have the same bits."""

from __future__ import annotations


def turn_on() -> None:
    import torch

    # Without warn_only: with it, attention's backward pass would not be deterministic.
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a kernel for each tensor
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
