"""Measures how long a program's own small copies wait while large ones are queued.

    python tests/gpu/engine.py

needs a GPU and torch; LMS is not used. Queues copies of 4 GiB to pinned host memory on one stream,
or on several; if they take turns, each copy waits for the event of the one before it. Then it
queues matrix products on the default stream, and waits for them. What ``item()`` takes after that
is what a program waits for the queued copies. The last column is the rate of all copies.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time

import machine

TOTAL = 4 << 30  # bytes
REPEATED = 3


class Buffers:
    def __init__(self) -> None:
        import torch

        self.device = torch.empty(TOTAL, dtype=torch.uint8, device="cuda")
        self.host = torch.empty(TOTAL, dtype=torch.uint8, pin_memory=True)
        self.matrix = torch.ones(8192, 8192, dtype=torch.bfloat16, device="cuda")


def measure(
    buffers: Buffers, size: int, number: int, turns: bool, priority: int
) -> tuple[float, float]:
    """Seconds of item(), and of all."""
    import torch

    streams = [torch.cuda.Stream(priority=priority) for _ in range(number)]
    before = None
    torch.cuda.synchronize()
    began = time.perf_counter()
    for k, begin in enumerate(range(0, TOTAL, size)):
        with torch.cuda.stream(streams[k % number]):
            if turns and before is not None:
                before.wait()
            part = slice(begin, begin + size)
            buffers.host[part].copy_(buffers.device[part], non_blocking=True)
            before = torch.cuda.Event()
            before.record()
    product = buffers.matrix
    for _ in range(3):
        product = buffers.matrix @ buffers.matrix
    end = torch.cuda.Event()
    end.record()
    end.synchronize()
    computed = time.perf_counter()
    product[0, 0].item()
    read = time.perf_counter()
    torch.cuda.synchronize()
    return read - computed, time.perf_counter() - began


def main() -> int:
    for name, value in machine.describe().items():
        print(f"{name}: {value}")
    print("| MiB of a copy | streams | in turns | priority | item() ms | GB/s |")
    print("|---|---|---|---|---|---|")
    buffers = Buffers()
    ways = [(1, False), (2, False), (2, True), (3, True), (4, True)]
    for priority, size, (number, turns) in itertools.product((0, -5), (8, 64), ways):
        found = [measure(buffers, size << 20, number, turns, priority) for _ in range(1 + REPEATED)]
        item, total = (statistics.median(values) for values in zip(*found[1:], strict=True))
        how = "yes" if turns else "no"
        rate = TOTAL / total / 1e9
        print(f"| {size} | {number} | {how} | {priority} | {item * 1e3:.2f} | {rate:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
