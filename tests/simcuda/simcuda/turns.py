"""Iterations for scenarios that have a model of time (timing=1), with tensors of several sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

MIB = 1 << 20


class Turns:
    """Iterations that allocate tensors of these sizes (MiB), and use them in the other order.

    The first ``weights`` tensors are computed from others of their sizes, which outlive iterations.
    """

    def __init__(self, device: Any, sizes: Sequence[float], weights: int = 0) -> None:
        self._device = device
        self._sizes = sizes
        self._weights = [self._full(size, k) for k, size in enumerate(sizes[:weights])]

    @staticmethod
    def _full(size: float, value: float) -> Any:
        import torch

        return torch.full((int(size * MIB) // 4,), float(value), device="cuda")

    def _take(self, tensor: Any) -> Any:
        """An operator has returned this tensor: it takes 1 ms."""
        import torch

        self._device.takes(torch.cuda.current_stream().cuda_stream, 0, 1e-3, 20e-6)
        return tensor

    def run(self, number: int, at_the_peak: Callable[[], object] = lambda: None) -> float:
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
        beside = at_the_peak()
        while held:
            tensor = held.pop()
            gradient = self._take(tensor * 2)
            if len(held) < len(self._weights):
                self._take(self._weights[len(held)].add_(gradient, alpha=1e-3))
            sum_ = self._take(sum_ + (gradient[-1] + tensor[0]))
            del tensor, gradient
        del beside
        torch.cuda.lms.step()
        torch.cuda.lms._wait_for_plans()
        torch.cuda.synchronize()
        return float(sum_)


def turn_on(limit: float) -> None:
    """Turn LMS on, without compression, and with a limit in MiB. It keeps its plans."""
    import torch

    torch.cuda.set_limit_lms(int(limit * MIB))
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms.set_compression("off")
    torch.cuda.lms._keep_plans(True)


def counts() -> tuple[int, int, int]:
    """Requests that failed at first, storages moved on the device, and those that got places."""
    import torch

    lms = torch.cuda.lms.stats()
    native = torch.cuda.memory_stats()["num_alloc_retries"]
    return lms["out_of_memory_retries"] + native, lms["compacted_count"], lms["placed_count"]
