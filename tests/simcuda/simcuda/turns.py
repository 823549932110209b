"""Iterations for scenarios that have a model of time (timing=1), with tensors of several sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simcuda.hill import end, operate

MIB = 1 << 20


class Turns:
    """Iterations that allocate tensors of these sizes (MiB), and use them in the other order.

    The first ``weights`` tensors are computed from others of their sizes, which outlive iterations.
    With a period, there are small tensors at the peak, too: one more in each iteration of it.
    """

    def __init__(
        self, device: Any, sizes: Sequence[float], weights: int = 0, period: int = 0
    ) -> None:
        self._device = device
        self._period = period
        self._sizes = sizes
        self._weights = [self._full(size, k) for k, size in enumerate(sizes[:weights])]

    @staticmethod
    def _full(size: float, value: float) -> Any:
        import torch

        return torch.full((int(size * MIB) // 4,), float(value), device="cuda")

    def _take(self, tensor: Any) -> Any:
        operate(self._device)
        return tensor

    def run(self, number: int) -> float:
        """Run one iteration; waits for the device, and for the plan.

        Returns a number that depends on the values of all tensors, and on `number`.
        """
        import torch

        held = []
        sum_ = torch.zeros((), device="cuda")
        for k, size in enumerate(self._sizes):
            outlives = k < len(self._weights)
            held.append(
                self._take(self._weights[k] * 2 if outlives else self._full(size, k + number))
            )
        count = number % self._period if self._period else 0
        small = [torch.ones(1 << 17, device="cuda") for _ in range(count)]
        while held:
            tensor = held.pop()
            gradient = self._take(tensor * 2)
            if len(held) < len(self._weights):
                self._take(self._weights[len(held)].add_(gradient, alpha=1e-3))
            sum_ = self._take(sum_ + (gradient[-1] + tensor[0]))
            del tensor, gradient
        del small
        end()
        return float(sum_)


def turn_on(limit: float) -> None:
    """Turn LMS on, without compression, and with a limit in MiB. It keeps its plans."""
    import torch

    torch.cuda.set_limit_lms(int(limit * MIB))
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms.set_compression("off")
    torch.cuda.lms._keep_plans(True)


def retries() -> int:
    """Requests that failed at first, also within PyTorch's allocator."""
    import torch

    native = torch.cuda.memory_stats()["num_alloc_retries"]
    return torch.cuda.lms.stats()["out_of_memory_retries"] + native


def counts() -> tuple[int, int, int]:
    """retries(), storages that were moved on the device, and those that got their places."""
    import torch

    lms = torch.cuda.lms.stats()
    return retries(), lms["compacted_count"], lms["placed_count"]
