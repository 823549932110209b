"""ResNet with bottleneck blocks (He et al. 2016), trained with SGD and momentum."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn
from torch.nn import functional as F

from models.workload import Batch, Scale, Workload

EXPANSION = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    blocks: tuple[int, ...]
    width: int
    batch: int
    image: int
    classes: int
    requests: int


SIZES = {
    Scale.SIM: Size(blocks=(2, 2, 2), width=16, batch=24, image=96, classes=10, requests=18),
    Scale.GPU: Size(blocks=(3, 4, 6, 3), width=64, batch=64, image=224, classes=1000, requests=40),
}


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * EXPANSION
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, size.width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(size.width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks: list[nn.Module] = []
        channels = size.width
        for stage, count in enumerate(size.blocks):
            width = size.width << stage
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Bottleneck(channels, width, stride))
                channels = width * EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, size.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Not AdaptiveAvgPool2d: its backward has no deterministic CUDA kernel.
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def build(scale: Scale) -> Workload:
    size = SIZES[scale]

    def batch() -> Batch:
        images = torch.randn(size.batch, 3, size.image, size.image)
        return images, torch.randint(size.classes, (size.batch,))

    return Workload(
        model=ResNet(size),
        batch=batch,
        loss=lambda model, images, labels: F.cross_entropy(model(images), labels),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        requests=size.requests,
    )
