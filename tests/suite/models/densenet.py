"""DenseNet-BC (Huang et al. 2017): each layer reads the concatenation of all before it."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn
from torch.nn import functional as F

from models.workload import Batch, Scale, Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    blocks: tuple[int, ...]
    growth: int
    batch: int
    image: int
    classes: int
    requests: int


SIZES = {
    Scale.SIM: Size(blocks=(4, 4), growth=12, batch=16, image=64, classes=10, requests=40),
    Scale.GPU: Size(
        blocks=(6, 12, 24, 16), growth=32, batch=16, image=224, classes=1000, requests=96
    ),
}


class Layer(nn.Module):
    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        inner = 4 * growth
        self.body = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x, self.body(x)), dim=1)


class DenseNet(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        channels = 2 * size.growth
        layers: list[nn.Module] = [nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)]
        for index, count in enumerate(size.blocks):
            if index > 0:
                layers += [
                    nn.BatchNorm2d(channels),
                    nn.ReLU(),
                    nn.Conv2d(channels, channels // 2, 1, bias=False),
                    nn.AvgPool2d(2),
                ]
                channels //= 2
            for _ in range(count):
                layers.append(Layer(channels, size.growth))
                channels += size.growth
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU())
        self.head = nn.Linear(channels, size.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).mean((2, 3)))


def build(scale: Scale) -> Workload:
    size = SIZES[scale]

    def batch() -> Batch:
        images = torch.randn(size.batch, 3, size.image, size.image)
        return images, torch.randint(size.classes, (size.batch,))

    return Workload(
        model=DenseNet(size),
        batch=batch,
        loss=lambda model, images, labels: F.cross_entropy(model(images), labels),
        optimizer=lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, momentum=0.9),
        requests=size.requests,
        infer_cap_share=0.7,
    )
