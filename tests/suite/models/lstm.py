"""A deep recurrent network for sequence labelling, trained with Adam and gradient clipping."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn
from torch.nn import functional as F

from models.workload import Batch, Scale, Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    layers: int
    hidden: int
    batch: int
    sequence: int
    classes: int
    requests: int


SIZES = {
    Scale.SIM: Size(layers=2, hidden=192, batch=256, sequence=12, classes=16, requests=12),
    Scale.GPU: Size(layers=8, hidden=1024, batch=256, sequence=128, classes=64, requests=16),
}


class Recurrent(nn.Module):
    """One layer per cell, not one deep cell: a cell is one operator, and uses all it has at once.

    Gradients are clipped by a hook of each parameter for the same reason.
    """

    def __init__(self, cell: type[nn.RNNBase], size: Size) -> None:
        super().__init__()
        self.cells = nn.ModuleList(cell(size.hidden, size.hidden) for _ in range(size.layers))
        self.norms = nn.ModuleList(nn.LayerNorm(size.hidden) for _ in range(size.layers))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(size.hidden, size.classes)
        for parameter in self.parameters():
            parameter.register_hook(lambda gradient: gradient.clamp(-1, 1))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        for cell, norm in zip(self.cells, self.norms, strict=True):
            x = x + self.dropout(norm(cell(x)[0]))
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(x)
        return self.head(x) if self.training else x


def recurrent(cell: type[nn.RNNBase], scale: Scale) -> Workload:
    size = SIZES[scale]

    def batch() -> Batch:
        sequences = torch.randn(size.sequence, size.batch, size.hidden)
        return sequences, torch.randint(size.classes, (size.sequence * size.batch,))

    return Workload(
        model=Recurrent(cell, size),
        batch=batch,
        loss=lambda model, x, labels: F.cross_entropy(model(x).flatten(0, 1), labels),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3, foreach=False),
        requests=size.requests,
    )


def build(scale: Scale) -> Workload:
    return recurrent(nn.LSTM, scale)
