"""The workloads as functions for `lmsbuild trace`, which needs no GPU.

cd tests/gpu
lmsbuild trace faked:resnet50 --gpu h200 --out resnet50.json.gz
lmsbuild simulate resnet50.json.gz --gpu-memory 12.02G --link pcie5
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workloads import WORKLOADS


def _training(name: str) -> Callable[[], None]:
    import torch

    workload = WORKLOADS[name]
    model, loss = workload.build()
    optimizer: Any = workload.optimizer(model.parameters())

    def iteration() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            found = loss()
        found.backward()
        optimizer.step()

    return iteration


def resnet50() -> Callable[[], None]:
    return _training("resnet50")


def vit_l() -> Callable[[], None]:
    return _training("vit_l")


def llama() -> Callable[[], None]:
    return _training("llama")


def unet3d() -> Callable[[], None]:
    return _training("unet3d")
