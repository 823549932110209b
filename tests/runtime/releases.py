"""Features of the torch under test, for tests of what only some releases have."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])
TensorBase: Any = getattr(torch._C, "TensorBase", None) or torch._C._TensorBase


def since(release: tuple[int, int], what: str) -> pytest.MarkDecorator:
    """Skips a test of a feature that older releases do not have."""
    reason = f"PyTorch {torch.__version__.split('+')[0]} has no {what}"
    return pytest.mark.skipif(release > RELEASE, reason=reason)


def untyped_storage(tensor: torch.Tensor) -> Any:
    if hasattr(tensor, "untyped_storage"):
        return tensor.untyped_storage()
    return tensor._storage()  # type: ignore[attr-defined]


def size_of(tensor: torch.Tensor) -> int:
    """The size of a tensor in bytes."""
    return tensor.numel() * tensor.element_size()


def scoped_library(namespace: str, kind: str = "DEF") -> Any:
    """A library of operators that are removed at the end of a ``with`` block."""
    if hasattr(torch.library, "_scoped_library"):
        return torch.library._scoped_library(namespace, kind)
    return contextlib.nullcontext(torch.library.Library(namespace, kind))
