"""Says where a planned iteration's stream stands still, and what the host did in that time.

    python tests/gpu/idle.py --out DIR [--workloads NAME ...] [--iterations N]

needs a GPU, a torch with Large Model Support, torchvision, transformers and rich. Trains as
planned.py does, with each workload at its first limit, profiles one iteration in memory and one
that is planned, and prints a table. idle.json has all of it, and the traces are beside it, for
Perfetto.

A kernel that was launched before the stream was free waited for an event: a copy, as a rule. One
that was launched later waited for the host, and the table names the calls of CUDA in which the host
was longest in such times. What the host does outside of CUDA's calls has no name here.

A second table has the time of the program's own kernels, of LMS's checks on its stream, and of its
waits for events, by what went on meanwhile: "out" is a copy to the host, or a kernel that packs.

A third table has those kernels of the program that lose most time to the plan, and which transfers
ran meanwhile. A fourth one has the rates of large copies, by the other streams which had work
queued meanwhile, running or waiting: "hash" is the one on which LMS hashes what it pages out on
demand.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import determinism
import machine
import processes
import report
from planned import ENVIRONMENT, LIBRARIES, REPEATED, Training, counted
from profiles import slower, summary
from workloads import WORKLOADS

SHOWN = 16  # kernels that take longer


def profiled(training: Training, trace: Path) -> list[dict[str, Any]]:
    """The events of one iteration, as torch.profiler writes them; times in microseconds."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        training.step().item()
    profiler.export_chrome_trace(str(trace))
    with gzip.open(trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def measure(name: str, part: float, iterations: int, folder: Path) -> dict[str, Any]:
    import torch

    determinism.turn_on()
    workload = WORKLOADS[name]
    training = Training(workload)
    for _ in range(4):
        training.step().item()
    peak = torch.cuda.max_memory_allocated()
    in_memory = profiled(training, folder / f"{name}-in-memory.json.gz")
    found = {"in memory": summary(in_memory)}
    del training
    torch.cuda.empty_cache()
    import torch.cuda.lms

    torch.cuda.set_enabled_lms(True)
    torch.cuda.set_limit_lms(int(part * peak))
    torch.cuda.lms.set_planning(True)
    training = Training(workload)
    for _ in range(iterations):
        training.step().item()
    before = torch.cuda.lms.stats() | counted(True)
    events = profiled(training, folder / f"{name}-planned.json.gz")
    after = torch.cuda.lms.stats() | counted(True)
    found["planned"] = {**summary(events), REPEATED: after[REPEATED] - before[REPEATED]}
    found["planned"]["slower"] = [asdict(kernel) for kernel in slower(in_memory, events)[:SHOWN]]
    found["planned"]["stats"] = {
        key: value - before[key]
        for key, value in after.items()
        if isinstance(value, int) and not key.endswith("_peak") and value != before[key]
    }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--iterations", type=int, default=24, help="before the profiled one")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--part", type=float, help="of the peak (default: each workload's first)")
    arguments = parser.parse_args()
    tables: dict[str, list[dict[str, str]]] = {"Gaps": [], "The program's stream": []}
    data = {}
    arguments.out.mkdir(parents=True, exist_ok=True)
    server = processes.Server(ENVIRONMENT, LIBRARIES)
    for name in arguments.workloads:
        part = arguments.part or WORKLOADS[name].limits[0]
        data[name] = server.run(measure, name, part, arguments.iterations, arguments.out)
        if data[name] is None:
            return 1
        for mode, found in data[name].items():
            numbers = ("ms", "kernels", "event", "host", "event, short", "host, short")
            tables["Gaps"].append(
                {
                    "workload": f"{name} {part}" if mode == "in memory" else "",
                    "mode": mode,
                    **{number: f"{found[number]:.1f}" for number in numbers},
                    "repeated requests": str(found.get(REPEATED, 0)),
                    "calls in gaps": ", ".join(
                        f"{call} {ms:.1f}" for call, ms in list(found["calls"].items())[:3]
                    ),
                }
            )
            tables["The program's stream"].append(
                {
                    "workload": f"{name} {part}" if mode == "in memory" else "",
                    "mode": mode,
                    **{cause: f"{ms:.1f}" for cause, ms in found["shares"].items()},
                }
            )
        tables[f"Kernels that take longer, {name} {part}"] = [
            {
                "kernel": kernel["name"][:60],
                "at ms": f"{kernel['at']:.1f}",
                "in memory": f"{kernel['before']:.2f}",
                "longer": f"{kernel['after'] - kernel['before']:.2f}",
                "beside": kernel["beside"],
            }
            for kernel in data[name]["planned"]["slower"]
        ]
        tables[f"Large copies, {name} {part}"] = data[name]["planned"]["rates"]
    title = "Where the program's stream stands still, milliseconds in one iteration"
    report.write(arguments.out, "idle", title, machine.describe(), tables, data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
