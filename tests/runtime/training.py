"""A small network and how the tests train it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

WIDTH = 32


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH),
        nn.ReLU(),
        nn.LayerNorm(2 * WIDTH),
        nn.Linear(2 * WIDTH, WIDTH),
        nn.Tanh(),
    ).cuda()


def inputs(rows: int = 8) -> torch.Tensor:
    """Random inputs, drawn on the host so that they are the same on every device."""
    return torch.randn(rows, WIDTH).cuda()


def gradients(module: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in module.parameters()]


def train(
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer], steps: int = 3
) -> Any:
    """Returns all losses, the parameters and the state of the optimizer."""
    model = network()
    optimizer = make_optimizer(model.parameters())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = model(inputs()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses, model.state_dict(), optimizer.state_dict()["state"]
