"""Converts results to a form that can be compared bit for bit."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_flatten


def as_bytes(results: Any) -> list[Any]:
    """Converts the tensors in nested results to type, shape and bytes; leaves the rest as it is."""

    def leaf_bytes(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        host = leaf.detach().cpu().contiguous()
        return host.dtype, tuple(host.shape), host.view(-1).view(torch.uint8).numpy().tobytes()

    return [leaf_bytes(leaf) for leaf in tree_flatten(results)[0]]
