"""What one iteration's profile says: the program's stream, its gaps, and copies beside it.

Events are those that torch.profiler writes for CUDA activities, with times in microseconds.
"""

from __future__ import annotations

import collections
import difflib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
ON_HOST = ("cuda_runtime", "cuda_driver")
LONG = 1e3  # microseconds: a gap of this length is listed by itself
NAME = 120  # characters of a kernel's name that are kept; templates have thousands
LARGE = 50e6  # bytes: the rate of such a copy is its own, not that of its start
ROLES = {"lms_hash": "hash", "lms_pack": "out", "DtoH": "out", "lms_unpack": "in", "HtoD": "in"}


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


def on_device(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """In the order of their times."""
    found = (event for event in events if event.get("cat") in ON_DEVICE)
    return sorted(found, key=lambda event: event["ts"])


def program_stream(device: Sequence[dict[str, Any]]) -> int:
    busy: collections.Counter[int] = collections.Counter()
    for event in device:
        # Kernels that pack run as long as a transfer.
        if event["cat"] == "kernel" and role(event["name"]) == "program":
            busy[event["args"]["stream"]] += event["dur"]
    return busy.most_common(1)[0][0]


def of_program(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What ran on the program's stream."""
    device = on_device(events)
    stream = program_stream(device)
    return [event for event in device if event["args"]["stream"] == stream]


@dataclass(frozen=True)
class Gap:
    """A time in which the program's stream has nothing to do."""

    begin: float
    end: float
    launch: float  # of what ends it

    @property
    def cause(self) -> str:
        return "host" if self.launch > self.begin else "event"


def gaps(events: Sequence[dict[str, Any]]) -> Iterator[Gap]:
    launches = launched(events)
    free = min(event["ts"] for event in events if event.get("cat") in ON_HOST)
    for event in of_program(events):
        begin = event["ts"]
        if begin > free:
            yield Gap(free, begin, launches.get(event["args"]["correlation"], 0.0))
        free = max(free, begin + event["dur"])


def shares(events: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Milliseconds of the program's stream: operators, checks, and waits for events by cause."""
    device = on_device(events)
    stream = program_stream(device)
    found = {"operators": 0.0, "checks": 0.0, "waits, out": 0.0, "waits, in": 0.0, "waits": 0.0}
    others: dict[str, list[dict[str, Any]]] = {"out": [], "in": []}
    for event in device:
        if event["args"]["stream"] == stream:
            found["checks" if event["name"].startswith("lms_") else "operators"] += event["dur"]
        elif role(event["name"]) in others:
            others[role(event["name"])].append(event)
    for gap in gaps(events):
        if gap.cause == "event":
            meanwhile = {
                way: sum(overlap(event, gap.begin, gap.end) for event in moves)
                for way, moves in others.items()
            }
            way = max(meanwhile, key=lambda way: meanwhile[way])
            cause = f"waits, {way}" if 2 * meanwhile[way] > gap.end - gap.begin else "waits"
            found[cause] += gap.end - gap.begin
    return {name: value / 1e3 for name, value in found.items()}


def rates(events: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """GB/s of large copies, by direction and by the other streams that had work meanwhile."""
    device = on_device(events)
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
    device = on_device(events)
    first = min(event["ts"] for event in host)
    kernels = sum(event["dur"] for event in device if event["cat"] == "kernel")
    found = {"kernels": kernels, "event": 0.0, "host": 0.0, "host, short": 0.0, "event, short": 0.0}
    calls: collections.Counter[str] = collections.Counter()
    long = []
    for gap in gaps(events):
        inside: collections.Counter[str] = collections.Counter()
        took = gap.end - gap.begin
        short = "" if took >= LONG else ", short"
        found[gap.cause + short] += took
        if gap.cause == "host":
            for event in host:
                inside[event["name"]] += overlap(event, gap.begin, min(gap.launch, gap.end))
            calls.update(inside)
        if not short:
            top = {name: round(t / 1e3, 2) for name, t in inside.most_common(4) if t > 10}
            long.append(
                {"at": (gap.begin - first) / 1e3, "ms": took / 1e3, "cause": gap.cause, **top}
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


@dataclass(frozen=True)
class Slower:
    """A kernel of the program, and what it took in two iterations."""

    name: str  # of the function, with the first of its parameters
    at: float  # milliseconds from the first kernel of the second iteration on
    before: float  # milliseconds
    after: float
    beside: str  # the directions of the transfers that ran meanwhile, in the second one


def slower(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> list[Slower]:
    """The program's kernels, those first that take longer in the second iteration.

    Kernels are the same if they have the same name in the same order, so those of LMS are left out.
    """
    old, new = of_program(before), of_program(after)
    moves = [event for event in on_device(after) if role(event["name"]) in ("out", "in")]
    names = ([event["name"] for event in events] for events in (old, new))
    found = []
    for i, j, count in difflib.SequenceMatcher(None, *names, autojunk=False).get_matching_blocks():
        for a, b in zip(old[i : i + count], new[j : j + count], strict=True):
            end = b["ts"] + b["dur"]
            beside = {role(event["name"]) for event in moves if overlap(event, b["ts"], end) > 0}
            times = ((b["ts"] - new[0]["ts"]) / 1e3, a["dur"] / 1e3, b["dur"] / 1e3)
            found.append(Slower(b["name"][:NAME], *times, ", ".join(sorted(beside))))
    return sorted(found, key=lambda kernel: kernel.before - kernel.after)
