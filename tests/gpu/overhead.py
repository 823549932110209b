"""What Large Model Support costs while everything fits: LMS off and on, in interleaved pairs.

    python tests/gpu/overhead.py --out DIR

needs a torch with LMS, torchvision and rich. Prints a table, and leaves overhead.json and
overhead.md in DIR. One process measures both, so that clocks and caches are the same for both.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
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


def never_on(step: Callable[[], None], *, count: int) -> list[float]:
    """Seconds of each step in a process where LMS has not been on yet."""
    import torch

    seconds = []
    for _ in range(count):
        torch.cuda.synchronize()
        started = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return seconds


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=128, help="of ResNet-50 (default: 128)")
    parser.add_argument("--operators", type=int, default=2000, help="in the loop of small ones")
    arguments = parser.parse_args()
    import torch

    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True
    cases = {
        f"ResNet-50, batch {arguments.batch}": (resnet(arguments.batch), 1),
        # 4 KB is below what LMS manages, 4 MB above.
        "add_, 1 Ki elements": (small_operators(arguments.operators, 1 << 10), arguments.operators),
        "add_, 1 Mi elements": (small_operators(arguments.operators, 1 << 20), arguments.operators),
    }
    rows, data = [], {}
    # All of these before LMS is first on: from then on its allocator tier stays in place.
    before = {
        name: never_on(step, count=arguments.pairs + 6)[6:] for name, (step, _) in cases.items()
    }
    for name, watch in itertools.product(cases, (False, True)):
        step, operators = cases[name]
        measured = pairs(step, count=arguments.pairs, warm_up=6, watch=watch)
        off = statistics.median(without for without, _ in measured)
        on = statistics.median(with_lms for _, with_lms in measured)
        extra = [with_lms - without for without, with_lms in measured]
        low, middle, high = statistics.quantiles(extra, n=4)
        unit, scale = ("ms", 1e3) if operators == 1 else ("µs/operator", 1e6 / operators)
        rows.append(
            {
                "": name,
                "LMS": "watching" if watch else "as it sees fit",
                "unit": unit,
                "never on": f"{statistics.median(before[name]) * scale:.3f}",
                "LMS off": f"{off * scale:.3f}",
                "LMS on": f"{on * scale:.3f}",
                "difference (median of pairs)": f"{middle * scale:+.3f}",
                "its quartiles": f"{low * scale:+.3f} to {high * scale:+.3f}",
                "share": f"{middle / off:+.2%}",
            }
        )
        data[f"{name}, watching" if watch else name] = {
            "operators": operators,
            "seconds_never_on": before[name],
            "seconds_off_on": measured,
        }
    report.write(
        arguments.out,
        "overhead",
        "LMS without memory pressure, against LMS off",
        machine.describe(),
        {f"{arguments.pairs} interleaved pairs": rows},
        data,
    )


if __name__ == "__main__":
    main()
