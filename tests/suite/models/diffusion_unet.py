"""A diffusion model's U-Net (Ho et al. 2020): skip connections, timesteps, attention."""

from __future__ import annotations

import dataclasses
import itertools
import math

import torch
from torch import nn
from torch.nn import functional as F

from models.workload import Batch, Scale, Workload

TIMESTEPS = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    width: int
    multipliers: tuple[int, ...]
    batch: int
    image: int
    requests: int


SIZES = {
    Scale.SIM: Size(width=16, multipliers=(1, 2, 2), batch=24, image=32, requests=48),
    Scale.GPU: Size(width=128, multipliers=(1, 2, 2, 4), batch=32, image=64, requests=384),
}


def embed(timesteps: torch.Tensor, width: int) -> torch.Tensor:
    """Sines and cosines of `width / 2` frequencies each."""
    half = width // 2
    steps = torch.arange(half, device=timesteps.device, dtype=torch.float32)
    angles = timesteps[:, None] * torch.exp(-math.log(10000) * steps / half)
    return torch.cat((angles.sin(), angles.cos()), dim=1)


class Residual(nn.Module):
    def __init__(self, channels: int, out: int, embedding: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(8, channels)
        self.conv1 = nn.Conv2d(channels, out, 3, padding=1)
        self.shift = nn.Linear(embedding, out)
        self.norm2 = nn.GroupNorm(8, out)
        self.dropout = nn.Dropout(0.1)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Identity() if channels == out else nn.Conv2d(channels, out, 1)

    def forward(self, x: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.shift(embedding)[:, :, None, None]
        return self.conv2(self.dropout(F.silu(self.norm2(y)))) + self.shortcut(x)


class Attention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).flatten(2).chunk(3, 1)
        weights = (q.transpose(1, 2) @ k / x.shape[1] ** 0.5).softmax(-1)
        return x + self.out((v @ weights.transpose(1, 2)).view_as(x))


class DiffusionUNet(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.width = size.width
        embedding = 4 * size.width
        self.time = nn.Sequential(
            nn.Linear(size.width, embedding), nn.SiLU(), nn.Linear(embedding, embedding)
        )
        widths = [size.width * multiplier for multiplier in size.multipliers]
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        self.down = nn.ModuleList()
        self.shrink = nn.ModuleList()
        self.grow = nn.ModuleList()
        self.up = nn.ModuleList()
        for fine, coarse in itertools.pairwise(widths):
            self.down.append(Residual(fine, fine, embedding))
            self.shrink.append(nn.Conv2d(fine, coarse, 3, stride=2, padding=1))
            self.grow.insert(0, nn.ConvTranspose2d(coarse, fine, 2, stride=2))
            self.up.insert(0, Residual(2 * fine, fine, embedding))
        self.middle1 = Residual(widths[-1], widths[-1], embedding)
        self.attention = Attention(widths[-1])
        self.middle2 = Residual(widths[-1], widths[-1], embedding)
        self.norm = nn.GroupNorm(8, widths[0])
        self.last = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, x: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        embedding = F.silu(self.time(embed(timesteps, self.width)))
        x = self.first(x)
        skips = []
        for down, shrink in zip(self.down, self.shrink, strict=True):
            x = down(x, embedding)
            skips.append(x)
            x = shrink(x)
        x = self.middle2(self.attention(self.middle1(x, embedding)), embedding)
        for grow, up in zip(self.grow, self.up, strict=True):
            x = up(torch.cat((skips.pop(), grow(x)), dim=1), embedding)
        return self.last(F.silu(self.norm(x)))


def loss(model: nn.Module, images: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
    """How well the model tells the noise that was added at a timestep (drawn on the device)."""
    noise = torch.randn_like(images)
    kept = torch.cos(timesteps * (math.pi / 2 / TIMESTEPS))[:, None, None, None]
    noisy = kept * images + (1 - kept * kept).sqrt() * noise
    return F.mse_loss(model(noisy, timesteps), noise)


def build(scale: Scale) -> Workload:
    size = SIZES[scale]

    def batch() -> Batch:
        images = torch.randn(size.batch, 3, size.image, size.image)
        return images, torch.randint(TIMESTEPS, (size.batch,)).float()

    return Workload(
        model=DiffusionUNet(size),
        batch=batch,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, foreach=False),
        inputs=2,
        requests=size.requests,
        # The simulated size is little more than one of the 20 MiB that PyTorch takes at a time.
        infer_cap_share=0.8,
    )
