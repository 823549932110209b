"""Training programs: each function makes a model, and returns what runs one iteration of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x + self.layers(x))


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mixed = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.mixed(self.norms[0](x)).chunk(3, -1)
        heads = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        # The simulated device has no other kernel.
        # Not at the top, because older releases do not have it.
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(SDPBackend.MATH):
            mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.wide(self.norms[1](x))


def _classify(model: nn.Module, optimizer: Any) -> Callable[[], None]:
    def iteration() -> None:
        images = torch.randn(8, 3, 32, 32).cuda()
        labels = torch.randint(10, (8,)).cuda()
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return iteration


def plain() -> Callable[[], None]:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(True), nn.Flatten(), nn.Linear(14400, 10)
    ).cuda()
    return _classify(model, torch.optim.AdamW(model.parameters(), foreach=False))


def residual() -> Callable[[], None]:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        _Residual(16),
        nn.MaxPool2d(2),
        _Residual(16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 1000),
    ).cuda()
    return _classify(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def _predict(*, foreach: bool | None, autocast: bool = False, repeat: bool = False) -> Any:
    words = 1000
    embedding = nn.Embedding(words, 128)
    layers = nn.ModuleList(_Layer(128, 4) for _ in range(2))
    head = nn.Linear(128, words, bias=False)
    head.weight = embedding.weight
    model = nn.ModuleList([embedding, layers, head]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)

    def iteration() -> float:
        tokens = torch.randint(words, (4, 64), device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
            x = embedding(tokens)
            for layer in layers:
                if repeat:
                    x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
                else:
                    x = layer(x)
            loss = functional.cross_entropy(head(x).flatten(0, 1), tokens.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return iteration


def attention() -> Any:
    return _predict(foreach=False)


def foreach() -> Any:
    return _predict(foreach=None)  # the default on a GPU


def mixed() -> Any:
    return _predict(foreach=False, autocast=True)


def checkpointed() -> Any:
    return _predict(foreach=False, repeat=True)


PROGRAMS = {
    program.__name__: program
    for program in (plain, residual, attention, foreach, mixed, checkpointed)
}

CONVOLUTIONS = {plain.__name__, residual.__name__}
