"""Other ways to train in less GPU memory, to compare LMS with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import compiled
from compiled_models import checkpoint
from workloads import blocks

Around = Callable[[], AbstractContextManager[Any]]
"""Makes what is around each forward pass."""


def _save_on_cpu(model: Any) -> Around:
    import torch

    return lambda: torch.autograd.graph.save_on_cpu(pin_memory=True)


def _offload(model: Any) -> Around:
    """TRL's offloading, which overlaps transfers with compute."""
    from trl.models.activation_offloading import get_act_offloading_ctx_manager

    context = get_act_offloading_ctx_manager(model, warn_if_no_head=False)
    return lambda: context


def _checkpoints(model: Any) -> Around:
    for block in blocks(model):
        checkpoint(block)
    return contextlib.nullcontext


def _compiled_offload(model: Any) -> Around:
    """PyTorch's own offloading of activations by compiled code, with its overlap."""
    compiled.offload(compiled.ROWS["overlap"].offload)
    model.compile()
    return contextlib.nullcontext


Peer = Callable[[Any], Around]
"""Prepares a model."""

PEERS: dict[str, Peer] = {
    "save_on_cpu": _save_on_cpu,
    "TRL's offloading": _offload,
    "checkpoints": _checkpoints,
    "compiled offloading": _compiled_offload,
}

OFFLOADERS = tuple(name for name in PEERS if name != "checkpoints")
"""Those that keep activations in host memory."""
