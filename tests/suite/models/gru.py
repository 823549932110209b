"""The recurrent network of lstm.py with gated recurrent units."""

from __future__ import annotations

from torch import nn

from models.lstm import recurrent
from models.workload import Scale, Workload


def build(scale: Scale) -> Workload:
    return recurrent(nn.GRU, scale)
