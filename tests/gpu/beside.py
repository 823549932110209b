"""What it costs operators that data is packed or unpacked at the same time, on a real GPU.

    python tests/gpu/beside.py --out DIR [--threads N ...] [--blocks N ...] [--rates GB/s ...]

needs torch, rich and g++. Operators run on one stream, while transfers of one direction follow each
other on another one, which has the highest priority, as LMS's have. For plain copies, and for each
number of threads and of thread blocks, prints the GB/s of data that were transferred meanwhile, and
how much longer the operators took for each GB. The lower that is, the better, as long as the rate
is enough. A rate is the most bytes that a kernel writes to the host. Leaves beside.json and
beside.md in DIR.

On the simulated device it runs with small sizes, and its times mean nothing:
SIMCUDA_AUTO="mib=256 race=0" PYTHONPATH=tests/simcuda/auto python tests/gpu/beside.py --out DIR
    --mib 1 --size 4 --repeats 1
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import machine
import report
from codec import MIB, Case, samples
from kernels import preload, seconds

KINDS = ("bf16 dense", "bf16 after ReLU")
LEAST_SECONDS = 0.02  # that the operators take
HIGHEST = -3  # a priority; PyTorch takes the highest that there is


def operators(size: int) -> dict[str, Callable[[], object]]:
    """Of a 3D U-Net at full resolution, in bf16, and matrix products."""
    import torch

    x = torch.randn(1, 64, size, size, size, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(64, 64, 3, 3, 3, device="cuda", dtype=torch.bfloat16) * 0.01
    square = torch.randn(64 * size, 64 * size, device="cuda", dtype=torch.bfloat16)
    return {
        "products": lambda: torch.mm(square, square),
        "convolutions": lambda: torch.nn.functional.conv3d(x, weight, padding=1),
        "norms": lambda: torch.nn.functional.instance_norm(x).relu_(),
    }


def transfers(
    case: Case, threads: tuple[int, ...], blocks: tuple[int, ...], rates: tuple[float, ...]
) -> Iterator[Any]:
    """What they are called, and one of each direction: out and, if there is another way, in."""
    yield "copies", (case.copy_out, case.copy_in)
    for each, count in itertools.product(threads, blocks):
        case.packer.threads = each
        case.check(count)
        name = f"{each} x {count}"
        yield name, (partial(case.pack, count), partial(case.unpack, count))
        for rate in rates:
            case.packer.rate = rate * 1e9
            yield f"{name}, at most {rate:g} GB/s", (partial(case.pack, count),)
        case.packer.rate = 0
        ways = (partial(case.pack_staged, count), partial(case.unpack_staged, count))
        yield f"{name}, staged", ways


def together(operate: Callable[[], object], alone: float, case: Case, move: Any) -> dict[str, Any]:
    """GB/s that are moved, and the seconds for each GB that operators take longer.

    `alone` is what an operator takes without transfers, in seconds.
    """
    import torch

    count = 1 + int(LEAST_SECONDS / alone)
    stream = torch.cuda.Stream(priority=HIGHEST)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # Twice as many as the link could move meanwhile, if operators took no longer.
    moves = 2 + int(2 * count * alone / seconds(move, 2))
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        move()  # so that transfers are under way when the operators begin
        marks = [case.mark(stream)]
    torch.cuda.current_stream().wait_event(marks[0])
    begin.record()
    with torch.cuda.stream(stream):
        for _ in range(moves):
            move()
            marks.append(case.mark(stream))
    for _ in range(count):
        operate()
    end.record()
    torch.cuda.synchronize()
    took = begin.elapsed_time(end) / 1e3
    ends = [begin.elapsed_time(mark) / 1e3 for mark in marks]
    # Some may have ended before the operators began.
    within = [time for time in ends if 0 <= time <= took]
    enough = ends[-1] > took
    rate = (len(within) - 1) * case.size / (within[-1] - within[0]) / 1e9 if within[1:] else 0.0
    cost = max(0.0, took - count * alone) / (rate * took) if rate else float("nan")
    longer = took / (count * alone) - 1
    return {"rate": rate, "cost": cost, "longer": longer, "enough": enough, "ends": ends}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--threads", type=int, nargs="+", default=(256, 512, 768))
    parser.add_argument("--blocks", type=int, nargs="+", default=(6, 10, 16, 24, 32))
    parser.add_argument("--rates", type=float, nargs="*", default=(38, 41, 44, 47))
    parser.add_argument("--mib", type=int, default=64, help="data of a transfer (64)")
    parser.add_argument("--size", type=int, default=128, help="of the volumes (128)")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    preload()
    from packer import Packer, load

    found: dict[str, Any] = {}
    tables: dict[str, list[dict[str, str]]] = {}
    with tempfile.TemporaryDirectory(prefix="lms-beside-") as work:
        os.environ["PYTORCH_KERNEL_CACHE_PATH"] = work
        library = load(Path(work), "-O2")
        with Packer(library) as packer:
            works = operators(arguments.size)
            alone = {name: seconds(operate, arguments.repeats) for name, operate in works.items()}
            for kind in KINDS:
                case = Case(packer, kind, *samples(arguments.mib * MIB)[kind])
                rows = found[kind] = {}
                numbers = (arguments.threads, arguments.blocks, arguments.rates)
                ways = transfers(case, *map(tuple, numbers))
                for name, moves in ways:
                    row = rows[name] = {}
                    for way, move in zip(("out", "in"), moves, strict=False):
                        for what, operate in works.items():
                            cell = together(operate, alone[what], case, move)
                            row[f"{what}, {way}"] = cell
                tables[f"{kind}: GB/s, and ms for each GB"] = [
                    {
                        "threads x blocks": name,
                        **{at: f"{c['rate']:.0f}, {c['cost'] * 1e3:.2f}" for at, c in row.items()},
                    }
                    for name, row in rows.items()
                ]
    title = "Operators beside transfers"
    results = {"alone": alone, "beside": found}
    report.write(arguments.out, "beside", title, machine.describe(), tables, results)


if __name__ == "__main__":
    main()
