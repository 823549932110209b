"""Other ways to train in less GPU memory, to compare LMS with."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from compiled_models import checkpoint
from workloads import blocks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peer:
    """Once for a model, and around each of its forward passes."""

    prepare: Callable[[Any], None] = lambda model: None
    around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext


def _checkpoint_blocks(model: Any) -> None:
    for block in blocks(model):
        checkpoint(block)


def _save_on_cpu() -> AbstractContextManager[Any]:
    import torch

    return torch.autograd.graph.save_on_cpu(pin_memory=True)


class _Offload:
    """TRL's offloading, which overlaps transfers with compute."""

    def __init__(self) -> None:
        self.context: Any = None

    def prepare(self, model: Any) -> None:
        from trl.models.activation_offloading import get_act_offloading_ctx_manager

        self.context = get_act_offloading_ctx_manager(model, warn_if_no_head=False)

    def around(self) -> AbstractContextManager[Any]:
        return self.context


def _offload() -> Peer:
    offload = _Offload()
    return Peer(prepare=offload.prepare, around=offload.around)


PEERS: dict[str, Callable[[], Peer]] = {
    "save_on_cpu": lambda: Peer(around=_save_on_cpu),
    "TRL's offloading": _offload,
    "checkpoints": lambda: Peer(prepare=_checkpoint_blocks),
}
