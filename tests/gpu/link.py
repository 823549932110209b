"""Rates of copies to and from the host while other streams wait, on a real GPU.

    python tests/gpu/link.py [--out DIR]

needs torch and rich, but no LMS. A planned iteration copies at one of three rates, which differ by
10 % (docs/results/2026-11-26-runtime.md), and it is not known what sets the rate. Each row copies
the same bytes with something else going on; the rows take turns, and each shows its median and its
extremes. With --out, leaves link.json and link.md in DIR.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import machine
import report

COPY = 200_000_000  # bytes
COPIES = 15  # in a row, one after the other
TITLE = "Copies between the GPU and pinned host memory"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    title: str
    out: int = 0  # streams with a copy to the host that waits for the end of all
    into: int = 0  # the same, from the host
    kernels: int = 0  # streams with a kernel that waits for the end of all
    first: bool = False  # of the highest priority
    turns: int = 1  # streams that the copies change between, each waiting for the one before
    after: bool = False  # each copy waits for a kernel on another stream that reads its bytes
    busy: int = 0  # threads of the host that compute


ROWS = {
    "alone": Row(title="nothing else"),
    "out_waits": Row(title="a copy to the host waits", out=1),
    "outs_wait": Row(title="three copies to the host wait", out=3),
    "in_waits": Row(title="a copy from the host waits", into=1),
    "ins_wait": Row(title="three copies from the host wait", into=3),
    "both_wait": Row(title="one of each direction waits", out=1, into=1),
    "kernel_waits": Row(title="a kernel waits", kernels=1),
    "first_waits": Row(title="a kernel of the highest priority waits", kernels=1, first=True),
    "all_wait": Row(title="all of these wait", out=1, into=1, kernels=2, first=True),
    "turns": Row(title="two streams take turns", turns=2),
    "turns_wait": Row(title="two streams take turns, all others wait", turns=2, into=1, kernels=1),
    "after": Row(title="each copy waits for a kernel that reads its bytes", after=True),
    "after_first": Row(title="the same, of the highest priority", after=True, first=True),
    "after_turns": Row(
        title="the same, and two streams take turns, and all others wait",
        after=True,
        first=True,
        turns=2,
        into=1,
        kernels=1,
    ),
    "busy": Row(title="four threads of the host compute", busy=4),
}


class Copies:
    """Copies of the same blocks, to the host or from it."""

    def __init__(self) -> None:
        import torch

        self.device = [torch.ones(COPY, dtype=torch.uint8, device="cuda") for _ in range(COPIES)]
        self.host = [torch.ones(COPY, dtype=torch.uint8).pin_memory() for _ in range(COPIES)]
        self.small = torch.ones(1024, device="cuda")
        self.small_host = torch.ones(1024).pin_memory()
        self.streams = [torch.cuda.Stream() for _ in range(2)]
        self.waiting = [torch.cuda.Stream() for _ in range(8)]
        self.urgent = torch.cuda.Stream(priority=-10)  # as high as the device has them

    def rate(self, row: Row, outward: bool) -> float:
        """Bytes per second of the copies, from the first one's start to the last one's end."""
        import torch

        events = [torch.cuda.Event() for _ in range(2 * COPIES)]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        for i in range(COPIES):
            stream = self.streams[i % row.turns]
            if row.after:
                reader = self.urgent if row.first else self.waiting[-1]
                with torch.cuda.stream(reader):
                    self.device[i].sum()
                    events[COPIES + i].record()
                stream.wait_event(events[COPIES + i])
            if i:
                stream.wait_event(events[i - 1])
            with torch.cuda.stream(stream):
                if i == 0:
                    begin.record()  # not before what the first copy waits for
                target, source = self.host[i], self.device[i]
                (target if outward else source).copy_(
                    source if outward else target, non_blocking=True
                )
                events[i].record()
        with torch.cuda.stream(self.streams[(COPIES - 1) % row.turns]):
            end.record()
        self.let_wait(row, events[COPIES - 1])
        torch.cuda.synchronize()
        return COPY * COPIES / begin.elapsed_time(end) * 1e3

    def let_wait(self, row: Row, event: Any) -> None:
        import torch

        streams = iter(self.waiting)
        for number in range(row.out + row.into + row.kernels):
            kernel = number >= row.out + row.into
            stream = self.urgent if kernel and row.first else next(streams)
            stream.wait_event(event)
            with torch.cuda.stream(stream):
                if kernel:
                    self.small.add_(1)
                elif number < row.out:
                    self.small_host.copy_(self.small, non_blocking=True)
                else:
                    self.small.copy_(self.small_host, non_blocking=True)


@contextlib.contextmanager
def busy(threads: int) -> Iterator[None]:
    """Lets threads compute, without the GIL."""
    import torch

    ended = threading.Event()

    def work() -> None:
        matrix = torch.ones(256, 256)
        while not ended.is_set():
            torch.mm(matrix, matrix)

    started = [threading.Thread(target=work) for _ in range(threads)]
    for thread in started:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in started:
            thread.join()


def clocks() -> str:
    """The GPU's clocks now (MHz), and why they are not higher; empty if nobody says."""
    query = "clocks.sm,clocks.mem,clocks_event_reasons.active,pcie.link.gen.current"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def measure(rounds: int) -> dict[str, dict[str, Any]]:
    copies = Copies()
    found: dict[str, dict[str, Any]] = {name: {"out": [], "in": [], "clocks": []} for name in ROWS}
    for number in range(rounds + 1):
        for name, row in ROWS.items():
            with busy(row.busy):
                rates = {way: copies.rate(row, way == "out") for way in ("out", "in")}
                clock = clocks()
            if number:  # the first round warms up
                for way, rate in rates.items():
                    found[name][way].append(rate)
                found[name]["clocks"].append(clock)
    return found


def spread(rates: list[float]) -> str:
    low, middle, high = (f(rates) / 1e9 for f in (min, statistics.median, max))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=5, help="of all rows (default: 5)")
    arguments = parser.parse_args()
    found = measure(arguments.rounds)
    table = [
        {
            "": ROWS[name].title,
            "to the host, GB/s": spread(result["out"]),
            "from the host, GB/s": spread(result["in"]),
            "clocks": statistics.mode(result["clocks"]),
        }
        for name, result in found.items()
    ]
    tables = {f"{COPIES} copies of {COPY // 10**6} MB": table}
    if arguments.out:
        report.write(arguments.out, "link", TITLE, machine.describe(), tables, found)
    else:
        report.show(TITLE, machine.describe(), tables)


if __name__ == "__main__":
    main()
