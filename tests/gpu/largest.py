"""The largest batches, images and volumes that train within a limit, without LMS and with it.

    python tests/gpu/largest.py --out DIR [--rows ROW ...] [--limit GB] [--modes MODE ...]

needs a GPU, a torch with Large Model Support, torchvision and rich. Prints a table, and leaves
largest.json and largest.md in DIR. Without LMS, the limit is the size of the GPU. Each trial trains
three steps in a process of its own, because cuDNN takes other algorithms after it got no memory,
and keeps to them. With LMS, what reserves more than the limit does not count, and host memory
bounds what trains. A trial that takes longer than --seconds counts as one that does not train,
and the table says so.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import report
from workloads import GB, resnet, unet3d

STEPS = 3
EXACTLY = 1.07  # the ratio of what does not train to what does


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    title: str
    build: Callable[[int], tuple[Any, Callable[[], Any]]]  # of a size: (model, computes the loss)
    dimensions: int  # the factor is that of sizes to this power
    first: int  # size of the first trial without LMS
    step: int  # between sizes
    factor: float  # of the first trial with LMS


def clip(side: int) -> tuple[Any, Callable[[], Any]]:
    import torch
    import torchvision
    from torch.nn import functional

    model = torchvision.models.video.r3d_18().cuda().train()
    videos = torch.randn(1, 3, side, side, side, device="cuda")
    labels = torch.randint(400, (1,), device="cuda")
    return model, lambda: functional.cross_entropy(model(videos), labels)


ROWS = {
    "batch": Row(
        title="ResNet-152, 224x224, images in a batch",
        build=lambda size: resnet(152, batch=size, size=224),
        dimensions=1,
        first=128,
        step=8,
        factor=10,
    ),
    "image": Row(
        title="ResNet-152, batch 8, pixels of an image",
        build=lambda size: resnet(152, batch=8, size=size),
        dimensions=2,
        first=896,
        step=32,
        factor=10,
    ),
    "clip": Row(
        title="3D ResNet-18 (torchvision's r3d_18), batch 1, voxels of a clip",
        build=clip,
        dimensions=3,
        first=320,
        step=16,
        factor=4,
    ),
    "volume": Row(
        title="3D U-Net, batch 1, voxels",
        build=unet3d,
        dimensions=3,
        first=240,
        step=16,
        factor=2,
    ),
}
MODES = ("without LMS", "LMS", "LMS, compressed")


def train(row: Row, size: int, limit: int, lms: bool) -> dict[str, Any]:
    """Raises an error if it does not train."""
    import torch

    if lms:
        import torch.cuda.lms

        torch.cuda.set_enabled_lms(True)
        torch.cuda.set_limit_lms(limit)
    else:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(limit / total)
    torch.manual_seed(0)
    model, loss = row.build(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    seconds = []
    for _ in range(STEPS):
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            found = loss()
        found.backward()
        optimizer.step()
        last = found.item()
        seconds.append(time.perf_counter() - began)
        del found
        gc.collect()
    stats = torch.cuda.lms.stats() if lms else {}
    return {
        "seconds": seconds[-1],
        "loss": last,
        "reserved": torch.cuda.max_memory_reserved(),
        "paged_out": stats.get("page_out_bytes", 0) // STEPS,
        "host": stats.get("host_bytes_peak", 0),
    }


def trial(name: str, size: int, mode: str, limit: int, seconds: float) -> dict[str, Any]:
    """What training in a process of its own measured, or {"error": why not}."""
    environment = {**os.environ, "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    if mode == "LMS, compressed":
        environment["PYTORCH_LMS_COMPRESSION"] = "on"
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "trial.json")
        command = [sys.executable, __file__, "--out", str(result), "--measure", name]
        command += ["--size", str(size), "--modes", mode, "--limit", str(limit / GB)]
        try:
            done = subprocess.run(
                command, env=environment, timeout=seconds, stderr=subprocess.PIPE, text=True
            )
        except subprocess.TimeoutExpired:
            found = {"error": f"not in {seconds:.0f} s"}
        else:
            errors = [line for line in done.stderr.splitlines() if "Error: " in line]
            found = {"error": errors[-1] if errors else f"ended with {done.returncode}"}
            if done.returncode == 0:
                found = json.loads(result.read_text())
                if found["reserved"] > limit:
                    found["error"] = f"reserved {found['reserved'] / GB:.2f} GB"
    how = found.get("error") or f"{found['seconds']:.1f} s, {found['reserved'] / GB:.2f} GB"
    print(f"{name} {size} {mode}: {how[:150]}", file=sys.stderr, flush=True)
    return found


def search(
    row: Row, begin: int, attempt: Callable[[int], dict[str, Any]]
) -> tuple[int, dict[str, Any], int, dict[str, Any]]:
    """The largest size that trains, what it measured, the smallest that does not, and why."""
    best, found, above, why = 0, {}, 0, {}

    def grown(size: int, factor: float) -> int:
        """Of that many times the pixels, at least one step away."""
        target = size * factor ** (1 / row.dimensions)
        steps = round(target / row.step)
        if factor > 1:
            return max(steps, size // row.step + 1) * row.step
        return min(steps, size // row.step - 1) * row.step

    size = begin
    while size:
        result = attempt(size)
        if "error" in result:
            above, why = size, result
        else:
            best, found = size, result
        if not above:
            size = grown(best, 1.25)
        elif not best:
            size = grown(above, 0.8)
        else:
            middle = (best + above) // 2 // row.step * row.step
            far = (above / best) ** row.dimensions > EXACTLY
            size = middle if far and best < middle < above else 0
    return best, found, above, why


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--limit", type=float, default=16, metavar="GB", help="default: 16")
    parser.add_argument("--seconds", type=float, default=150, help="of a trial (default: 150)")
    parser.add_argument("--measure", choices=ROWS, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    limit = int(arguments.limit * GB)
    if arguments.measure:
        lms = arguments.modes != ["without LMS"]
        found = train(ROWS[arguments.measure], arguments.size, limit, lms)
        arguments.out.write_text(json.dumps(found))
        return 0
    rows, data = [], {}
    for name in arguments.rows:
        row, reference = ROWS[name], 0
        for mode in arguments.modes:
            begin = row.first
            if reference:
                begin = int(reference * row.factor ** (1 / row.dimensions)) // row.step * row.step

            def attempt(size: int, name: str = name, mode: str = mode) -> dict[str, Any]:
                return trial(name, size, mode, limit, arguments.seconds)

            best, found, above, why = search(row, begin, attempt)
            reference = reference or best
            data[f"{name}, {mode}"] = {"largest": best, "above": above, "why": why, **found}
            rows.append(
                {
                    "what": row.title if mode == arguments.modes[0] else "",
                    "mode": mode,
                    "largest": str(best),
                    "factor": f"{(best / reference) ** row.dimensions:.1f}" if best else "",
                    "s/step": f"{found['seconds']:.2f}" if best else "",
                    "reserved GB": f"{found['reserved'] / GB:.2f}" if best else "",
                    "out GB/step": f"{found['paged_out'] / GB:.1f}" if best else "",
                    "host GB": f"{found['host'] / GB:.1f}" if best else "",
                    "does not": f"{above}: {why.get('error', '')[:70]}",
                }
            )
            title = f"The largest that trains within {arguments.limit:g} GB"
            report.write(arguments.out, "largest", title, machine.describe(), {title: rows}, data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
