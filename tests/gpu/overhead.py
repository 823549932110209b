"""What Large Model Support costs while everything fits, in interleaved pairs.

    python tests/gpu/overhead.py --out DIR

needs a torch with LMS, Triton, torchvision and rich. Prints two tables, and leaves overhead.json
and overhead.md in DIR. The first compares LMS off and on in one process, so that clocks and caches
are the same for both. But LMS off costs something once it was on: the second compares processes
that have it on with processes that never had, which take turns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import machine
import report


def resnet(batch: int) -> Callable[[], None]:
    """A training step whose time is the GPU's."""
    import torch
    import torchvision
    from torch.nn import functional as F

    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch,), device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def small_operators(count: int, elements: int) -> Callable[[], None]:
    """A loop of in-place additions whose time is the CPU's."""
    import torch

    x = torch.zeros(elements, device="cuda")

    def step() -> None:
        for _ in range(count):
            x.add_(1)

    return step


def cases(
    batch: int, operators: int, wanted: Sequence[str]
) -> dict[str, tuple[Callable[[], None], int]]:
    """By name: a step, and how many operators are in it, or 1 when a whole step counts.

    A kernel that is launched is an operator, too. Only what has one of ``wanted`` in its name.
    """
    import launches
    import torch

    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True
    kernels = operators // launches.KERNELS * launches.KERNELS
    makers: dict[str, tuple[Callable[[], Callable[[], None]], int]] = {
        f"ResNet-50, batch {batch}": (lambda: resnet(batch), 1),
        # 4 KB is below what LMS manages, 4 MB above.
        "add_, 1 Ki elements": (lambda: small_operators(operators, 1 << 10), operators),
        "add_, 1 Mi elements": (lambda: small_operators(operators, 1 << 20), operators),
        "Triton kernel, three tensors": (lambda: launches.by_hand(kernels), kernels),
        "the same in compiled code": (lambda: launches.compiled(kernels), kernels),
    }
    return {
        name: (make(), count)
        for name, (make, count) in makers.items()
        if any(part in name for part in wanted)
    }


def alone(step: Callable[[], None], *, count: int) -> float:
    """Seconds of a step: the median in this process."""
    import torch

    seconds = []
    for _ in range(count + 6):
        torch.cuda.synchronize()
        started = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[6:])


def process_pairs(arguments: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Seconds of each case's step where LMS was never on, and where it is, by turns."""
    measured: dict[str, list[tuple[float, float]]] = {}
    for index in range(arguments.processes):
        seconds = {}
        for turn in ("never", "on") if index % 2 == 0 else ("on", "never"):
            command = [sys.executable, __file__, *sys.argv[1:], "--measure", turn]
            seconds[turn] = json.loads(subprocess.check_output(command, text=True))
        for name in seconds["on"]:
            both = (seconds["never"][name], seconds["on"][name])
            measured.setdefault(name, []).append(both)
    return measured


def pairs(
    step: Callable[[], None], *, count: int, warm_up: int, watch: bool
) -> list[tuple[float, float]]:
    """Seconds without and with LMS, one after the other; which goes first alternates.

    With `watch`, LMS looks at what operators use, as it does near the limit, or with one set.
    """
    import torch

    def timed(lms: bool) -> float:
        torch.cuda.set_enabled_lms(lms)
        if watch and lms:
            torch.cuda.lms._watch()
        step()  # the first one after switching meets storages that it does not know
        torch.cuda.synchronize()
        started = time.perf_counter()
        step()
        torch.cuda.synchronize()
        return time.perf_counter() - started

    for index in range(warm_up):
        timed(index % 2 == 1)
    measured = []
    for index in range(count):
        order = (False, True) if index % 2 == 0 else (True, False)
        seconds = {lms: timed(lms) for lms in order}
        measured.append((seconds[False], seconds[True]))
    torch.cuda.set_enabled_lms(False)
    return measured


def cells(
    name: str, measured: list[tuple[float, float]], operators: int, before: str, after: str
) -> dict[str, str]:
    """A row about seconds before and after."""
    first = statistics.median(one for one, _ in measured)
    second = statistics.median(other for _, other in measured)
    low, middle, high = statistics.quantiles([other - one for one, other in measured], n=4)
    unit, scale = ("ms", 1e3) if operators == 1 else ("µs/operator", 1e6 / operators)
    return {
        "": name,
        "unit": unit,
        before: f"{first * scale:.3f}",
        after: f"{second * scale:.3f}",
        "difference (median of pairs)": f"{middle * scale:+.3f}",
        "its quartiles": f"{low * scale:+.3f} to {high * scale:+.3f}",
        "share": f"{middle / first:+.2%}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--pairs", type=int, default=40, help="of steps in one process")
    parser.add_argument("--processes", type=int, default=12, help="pairs of processes")
    parser.add_argument("--batch", type=int, default=128, help="of ResNet-50 (default: 128)")
    parser.add_argument("--operators", type=int, default=2000, help="in the loop of small ones")
    parser.add_argument("--cases", nargs="+", default=[""], help="with one of these in their names")
    parser.add_argument("--measure", choices=("never", "on"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    import torch

    if arguments.measure == "on":
        torch.cuda.set_enabled_lms(True)
    steps = cases(arguments.batch, arguments.operators, arguments.cases)
    if arguments.measure:
        found = {name: alone(step, count=arguments.pairs) for name, (step, _) in steps.items()}
        print(json.dumps(found))
        return
    title = f"{arguments.pairs} pairs of steps in one process, LMS off and on"
    rows: dict[str, list[dict[str, str]]] = {title: []}
    data: dict[str, object] = {}
    for name, watch in itertools.product(steps, (False, True)):
        step, operators = steps[name]
        measured = pairs(step, count=arguments.pairs, warm_up=6, watch=watch)
        shown = f"{name}, watching" if watch else name
        rows[title].append(cells(shown, measured, operators, "LMS off", "LMS on"))
        data[shown] = {"operators": operators, "seconds_off_on": measured}
    if arguments.processes > 1:
        title = f"{arguments.processes} pairs of processes, LMS never on and on"
        by_name = process_pairs(arguments)
        rows[title] = [
            cells(name, by_name[name], operators, "never on", "on")
            for name, (_, operators) in steps.items()
        ]
        data["processes"] = by_name
    report.write(
        arguments.out,
        "overhead",
        "What LMS costs without memory pressure",
        machine.describe(),
        rows,
        data,
    )


if __name__ == "__main__":
    main()
