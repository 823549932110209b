"""Steps of overhead.py that launch Triton's kernels, by hand and in compiled code."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

ELEMENTS = 1 << 12
KERNELS = 64  # of one compiled graph


@triton.jit
def add(a, b, result, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    total = tl.load(a + index, mask=mask) + tl.load(b + index, mask=mask)
    tl.store(result + index, total, mask=mask)


def by_hand(count: int) -> Callable[[], None]:
    """A loop of launches with three tensors, whose time is the CPU's."""
    a, b, result = (torch.zeros(ELEMENTS, device="cuda") for _ in range(3))

    def step() -> None:
        for _ in range(count):
            add[(1,)](a, b, result, ELEMENTS, BLOCK=ELEMENTS)

    return step


def compiled(count: int) -> Callable[[], None]:
    """The same in compiled code: a graph of KERNELS kernels, called as often as needed."""
    # Of different sizes, so that Inductor makes no kernel of two.
    sizes = [ELEMENTS + 128 * i for i in range(KERNELS)]
    tensors = [[torch.zeros(size, device="cuda") for size in sizes] for _ in range(3)]

    @torch.compile
    def graph(a: list[torch.Tensor], b: list[torch.Tensor], result: list[torch.Tensor]) -> None:
        for x, y, z in zip(a, b, result, strict=True):
            z.copy_(x + y)

    def step() -> None:
        for _ in range(count // KERNELS):
            graph(*tensors)

    return step
