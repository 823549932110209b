"""What a model of the suite is made of."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable

import torch
from torch import nn

Batch = tuple[torch.Tensor, ...]


class Scale(str, enum.Enum):
    SIM = "sim"  # some 40 to 100 MiB at the peak, a few seconds with CPU kernels
    GPU = "gpu"  # a few GB at the peak, a few seconds on a data-centre GPU


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """A model with everything needed to train it and to run it forward only.

    `batch` draws one batch on the CPU, from PyTorch's default generator: inputs, then targets.
    `loss` is given the model and a batch on the device.
    `cap_share` and `infer_cap_share` are where to cap memory, as shares of the uncapped peak:
    low enough to fail without swapping, high enough for the largest operator.
    """

    model: nn.Module
    batch: Callable[[], Batch]
    loss: Callable[..., torch.Tensor]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    inputs: int = 1  # how many tensors of a batch the model takes
    steps: int = 3
    accumulation: int = 1  # batches per step
    requests: int = 8  # batches of a forward-only run; inputs and outputs stay on the device
    cap_share: float = 0.6
    infer_cap_share: float = 0.6
