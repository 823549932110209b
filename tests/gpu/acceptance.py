"""Trains ResNet-50 past a memory limit, on a real GPU, and compares with training in memory.

    python tests/gpu/acceptance.py --out DIR

needs a torch with Large Model Support, torchvision and rich. Prints a table, and leaves
acceptance.json and acceptance.md in DIR. Each row is a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import report

GB = 1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    title: str
    lms: bool = False
    limit_gb: float = 0.0
    save_on_cpu: bool = False
    reserve_gb: float = 0.0  # host memory that is pinned before the first iteration
    cap_gb: float = 0.0  # of set_per_process_memory_fraction: a GPU of that size
    expandable: bool = False  # the allocator's expandable_segments:True
    compression: str = ""  # else what the environment says
    unchecked: bool = False  # without the release check


ROWS = {
    "memory": Row(title="in memory, LMS off"),
    "guard": Row(title="LMS on, no pressure", lms=True),
    "limit20": Row(title="LMS on, limit 20 GB", lms=True, limit_gb=20),
    "limit13.1": Row(title="LMS on, limit 13.1 GB", lms=True, limit_gb=13.1),
    "limit12.5": Row(title="LMS on, limit 12.5 GB", lms=True, limit_gb=12.5),
    "limit12": Row(title="LMS on, limit 12 GB", lms=True, limit_gb=12),
    "checked": Row(
        title="LMS on, limit 12 GB, no compression", lms=True, limit_gb=12, compression="off"
    ),
    "unchecked": Row(
        title="LMS on, limit 12 GB, no compression, no release check",
        lms=True,
        limit_gb=12,
        compression="off",
        unchecked=True,
    ),
    "reserved": Row(
        title="LMS on, limit 12 GB, 12 GB of host memory reserved",
        lms=True,
        limit_gb=12,
        reserve_gb=12,
    ),
    "limit12_expandable": Row(
        title="LMS on, limit 12 GB, expandable segments", lms=True, limit_gb=12, expandable=True
    ),
    "cap14": Row(title="LMS on, a GPU of 14 GB", lms=True, cap_gb=14),
    "cap14_expandable": Row(
        title="LMS on, a GPU of 14 GB, expandable segments", lms=True, cap_gb=14, expandable=True
    ),
    "save_on_cpu": Row(title="save_on_cpu(pin_memory=True)", save_on_cpu=True),
}


def measure(row: Row, *, batch: int, iterations: int) -> dict[str, Any]:
    """Milliseconds and bytes per iteration; the first iteration is the warm-up's first."""
    import torch
    import torchvision
    from torch.nn import functional as F

    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    if row.cap_gb:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(row.cap_gb * GB / total)
    if row.lms:
        import torch.cuda.lms

        if row.compression:
            torch.cuda.lms.set_compression(row.compression)
        torch.cuda.lms._set_unchecked(row.unchecked)
        torch.cuda.set_limit_lms(int(row.limit_gb * GB))
        torch.cuda.set_enabled_lms(True)

    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch,), device="cuda")

    # What CUDA's libraries do once is not part of the first iteration.
    warm = copy.deepcopy(model)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        warm(images[:8]).sum().backward()
    del warm
    if row.reserve_gb:
        import torch.cuda.lms

        torch.cuda.lms.reserve_host(int(row.reserve_gb * GB))

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        offload = (
            torch.autograd.graph.save_on_cpu(pin_memory=True)
            if row.save_on_cpu
            else contextlib.nullcontext()
        )
        with offload, torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def counts() -> dict[str, int]:
        if not row.lms:
            return dict.fromkeys(
                ("page_out_bytes", "page_in_bytes", "page_out_count", "page_in_count"), 0
            )
        import torch.cuda.lms

        stats = torch.cuda.lms.stats()
        names = ("page_out_bytes", "page_in_bytes", "page_out_count", "page_in_count")
        return {name: stats[name] for name in names}

    milliseconds, losses, moved = [], [], []
    for _ in range(iterations):
        before = counts()
        torch.cuda.synchronize()
        started = time.perf_counter()
        loss = step()
        torch.cuda.synchronize()
        milliseconds.append((time.perf_counter() - started) * 1e3)
        losses.append(loss.item().hex())
        moved.append({name: value - before[name] for name, value in counts().items()})
        if len(losses) == 1:
            torch.cuda.reset_peak_memory_stats()
    peaks = {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        **totals(row),
    }
    return {
        "milliseconds": milliseconds,
        "losses": losses,
        "moved": moved,
        **peaks,
        "kernels": kernel_milliseconds(step) if row.lms and row.limit_gb else {},
    }


def kernel_milliseconds(step: Callable[[], Any]) -> dict[str, float]:
    """How long each of LMS's kernels runs in an iteration, from a profile of a few.

    Without compression: while LMS still tries whether to compress, its kernels compete with these.
    """
    import torch
    import torch.cuda.lms
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.lms.set_compression("off")
    iterations = 3
    for _ in range(iterations):
        step()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(iterations):
            step()
        torch.cuda.synchronize()
    return {
        event.key.partition("(")[0]: event.self_device_time_total / 1e3 / iterations
        for event in profiler.key_averages()
        if event.key.startswith("lms_")
    }


def totals(row: Row) -> dict[str, int | None]:
    """Host bytes pinned, the most of them that held tensors and that copies needed besides, and
    operators that went on without memory that they had asked for."""
    names = ("host_bytes", "host_used_bytes_peak", "host_busy_bytes_peak", "out_of_memory_caught")
    if not row.lms:
        return dict.fromkeys(names)
    import torch.cuda.lms

    stats = torch.cuda.lms.stats()
    return {name: stats.get(name) for name in names}


def run_apart(name: str, arguments: argparse.Namespace, iterations: int) -> dict[str, Any]:
    """Measures in a process of its own; gives {"error": ...} when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "row.json")
        command = [sys.executable, __file__, "--measure", name, "--out", str(result)]
        command += ["--batch", str(arguments.batch), "--iterations", str(iterations)]
        settings = "expandable_segments:True" if ROWS[name].expandable else ""
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTORCH_ALLOC_CONF": settings},
        )
        if done.returncode != 0:
            return {"error": done.stdout[-4000:]}
        return json.loads(result.read_text())


def cells(row: Row, result: dict[str, Any], reference: dict[str, Any], warm: int) -> dict[str, str]:
    columns = (
        "ms/iteration",
        "first ms",
        "allocated GB",
        "reserved GB",
        "out GB",
        "in GB",
        "outs",
        "ins",
        "host GB",
        "used",
        "busy",
        "caught",
        "check ms",  # in line with compute
        "hash ms",  # of a plan in line with it, too; else beside it
        "losses",
    )
    if "error" in result:
        last = result["error"].strip().split("\n")[-1][:60]
        return {"": row.title, **dict.fromkeys(columns, ""), "losses": f"failed: {last}"}

    def kernels(*names: str) -> str:
        found = [result["kernels"][name] for name in names if name in result["kernels"]]
        return f"{sum(found):.2f}" if found else ""

    # The last iteration's traffic: the first ones still settle.
    moved = result["moved"][-1]
    same = same_losses(result, reference)
    values = (
        f"{statistics.median(result['milliseconds'][warm:]):.1f}",
        f"{result['milliseconds'][0]:.0f}",
        f"{result['peak_allocated_bytes'] / GB:.2f}",
        f"{result['peak_reserved_bytes'] / GB:.2f}",
        f"{moved['page_out_bytes'] / GB:.2f}",
        f"{moved['page_in_bytes'] / GB:.2f}",
        str(moved["page_out_count"]),
        str(moved["page_in_count"]),
        *(
            "" if result[name] is None else f"{result[name] / GB:.2f}"
            for name in ("host_bytes", "host_used_bytes_peak", "host_busy_bytes_peak")
        ),
        str(result["out_of_memory_caught"] or ""),
        kernels("lms_check", "lms_restore"),
        kernels("lms_hash"),
        "reference" if result is reference else ("identical" if same else "DIFFERENT"),
    )
    return {"": row.title, **dict(zip(columns, values, strict=True))}


def same_losses(result: dict[str, Any], reference: dict[str, Any]) -> bool:
    """Bit for bit, over the iterations that both ran."""
    shared = min(len(result["losses"]), len(reference["losses"]))
    return shared > 0 and result["losses"][:shared] == reference["losses"][:shared]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--iterations", type=int, default=16, help="of each row (default: 16)")
    parser.add_argument("--warm-up", type=int, default=4, help="iterations not in the median")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--measure", choices=ROWS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        result = measure(
            ROWS[arguments.measure], batch=arguments.batch, iterations=arguments.iterations
        )
        arguments.out.write_text(json.dumps(result))
        return 0
    if arguments.iterations <= arguments.warm_up:
        parser.error("--iterations must be more than --warm-up")

    results: dict[str, Any] = {}
    for name in ("memory", *(name for name in arguments.rows if name != "memory")):
        # save_on_cpu takes seconds for each, and its first ones tell as much.
        slow = ROWS[name].save_on_cpu
        iterations = min(arguments.iterations, arguments.warm_up + 4) if slow else None
        results[name] = run_apart(name, arguments, iterations or arguments.iterations)
        ended = results[name].get("error", "").strip() or "done"
        print(f"{ROWS[name].title}: {ended}", file=sys.stderr, flush=True)
    if "error" in results["memory"]:
        return 1
    reference = results["memory"]
    tables = {
        "Training": [
            cells(ROWS[name], result, reference, arguments.warm_up)
            for name, result in results.items()
        ],
        "Every iteration (ms)": [
            {
                "": ROWS[name].title,
                "ms": " ".join(f"{value:.0f}" for value in result.get("milliseconds", ())),
            }
            for name, result in results.items()
        ],
    }
    title = (
        f"ResNet-50, batch {arguments.batch}, 224x224, bf16 autocast, channels-last, SGD with "
        "momentum, deterministic cuDNN"
    )
    report.write(arguments.out, "acceptance", title, machine.describe(), tables, {"rows": results})
    # Speed is for the reader to judge; an error or another loss is a failure.
    return int(
        any(
            "error" in result or (ROWS[name].lms and not same_losses(result, reference))
            for name, result in results.items()
        )
    )


if __name__ == "__main__":
    sys.exit(main())
