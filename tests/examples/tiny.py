"""A model for many_models.py: `--arch tiny:net`. Its parameters are small."""

from __future__ import annotations

import atexit
import json
import os
from pathlib import Path

from torch import nn


def net() -> nn.Module:
    layers: list[nn.Module] = []
    for channels in (3, *[16] * 5):
        layers += [nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    if "RANK" in os.environ:
        atexit.register(write, model)
    return model


def write(model: nn.Module) -> None:
    """Leaves the parameters that a process of torchrun ends with."""
    values = [parameter.tolist() for parameter in model.parameters()]
    Path(f"parameters{os.environ['RANK']}.json").write_text(json.dumps(values))


def counts(image_size: int = 0) -> nn.Module:
    """Knows how large images are."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * image_size**2, 10))
