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

A third table has the rates of large copies, by the other streams which had work queued meanwhile,
running or waiting: "hash" is the one on which LMS hashes what it pages out on demand.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import determinism
import machine
import processes
import report
from planned import ENVIRONMENT, LIBRARIES, REPEATED, Training, counted
from workloads import WORKLOADS

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
ON_HOST = ("cuda_runtime", "cuda_driver")
LONG = 1e3  # microseconds: a gap of this length is listed by itself
LARGE = 50e6  # bytes: the rate of such a copy is its own, not that of its start
ROLES = {"lms_hash": "hash", "lms_pack": "out", "DtoH": "out", "lms_unpack": "in", "HtoD": "in"}


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


def launched(events: Sequence[dict[str, Any]]) -> dict[int, float]:
    """When the host launched what ran on the device, by correlation."""
    return {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ON_HOST and "correlation" in event.get("args", {})
    }


def role(name: str) -> str:
    """What a stream is for, from the name of what runs there."""
    return next((role for part, role in ROLES.items() if part in name), "program")


def program_stream(device: Sequence[dict[str, Any]]) -> int:
    busy: collections.Counter[int] = collections.Counter()
    for event in device:
        # Kernels that pack run as long as a transfer.
        if event["cat"] == "kernel" and role(event["name"]) == "program":
            busy[event["args"]["stream"]] += event["dur"]
    return busy.most_common(1)[0][0]


def gaps(events: Sequence[dict[str, Any]]) -> Iterator[tuple[float, float, float]]:
    """(begin, end, launch of what ends it) of times in which the program's stream has nothing."""
    device = [event for event in events if event.get("cat") in ON_DEVICE]
    stream = program_stream(device)
    launches = launched(events)
    ran = sorted(
        (event["ts"], event["ts"] + event["dur"], launches.get(event["args"]["correlation"], 0.0))
        for event in device
        if event["args"]["stream"] == stream
    )
    free = min(event["ts"] for event in events if event.get("cat") in ON_HOST)
    for begin, end, launch in ran:
        if begin > free:
            yield free, begin, launch
        free = max(free, end)


def shares(events: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Milliseconds of the program's stream: operators, checks, and waits for events by cause."""
    device = [event for event in events if event.get("cat") in ON_DEVICE]
    stream = program_stream(device)
    found = {"operators": 0.0, "checks": 0.0, "waits, out": 0.0, "waits, in": 0.0, "waits": 0.0}
    others: dict[str, list[dict[str, Any]]] = {"out": [], "in": []}
    for event in device:
        if event["args"]["stream"] == stream:
            found["checks" if event["name"].startswith("lms_") else "operators"] += event["dur"]
        elif role(event["name"]) in others:
            others[role(event["name"])].append(event)
    for begin, end, launch in gaps(events):
        if launch <= begin:
            meanwhile = {
                way: sum(overlap(event, begin, end) for event in moves)
                for way, moves in others.items()
            }
            way = max(meanwhile, key=lambda way: meanwhile[way])
            cause = f"waits, {way}" if 2 * meanwhile[way] > end - begin else "waits"
            found[cause] += end - begin
    return {name: value / 1e3 for name, value in found.items()}


def rates(events: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """GB/s of large copies, by direction and by the other streams that had work meanwhile."""
    device = sorted(
        (event for event in events if event.get("cat") in ON_DEVICE), key=lambda event: event["ts"]
    )
    launches = launched(events)
    streams: dict[int, list[dict[str, Any]]] = {}
    for event in device:
        streams.setdefault(event["args"]["stream"], []).append(event)
    roles = {
        stream: collections.Counter(role(event["name"]) for event in queued).most_common(1)[0][0]
        for stream, queued in streams.items()
    }

    def queued(stream: int, time: float) -> bool:
        """Whether something ran on the stream, or had been launched and waited."""
        ends = (event for event in streams[stream] if event["ts"] + event["dur"] > time)
        later = next(ends, None)
        return later is not None and launches.get(later["args"]["correlation"], later["ts"]) < time

    found: dict[tuple[str, str], list[float]] = {}
    for event in device:
        size = event["args"].get("bytes", 0)
        if event["cat"] != "gpu_memcpy" or size < LARGE or role(event["name"]) == "program":
            continue
        middle = event["ts"] + event["dur"] / 2
        others = streams.keys() - {event["args"]["stream"]}
        beside = {roles[stream] for stream in others if queued(stream, middle)}
        key = (role(event["name"]), ", ".join(sorted(beside)))
        found.setdefault(key, []).append(size / event["dur"] / 1e3)
    return [
        {
            "copies": way,
            "beside": beside,
            "number": str(len(values)),
            "GB/s, median": f"{statistics.median(values):.1f}",
            "from, to": f"{min(values):.1f}, {max(values):.1f}",
        }
        for (way, beside), values in sorted(found.items(), key=lambda item: -len(item[1]))
    ]


def overlap(event: dict[str, Any], begin: float, end: float) -> float:
    return float(max(0.0, min(event["ts"] + event["dur"], end) - max(event["ts"], begin)))


def summary(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Milliseconds by cause, the host's calls in gaps, and the long gaps."""
    host = [event for event in events if event.get("cat") in ON_HOST]
    device = [event for event in events if event.get("cat") in ON_DEVICE]
    first = min(event["ts"] for event in host)
    kernels = sum(event["dur"] for event in device if event["cat"] == "kernel")
    found = {"kernels": kernels, "event": 0.0, "host": 0.0, "host, short": 0.0, "event, short": 0.0}
    calls: collections.Counter[str] = collections.Counter()
    long = []
    for begin, end, launch in gaps(events):
        cause = "host" if launch > begin else "event"
        inside: collections.Counter[str] = collections.Counter()
        short = "" if end - begin >= LONG else ", short"
        found[cause + short] += end - begin
        if cause == "host":
            for event in host:
                inside[event["name"]] += overlap(event, begin, min(launch, end))
            calls.update(inside)
        if not short:
            top = {name: round(t / 1e3, 2) for name, t in inside.most_common(4) if t > 10}
            long.append(
                {"at": (begin - first) / 1e3, "ms": (end - begin) / 1e3, "cause": cause, **top}
            )
    copies = {}
    for name in ("DtoH", "HtoD"):
        times = [
            (event["ts"], event["ts"] + event["dur"])
            for event in device
            if event["cat"] == "gpu_memcpy" and name in event["name"]
        ]
        if times:
            begin, end = min(t[0] for t in times), max(t[1] for t in times)
            total = sum(b - a for a, b in times)
            copies[name] = [round(x / 1e3, 1) for x in (total, begin - first, end - first)]
    everything = max(event["ts"] + event["dur"] for event in (*host, *device))
    return {
        "ms": (everything - first) / 1e3,
        **{name: value / 1e3 for name, value in found.items()},
        "calls": {name: round(t / 1e3, 2) for name, t in calls.most_common(10)},
        "all calls": {
            name: [count, round(t / 1e3, 1)] for name, (count, t) in totals(host).items()
        },
        "copies": copies,
        "shares": shares(events),
        "rates": rates(events),
        "long": sorted(long, key=lambda gap: -gap["ms"])[:25],
    }


def totals(events: Sequence[dict[str, Any]]) -> dict[str, tuple[int, float]]:
    """How often each was called, and how long they took together; the longest first."""
    found: dict[str, tuple[int, float]] = {}
    for event in events:
        count, time = found.get(event["name"], (0, 0.0))
        found[event["name"]] = (count + 1, time + event["dur"])
    return dict(sorted(found.items(), key=lambda item: -item[1][1])[:14])


def measure(name: str, part: float, iterations: int, folder: Path) -> dict[str, Any]:
    import torch

    determinism.turn_on()
    workload = WORKLOADS[name]
    training = Training(workload)
    for _ in range(4):
        training.step().item()
    peak = torch.cuda.max_memory_allocated()
    found = {"in memory": summary(profiled(training, folder / f"{name}-in-memory.json.gz"))}
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
        tables[f"Large copies, {name} {part}"] = data[name]["planned"]["rates"]
    title = "Where the program's stream stands still, milliseconds in one iteration"
    report.write(arguments.out, "idle", title, machine.describe(), tables, data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
