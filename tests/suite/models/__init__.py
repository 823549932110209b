"""The workloads, by name. Each module has `build(scale) -> Workload`."""

from __future__ import annotations

import importlib

from job import MODELS

from models.workload import Scale, Workload


def build(name: str, scale: Scale) -> Workload:
    """Raises ValueError for a name that is none of MODELS."""
    if name not in MODELS:
        raise ValueError(f"no model named {name!r}; there are {', '.join(MODELS)}")
    return importlib.import_module(f"models.{name}").build(scale)


__all__ = ["MODELS", "Scale", "Workload", "build"]
