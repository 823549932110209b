"""Layers whose activations are needed again, for tests of plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tensors import pattern


class Layers:
    """Layers of these sizes in MiB, each needed again in the backward pass.

    ``between`` is called between the two passes.
    """

    def __init__(
        self,
        sizes: Sequence[float],
        between: Callable[[], object] = lambda: None,
        activation: Callable[[torch.Tensor], torch.Tensor] = torch.sin,
    ) -> None:
        self.weights = [pattern(size, start=k) * 1e-3 for k, size in enumerate(sizes)]
        self.between = between
        self.activation = activation

    def run(self, start: int) -> torch.Tensor:
        kept = []
        x = torch.full((1,), float(start), device="cuda")
        for weight in self.weights:
            y = self.activation(weight + x)
            kept.append((weight, y))
            x = y.sum().reshape(1) * 1e-3
        self.between()
        total = torch.zeros(1, device="cuda")
        while kept:
            weight, y = kept.pop()
            gradient = torch.cos(y) * x
            weight.sub_(gradient, alpha=1e-4)
            total = total + gradient.sum()
            del weight, y, gradient
        torch.cuda.lms.step()
        return total
