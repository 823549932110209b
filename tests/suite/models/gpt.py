"""A decoder-only transformer, trained with AdamW and gradient accumulation."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn
from torch.nn import functional as F

from models.workload import Batch, Scale, Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    layers: int
    width: int
    heads: int
    vocabulary: int
    batch: int
    sequence: int
    requests: int


SIZES = {
    Scale.SIM: Size(
        layers=4, width=192, heads=6, vocabulary=512, batch=8, sequence=64, requests=40
    ),
    Scale.GPU: Size(
        layers=12, width=1024, heads=16, vocabulary=32000, batch=4, sequence=512, requests=8
    ),
}


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm1 = nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.norm2 = nn.LayerNorm(size.width)
        self.mlp = nn.Sequential(
            nn.Linear(size.width, 4 * size.width),
            nn.GELU(),
            nn.Linear(4 * size.width, size.width),
        )
        self.dropout = nn.Dropout(0.1)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        # Written out, because fused attention has no deterministic backward for every type.
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        length = x.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = self.dropout(scores.masked_fill(future, float("-inf")).softmax(-1))
        return self.out((weights @ v).transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attend(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class Gpt(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.positions = nn.Parameter(0.02 * torch.randn(size.sequence, size.width))
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions)))


def build(scale: Scale) -> Workload:
    size = SIZES[scale]

    def batch() -> Batch:
        text = torch.randint(size.vocabulary, (size.batch, size.sequence + 1))
        return text[:, :-1].contiguous(), text[:, 1:].flatten()

    return Workload(
        model=Gpt(size),
        batch=batch,
        loss=lambda model, tokens, nexts: F.cross_entropy(model(tokens).flatten(0, 1), nexts),
        # One parameter at a time: a foreach or fused step is one operator that uses every
        # parameter, gradient and state at once, so nothing of them could be elsewhere.
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, foreach=False),
        accumulation=2,
        requests=size.requests,
    )
