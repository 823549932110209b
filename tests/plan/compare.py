"""Prints what plans are expected to do for shapes of training, beside on demand and the bounds.

python tests/plan/compare.py            # every shape
python tests/plan/compare.py --speed    # how long planning takes
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from planner import Machine, Planner, Trace, compile_planner
from shapes import chain, events, living, llama, lowest_limit, random_trace, resnet, unet

GB = 1e9
OUT_RATE, IN_RATE, OVERHEAD = 52e9, 55e9, 10e-6  # an H200's, docs/results

SHAPES: list[tuple[str, Trace, list[float]]] = [
    ("ResNet-50", resnet(), [20.0, 16.3, 12.0]),
    ("Llama 1.6B", llama(), [64.9, 45.8]),
    ("3D U-Net", unet(), [5.4, 4.8, 4.2, 3.6, 3.0, 2.4]),
]


def machine(limit: float) -> Machine:
    return Machine(int(limit), OUT_RATE, IN_RATE, OVERHEAD)


def compare(planner: Planner) -> None:
    print("peak, limit and bytes out/in with their bounds in GB; times in ms; ratio: plan to bound")
    print("shape       peak  limit  in memory  on demand   plan  bound  ratio  out/in  bounds")
    for name, trace, limits in SHAPES:
        for limit in limits:
            plan = planner.plan(trace, machine(limit * GB))
            demand = planner.on_demand(trace, machine(limit * GB))
            print(
                f"{name:10}  {max(living(trace)) / GB:4.1f}  {limit:5.1f}"
                f"  {sum(trace.seconds) * 1e3:9.0f}  {demand.seconds * 1e3:9.0f}"
                f"  {plan.seconds * 1e3:5.0f}  {plan.bound_seconds * 1e3:5.0f}"
                f"  {plan.seconds / plan.bound_seconds:5.3f}"
                f"  {plan.bytes_out / GB:4.2f}/{plan.bytes_in / GB:4.2f}"
                f"  {plan.bound_out / GB:5.2f}/{plan.bound_in / GB:4.2f}"
            )


def speed(planner: Planner) -> None:
    generator = random.Random(1)
    long = chain([1e8] * 1000, [1e-3] * 1000, parameters=[1e7] * 1000, states=2)
    traces = {
        "ResNet-50": (resnet(), 12.0 * GB),
        "Llama 1.6B": (llama(), 45.8 * GB),
        "1,000 layers, AdamW": (long, max(living(long)) / 2),
    }
    for blocks in (2200, 3500):
        trace = random_trace(generator, 3000, blocks, largest=10**6, uses=5)
        limit = (lowest_limit(trace) + max(living(trace))) / 2
        traces[f"random, {blocks:,} blocks"] = (trace, limit)
    for name, (trace, limit) in traces.items():
        seconds = planner.time(trace, machine(limit))
        print(f"{name:22}  {events(trace):6,} events  {seconds * 1e3:6.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--speed", action="store_true", help="how long planning takes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        planner = Planner(compile_planner(Path(folder), "-O2"))
        (speed if arguments.speed else compare)(planner)


if __name__ == "__main__":
    main()
