"""Trains models at tight limits, on demand and planned, beside the bound of the link and peers.

    python tests/gpu/planned.py --out DIR [--workloads NAME ...] [--modes MODE ...] [--tightest]
        [--traces] [--resume]

needs a GPU, a torch with Large Model Support, torchvision, transformers and rich. Prints a table,
and leaves planned.json and planned.md in DIR, which have what was measured so far if it does not
end. Each workload is a process of its own. Exits 1 if losses with LMS differ from those in memory.

After all workloads, peers train without LMS on a GPU of the limit's size, for a few iterations,
each in a process of its own, too: when cuDNN gets no memory, it takes another algorithm, and keeps
to it for the rest of the process. A peer that leaves a fifth of a limit unused is not measured
with more memory. TRL's offloading needs trl. Offloading by compiled code keeps
nothing deterministic, see compiled.py.

An iteration ends when the host has read its loss, as in most training loops. Transfers may go on
beside the next one. The first iterations are on demand. Then come those that try compression, and
those that use less of the limit, until no new plan has been made for a while. "copied" is planned
without compression.

With --resume, what DIR/planned.json has is not measured again: peers may take longer than a GPU can
be had for. The table has the date and machine of each part.

With --traces, DIR has a trace of each workload in memory, too, for `lmsbuild simulate`.

The bound of an iteration is that of one hill: what is above the limit has to leave before the peak
and to come back after it, so an iteration takes at least max(forward, X / out) + max(backward and
optimizer, X / in), with X the bytes above the limit, and out and in the rates of copies of 1 GB.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import determinism
import machine
import processes
import report
from peers import OFFLOADERS, PEERS, Peer
from workloads import GB, WORKLOADS, Workload

MODES = ("on demand", "planned", "copied", *PEERS)
PEER_ITERATIONS = 4  # after the first, each does the same
ON_DEMAND_ITERATIONS = 4  # the same
MEMORY_ITERATIONS = 16  # the same
# Without a new plan: it is timed, LMS may return to an earlier one, and the last ones count.
QUIET_ITERATIONS = 12
MOST_ITERATIONS = 72
# Several threads pin what peers keep in host memory. One takes a second for each GB.
ENVIRONMENT = {
    "PYTORCH_ALLOC_CONF": "expandable_segments:True,pinned_use_cuda_host_register:True,"
    "pinned_num_register_threads:8",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
LIBRARIES = ("torch", "torchvision", "transformers.models.llama.modeling_llama")
COUNTS = ("page_out_bytes", "page_in_bytes", "planned_iterations", "plan_departures", "plans")
COUNTS += ("copied_ahead_count", "prefetch_count", "page_in_count", "out_of_memory_retries")
COUNTS += ("compressed_bytes", "compressed_written_bytes")
# Of PyTorch's allocator: found no memory, and freed what it had cached.
REPEATED = "num_alloc_retries"
# And how often it took memory from the driver and gave some back, which the host waits for.
NATIVE = (REPEATED, "num_device_alloc", "num_device_free")


class Training:
    """The same training from the same start each time."""

    def __init__(self, workload: Workload, peer: Peer | None = None) -> None:
        import torch

        torch.manual_seed(0)
        self.model, self.loss = workload.build()
        self.around = peer(self.model) if peer else contextlib.nullcontext
        self.optimizer = workload.optimizer and workload.optimizer(self.model.parameters())

    def forward(self) -> Any:
        import torch

        if self.optimizer:
            self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16), self.around():
            return self.loss()

    def step(self) -> Any:
        if not self.optimizer:
            return self.answer()
        loss = self.forward()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def answer(self) -> Any:
        """An iteration without an optimizer, of which LMS has to be told."""
        import torch.cuda.lms

        with torch.no_grad():
            result = self.forward()
        torch.cuda.lms.step()
        return result


def run(
    workload: Workload, iterations: int, *, lms: bool, peer: Peer | None = None, quiet: int = 0
) -> dict[str, Any]:
    """Trains for so many iterations, and until the last `quiet` ones had no new plan."""
    import torch

    training = Training(workload, peer)
    milliseconds, host, losses, counts, reserved = [], [], [], [], 0
    torch.cuda.synchronize()
    before = counted(lms)
    began = time.perf_counter()
    planned = 0  # number of the iteration that made the last plan
    for k in itertools.count():
        if k >= max(iterations, min(planned + quiet, MOST_ITERATIONS)):
            break
        loss = training.step()
        host.append((time.perf_counter() - began) * 1e3)
        # While the device works: between two iterations, it would wait for this.
        after = counted(lms)
        counts.append({name: after[name] - before[name] for name in after})
        planned = k + 1 if counts[-1]["plans"] else planned
        before = after
        reserved = max(reserved, torch.cuda.max_memory_reserved())
        losses.append(loss.item().hex())
        ended = time.perf_counter()
        milliseconds.append((ended - began) * 1e3)
        began = ended
        if k == 1:
            torch.cuda.reset_peak_memory_stats()
    result = {
        "milliseconds": milliseconds,
        "host_milliseconds": host,
        "losses": losses,
        "counts": counts,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }
    del training, loss
    gc.collect()
    torch.cuda.empty_cache()
    return result


def counted(lms: bool) -> dict[str, int]:
    """What LMS has counted, and PyTorch's allocator (NATIVE)."""
    import torch

    values = torch.cuda.lms.stats() if lms else {}
    values = {name: values.get(name, 0) for name in COUNTS}
    native = torch.cuda.memory_stats_as_nested_dict()
    return {**values, **{name: native.get(name, 0) for name in NATIVE}}


def measure_peer(name: str, mode: str, limit: int) -> dict[str, Any]:
    """Without LMS, on a GPU of the limit's size. A peer that cannot do it has an error."""
    import torch

    determinism.turn_on()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        return run(WORKLOADS[name], PEER_ITERATIONS, lms=False, peer=PEERS[mode])
    except torch.cuda.OutOfMemoryError:
        return {"error": "out of memory"}
    except Exception as error:  # of the peer, whatever it is
        return {"error": f"{type(error).__name__}: {error}".split("\n")[0][:100]}


def parts(workload: Workload) -> dict[str, float]:
    """Seconds of the forward pass, and of the rest. Empty if these are not the same each time."""
    import torch

    if workload.varying or not workload.optimizer:
        return {}
    training = Training(workload)
    seconds: dict[str, list[float]] = {"up": [], "down": []}
    for _ in range(6):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        marks[0].record()
        loss = training.forward()
        marks[1].record()
        loss.backward()
        training.optimizer.step()
        marks[2].record()
        torch.cuda.synchronize()
        seconds["up"].append(marks[0].elapsed_time(marks[1]) / 1e3)
        seconds["down"].append(marks[1].elapsed_time(marks[2]) / 1e3)
    del training, loss
    gc.collect()
    torch.cuda.empty_cache()
    return {name: statistics.median(values[2:]) for name, values in seconds.items()}


def bound(parts: dict[str, float], excess: int, speed: dict[str, float]) -> float:
    """Seconds of an iteration with one hill of memory at least; 0 without parts()."""
    if not parts:
        return 0
    return max(parts["up"], excess / speed["out"]) + max(parts["down"], excess / speed["in"])


def rates() -> dict[str, float]:
    """Bytes per second of copies of 1 GB between pinned host memory and the device."""
    import torch

    host = torch.empty(10**9, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(10**9, dtype=torch.uint8, device="cuda")
    found = {}
    for name, target, source in (("out", host, device), ("in", device, host)):
        times = []
        for _ in range(5):
            torch.cuda.synchronize()
            began = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        found[name] = 1e9 / min(times)
    return found


def record(training: Training, path: str | Path) -> None:
    """Turns LMS on, and writes a trace of three iterations. There has to be no limit."""
    import torch
    import torch.cuda.lms

    torch.cuda.set_enabled_lms(True)
    training.step()
    with torch.cuda.lms.record(path):
        for _ in range(3):
            training.step()


def iterations_of(workload: Workload, mode: str) -> int:
    """How many at least. Those of a workload whose iterations differ are the same in all modes."""
    if workload.varying:
        return workload.iterations
    alike = {"in memory": MEMORY_ITERATIONS, "on demand": ON_DEMAND_ITERATIONS}
    return min(workload.iterations, alike.get(mode, workload.iterations))


def quiet_of(workload: Workload, mode: str) -> int:
    """How many iterations with LMS have to be without a new plan in the end."""
    searches = workload.optimizer and not workload.varying and mode != "on demand"
    return QUIET_ITERATIONS if searches else 0


def measure(name: str, modes: Sequence[str], traces: Path | None, tightest: bool) -> dict[str, Any]:
    """In memory, and with LMS in each of the modes at each limit, or only at the smallest one."""
    import torch

    determinism.turn_on()
    workload = WORKLOADS[name]
    speed = rates()
    torch.cuda.empty_cache()
    found = {"rates": speed, "parts": parts(workload), "bounds": {}, "rows": []}
    memory = run(workload, iterations_of(workload, "in memory"), lms=False)
    found["memory"] = memory
    if traces:
        record(Training(workload), traces / f"{name}.json.gz")
        torch.cuda.set_enabled_lms(False)
        gc.collect()
        torch.cuda.empty_cache()
    import torch.cuda.lms

    for part in [min(workload.limits)] if tightest else workload.limits:
        limit = int(part * memory["peak_allocated_bytes"])
        excess = memory["peak_allocated_bytes"] - limit
        found["bounds"][limit] = bound(found["parts"], excess, speed)
        for mode in modes:
            torch.cuda.set_enabled_lms(True)
            torch.cuda.set_limit_lms(limit)
            torch.cuda.lms.set_planning(mode != "on demand")
            torch.cuda.lms.set_compression("off" if mode == "copied" else "auto")
            result = run(
                workload,
                iterations_of(workload, mode),
                lms=True,
                quiet=quiet_of(workload, mode),
            )
            torch.cuda.set_enabled_lms(False)
            torch.cuda.set_limit_lms(0)
            found["rows"].append({**result, "limit": limit, "mode": mode})
            print(name, limit, mode, *map(int, result["milliseconds"]), file=sys.stderr, flush=True)
    longest = max((len(row["losses"]) for row in found["rows"]), default=0)
    if longest > len(memory["losses"]):
        # All losses are compared. How many iterations LMS needs is known only now.
        memory["losses"] = run(workload, longest, lms=False)["losses"]
    return found


def cells(found: dict[str, Any], row: dict[str, Any], kept: int) -> dict[str, str]:
    reference = found["memory"]
    if "error" in row:
        # The columns are those of the row in memory.
        limit = f"{row['limit'] / GB:.2f}"
        known = {"limit GB": limit, "mode": row["mode"], "losses": row["error"]}
        return {**dict.fromkeys(cells(found, reference, kept), ""), **known}
    kept = min(kept, len(row["milliseconds"]) // 2)
    time = statistics.median(row["milliseconds"][-kept:])
    count = row["counts"][-1]
    repeated = [c[REPEATED] for c in row["counts"][-kept:]]
    least = found["bounds"].get(row.get("limit"), 0) * 1e3
    return {
        "limit GB": f"{row['limit'] / GB:.2f}" if "limit" in row else "none",
        "mode": mode_of(row),
        "ms": f"{time:.1f}",
        "mean": f"{statistics.mean(row['milliseconds'][-kept:]):.1f}",
        "host ms": f"{statistics.median(row['host_milliseconds'][-kept:]):.1f}",
        "bound": f"{least:.1f}" if least else "",
        "ratio": f"{time / least:.3f}" if least else "",
        "allocated GB": f"{row['peak_allocated_bytes'] / GB:.2f}",
        "reserved GB": f"{row['peak_reserved_bytes'] / GB:.2f}",
        "out GB": f"{count['page_out_bytes'] / GB:.2f}",
        "in GB": f"{count['page_in_bytes'] / GB:.2f}",
        "compressed": compressed(count),
        "planned": str(sum(c["planned_iterations"] for c in row["counts"])),
        "departed": str(sum(c["plan_departures"] for c in row["counts"])),
        "fetches ahead": f"{count['prefetch_count']} of {count['page_in_count']}",
        "repeated requests": f"{min(repeated)} to {max(repeated)}",
        "losses": losses(row["losses"], reference["losses"]),
    }


def mode_of(row: dict[str, Any]) -> str:
    mode = str(row.get("mode", "in memory"))
    if "measured_limit" in row:
        mode += f", as with {row['measured_limit'] / GB:.2f} GB"
    return mode


def losses(found: list[str], expected: list[str]) -> str:
    return "identical" if found == expected[: len(found)] else "DIFFERENT"


def compressed(count: dict[str, int]) -> str:
    """Bytes that were compressed in an iteration, and what is left of one."""
    if not count["compressed_bytes"]:
        return "none"
    left = count["compressed_written_bytes"] / count["compressed_bytes"]
    return f"{count['compressed_bytes'] / GB:.2f} GB to {left:.2f}"


def tables_of(results: dict[str, Any], kept: int) -> dict[str, list[dict[str, str]]]:
    tables = {}
    for name, found in results.items():
        workload = WORKLOADS[name]
        last = workload.iterations // 2 if workload.varying else kept
        speed = "; ".join(f"{way} {rate / GB:.1f} GB/s" for way, rate in found["rates"].items())
        passes = "; ".join(f"{part} {1e3 * time:.1f} ms" for part, time in found["parts"].items())
        # In the order of limits, and of a limit's rows as they were measured.
        rows = sorted(found["rows"], key=lambda row: -row["limit"])
        heading = f"{workload.title} ({speed}; {passes})"
        tables[heading] = [cells(found, row, last) for row in (found["memory"], *rows)]
    return tables


def add_peer(
    server: processes.Server, name: str, found: dict[str, Any], mode: str, most_offloaded: float
) -> None:
    """A row for each limit of the workload; none if it keeps nothing for a backward pass.

    From the smallest limit on, until a peer has a fifth of the limit to spare: with more memory it
    would do the same.
    """
    if not WORKLOADS[name].optimizer:
        return
    too_large = found["memory"]["peak_allocated_bytes"] > most_offloaded * GB
    spare: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for limit in sorted(found["bounds"]):
        if mode in OFFLOADERS and too_large:
            result = {"error": "not run: --most-offloaded"}
        elif spare:
            result = spare
        else:
            result = server.run(measure_peer, name, mode, limit) or {"error": "failed"}
            if result.get("peak_reserved_bytes", limit) < 0.8 * limit:
                spare = {**result, "measured_limit": limit}
        rows.append({**result, "limit": limit, "mode": mode})
        times = result.get("milliseconds") or [result["error"]]
        print(name, limit, mode, *times, file=sys.stderr, flush=True)
    found["rows"] += rows


def begun(folder: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """What is known of the machine, and of the workloads, from an earlier part of the run."""
    document = json.loads((folder / "planned.json").read_text(encoding="utf-8"))
    for found in document["results"].values():
        found["bounds"] = {int(limit): least for limit, least in found["bounds"].items()}
    return document["machine"], document["results"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--kept", type=int, default=6, help="last ones in the median (default: 6)")
    # PyTorch rounds each piece of pinned memory up to a power of two.
    parser.add_argument(
        "--most-offloaded",
        type=float,
        default=90,
        metavar="GB",
        help="a model that needs more is not offloaded by peers (default: 90)",
    )
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("--tightest", action="store_true", help="only the smallest limits")
    parser.add_argument("--resume", action="store_true", help="measure only what DIR lacks")
    parser.add_argument("--traces", action="store_true", help="also record workloads in memory")
    arguments = parser.parse_args()
    title = "Training at a limit: bf16 autocast, deterministic algorithms, expandable segments"
    about: dict[str, str] = machine.describe()
    results: dict[str, Any] = {}
    if arguments.resume:
        first, results = begun(arguments.out)
        part = 1 + sum(key.startswith("date") for key in first)
        about = {**first, **{f"{key} of part {part}": value for key, value in about.items()}}
    server = processes.Server(ENVIRONMENT, LIBRARIES)
    own = [mode for mode in arguments.modes if mode not in PEERS]

    def write(*, shown: bool = False) -> None:
        tables = tables_of(results, arguments.kept)
        report.write(arguments.out, "planned", title, about, tables, results, shown=shown)

    if arguments.traces:
        arguments.out.mkdir(parents=True, exist_ok=True)
    traces = arguments.out if arguments.traces else None
    for name in (name for name in arguments.workloads if name not in results):
        if found := server.run(measure, name, own, traces, arguments.tightest):
            results[name] = found
            write()
    for mode in (mode for mode in arguments.modes if mode in PEERS):
        for name, found in results.items():
            if all(row["mode"] != mode for row in found["rows"]):
                add_peer(server, name, found, mode, arguments.most_offloaded)
                write()
    write(shown=True)
    rows = [(found, row) for found in results.values() for row in found["rows"]]
    same = all(
        losses(row["losses"], found["memory"]["losses"]) == "identical"
        for found, row in rows
        if row["mode"] not in PEERS
    )
    failed = len(results) < len(arguments.workloads) or not same
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
