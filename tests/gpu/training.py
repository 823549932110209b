"""A network whose activations and parameters are MiB each, and its training."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

WIDTH = 1024
ROWS = 2048
LIMIT = 48 << 20  # bytes; the training below needs a few times that


def network(layers: int = 6) -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(layers)]
    return nn.Sequential(*blocks).cuda()


def train(model: nn.Module, steps: int = 3, seed: int = 0) -> Any:
    """Each loss, and the parameters; what is drawn is drawn on the host."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        x = torch.randn(ROWS, WIDTH, generator=generator).cuda()
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses, list(model.parameters())
