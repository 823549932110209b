"""An iteration for scenarios that have a model of time (timing=1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

COUNT = 14  # tensors, of 4 MiB


def constant(number: int) -> Any:
    """A tensor that shrinks to nearly nothing."""
    import torch

    return torch.full((1 << 20,), float(number), device="cuda")


def numbers(bits: int) -> Callable[[int], Any]:
    """What makes tensors of numbers of 32 bits that need so many."""
    import torch

    generator = torch.Generator().manual_seed(0)
    values = torch.randint(0, 1 << bits, (1 << 20,), generator=generator).to(torch.int32).cuda()
    return lambda _: values.bitwise_not()


def hill(
    device: Any,
    at_the_peak: Callable[[], object] = lambda: None,
    make: Callable[[int], Any] = constant,
) -> None:
    """Makes tensors with these numbers, uses them in the other order, and ends an iteration of LMS.

    Each of its 2 * COUNT operators takes 1 ms. Waits for the device, and for the plan.
    """
    held = []
    for number in range(COUNT):
        held.append(make(number))
        operate(device)
    at_the_peak()
    while held:
        held.pop().add_(1)
        operate(device)
    end()


def operate(device: Any) -> None:
    """The operator before takes 1 ms on the current stream, and 20 us of the host."""
    import torch

    device.takes(torch.cuda.current_stream().cuda_stream, 0, 1e-3, 20e-6)


def end() -> None:
    """End an iteration of LMS; waits for the device, and for the plan."""
    import torch

    torch.cuda.lms.step()
    torch.cuda.lms._wait_for_plans()
    torch.cuda.synchronize()
