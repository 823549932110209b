"""3D U-Net (Cicek et al. 2016) for voxel segmentation, trained with Adam."""

from __future__ import annotations

import dataclasses
import itertools

import torch
from torch import nn
from torch.nn import functional as F

from models.workload import Batch, Scale, Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    width: int
    levels: int
    batch: int
    volume: int  # voxels along each edge
    requests: int


SIZES = {
    Scale.SIM: Size(width=8, levels=3, batch=3, volume=32, requests=40),
    Scale.GPU: Size(width=16, levels=4, batch=2, volume=128, requests=24),
}


def double_conv(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(channels, out, 3, padding=1, bias=False),
        nn.BatchNorm3d(out),
        nn.ReLU(),
        nn.Conv3d(out, out, 3, padding=1, bias=False),
        nn.BatchNorm3d(out),
        nn.ReLU(),
    )


class UNet3d(nn.Module):
    """Strided convolutions go down: max_pool3d's backward has no deterministic CUDA kernel."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        widths = [size.width << level for level in range(size.levels)]
        self.first = double_conv(1, widths[0])
        self.shrink = nn.ModuleList()
        self.down = nn.ModuleList()
        self.grow = nn.ModuleList()
        self.up = nn.ModuleList()
        for fine, coarse in itertools.pairwise(widths):
            self.shrink.append(nn.Conv3d(fine, coarse, 2, stride=2))
            self.down.append(double_conv(coarse, coarse))
            self.grow.insert(0, nn.ConvTranspose3d(coarse, fine, 2, stride=2))
            self.up.insert(0, double_conv(2 * fine, fine))
        self.head = nn.Conv3d(widths[0], 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        skips = []
        for shrink, down in zip(self.shrink, self.down, strict=True):
            skips.append(x)
            x = down(shrink(x))
        for grow, up in zip(self.grow, self.up, strict=True):
            x = up(torch.cat((skips.pop(), grow(x)), dim=1))
        return self.head(x)


def build(scale: Scale) -> Workload:
    size = SIZES[scale]

    def batch() -> Batch:
        voxels = torch.randn(size.batch, 1, size.volume, size.volume, size.volume)
        return voxels, (voxels > 0).float()

    return Workload(
        model=UNet3d(size),
        batch=batch,
        loss=lambda model, voxels, mask: F.binary_cross_entropy_with_logits(model(voxels), mask),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        requests=size.requests,
        infer_cap_share=0.7,
    )
