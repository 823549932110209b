"""A model for many_models.py: `--arch tiny:net`. Its parameters are small."""

from __future__ import annotations

from torch import nn


def net() -> nn.Module:
    layers: list[nn.Module] = []
    for channels in (3, *[16] * 5):
        layers += [nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def counts(image_size: int = 0) -> nn.Module:
    """Knows how large images are."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * image_size**2, 10))
