"""Trains for thousands of iterations in less memory than one takes, and compares with LMS off.

    python tests/gpu/soak.py --out DIR [--iterations N] [--rows ROW ...]

needs a GPU and a torch with Large Model Support. Prints tables, and leaves soak.json and soak.md in
DIR. Exits 1 when a loss has other bits than without LMS, when training fails, or when memory of
the device or the host leaks in the second half of iterations that are all alike. Times are
shown, and judged by nobody.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
import report

MIB = 1 << 20
WINDOWS = 10
WIDTH, HEADS, LAYERS, WORDS = 512, 8, 4, 4096
HOST = ("host_bytes.current", "host_used_bytes.peak", "host_busy_bytes.peak")
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
NOISE = 64 * MIB
"""Bytes that a process may grow by without being called leaky."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    title: str
    changing: bool = False  # batch and length, in each iteration
    cap: int = 0  # bytes of set_per_process_memory_fraction
    expandable: bool = False  # the allocator's expandable_segments:True
    release: bool = False  # the allocator's cache after each iteration
    share: float = 1.0  # of the iterations asked for


ROWS = {
    "constant": Row(title="one shape", cap=640 * MIB),
    "changing": Row(title="changing shapes", changing=True, cap=896 * MIB, share=0.3),
    "changing_expandable": Row(
        title="changing shapes, expandable segments",
        changing=True,
        cap=896 * MIB,
        expandable=True,
        share=0.3,
    ),
    # Memory that was given up is unmapped at once: for compute-sanitizer.
    "release": Row(title="cache emptied", cap=640 * MIB, release=True, share=0.1),
}


def measure(row: Row, *, lms: bool, iterations: int) -> dict[str, Any]:
    """What each tenth of the iterations took, and a digest of its losses."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a kernel for each tensor
    if lms:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(row.cap / total)
        torch.cuda.set_enabled_lms(True)
    layers = [
        nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.1, batch_first=True)
        for _ in range(LAYERS)
    ]
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), *layers, nn.Linear(WIDTH, WORDS)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    shapes = random.Random(0)

    def step() -> torch.Tensor:
        batch = shapes.randint(1, 12) if row.changing else 8
        length = shapes.randint(16, 384) if row.changing else 256
        words = torch.randint(WORDS, (batch, length + 1), device="cuda")
        optimizer.zero_grad(set_to_none=True)
        scores = model(words[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    windows = []
    for _ in range(WINDOWS):
        torch.cuda.reset_peak_memory_stats()
        before = counts(lms)
        started = time.perf_counter()
        losses = []
        for _ in range(iterations // WINDOWS):
            losses.append(step())
            if row.release:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
        bits = torch.stack(losses).cpu().numpy().tobytes()
        windows.append(
            {
                "milliseconds": (time.perf_counter() - started) / len(losses) * 1e3,
                "losses_sha256": hashlib.sha256(bits).hexdigest(),
                "allocated_bytes": torch.cuda.max_memory_allocated(),
                "reserved_bytes": torch.cuda.max_memory_reserved(),
                "rss_bytes": rss(),
                **{name: value - before[name] for name, value in counts(lms).items()},
                **{name: torch.cuda.memory_stats().get(f"lms.{name}", 0) for name in HOST},
            }
        )
        print(json.dumps(windows[-1]), flush=True)
    return {"windows": windows, "per_window": iterations // WINDOWS}


def counts(lms: bool) -> dict[str, int]:
    import torch

    names = ("page_out_bytes", "page_in_bytes", "out_of_memory_retries", "out_of_memory_caught")
    if not lms:
        return dict.fromkeys(names, 0)
    stats = torch.cuda.lms.stats()
    return {name: stats.get(name, 0) for name in names}


def rss() -> int:
    """Bytes of the process on the host, what it pinned included."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def run_apart(name: str, lms: bool, iterations: int) -> dict[str, Any]:
    """Measures in a process of its own; gives {"error": ...} when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "row.json")
        command = [sys.executable, __file__, "--measure", name, "--out", str(result)]
        command += ["--iterations", str(iterations), *(["--lms"] if lms else [])]
        settings = "expandable_segments:True" if lms and ROWS[name].expandable else ""
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTORCH_ALLOC_CONF": settings, **DETERMINISTIC},
        )
        if done.returncode != 0:
            return {"error": done.stdout[-4000:]}
        return json.loads(result.read_text())


def wrong(row: Row, with_lms: dict[str, Any], without: dict[str, Any]) -> str:
    """What is wrong with a row, or nothing."""
    for result in (without, with_lms):
        if "error" in result:
            return "failed: " + result["error"].strip().split("\n")[-1][:100]
    windows, expected = with_lms["windows"], without["windows"]
    if not any(window["page_out_bytes"] for window in windows):
        return "swapped nothing"
    caught = sum(window["out_of_memory_caught"] for window in windows)
    same = all(
        a["losses_sha256"] == b["losses_sha256"] for a, b in zip(windows, expected, strict=True)
    )
    if not same:
        return f"other losses ({caught} operators went on without memory)"
    return "" if row.changing else leak(windows)


def leak(windows: list[dict[str, Any]]) -> str:
    """What grew in the second half, or nothing. How much is paged out at a time may change.

    Bytes that are pinned although they were never needed at the same time leak, and so does what
    the process has beside pinned memory.
    """
    kept: dict[str, list[int]] = {"reserved": [], "pinned in vain": [], "not pinned": []}
    busy = 0
    for window in windows:
        busy = max(busy, window["host_busy_bytes.peak"])
        pinned = window["host_bytes.current"]
        kept["reserved"].append(window["reserved_bytes"])
        kept["pinned in vain"].append(pinned - busy)
        kept["not pinned"].append(window["rss_bytes"] - pinned)
    for name, bytes_ in kept.items():
        # The first tenth is the warm-up.
        early, late = max(bytes_[1 : WINDOWS // 2]), max(bytes_[WINDOWS // 2 :])
        if late > early + (0 if name == "reserved" else NOISE):
            return f"{name}: grew from {early} to {late} bytes"
    return ""


def cells(number: int, window: dict[str, Any], reference: dict[str, Any]) -> dict[str, str]:
    def mib(name: str) -> str:
        return f"{window[name] / MIB:.0f}"

    same = window["losses_sha256"] == reference["losses_sha256"]
    return {
        "tenth": str(number),
        "ms/iteration": f"{window['milliseconds']:.2f}",
        "LMS off": f"{reference['milliseconds']:.2f}",
        "LMS off allocated MiB": f"{reference['allocated_bytes'] / MIB:.0f}",
        "allocated MiB": mib("allocated_bytes"),
        "reserved MiB": mib("reserved_bytes"),
        "pinned MiB": mib("host_bytes.current"),
        "used at most MiB": mib("host_used_bytes.peak"),
        "busy at most MiB": mib("host_busy_bytes.peak"),
        "process MiB": mib("rss_bytes"),
        "out GB": f"{window['page_out_bytes'] / 1e9:.1f}",
        "in GB": f"{window['page_in_bytes'] / 1e9:.1f}",
        "retries": str(window["out_of_memory_retries"]),
        "losses": "identical" if same else "DIFFERENT",
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--iterations", type=int, default=10_000, help="default: 10000")
    rows = [name for name in ROWS if not ROWS[name].release]
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=rows)
    parser.add_argument("--measure", choices=ROWS, help="only this row, in this process")
    parser.add_argument("--lms", action="store_true", help="with --measure: with LMS on")
    arguments = parser.parse_args()
    if arguments.measure:
        result = measure(
            ROWS[arguments.measure], lms=arguments.lms, iterations=arguments.iterations
        )
        arguments.out.write_text(json.dumps(result))
        return 0

    results, tables, failures = {}, {}, []
    for name in arguments.rows:
        row = ROWS[name]
        iterations = max(WINDOWS, int(arguments.iterations * row.share))
        with_lms, without = (run_apart(name, lms, iterations) for lms in (True, False))
        results[name] = {"LMS on": with_lms, "LMS off": without}
        reason = wrong(row, with_lms, without)
        print(f"{row.title}: {reason or 'done'}", file=sys.stderr, flush=True)
        if reason:
            failures.append(f"{row.title}: {reason}")
        if "windows" in with_lms and "windows" in without:
            heading = f"{row.title}, {iterations} iterations, {row.cap // MIB} MiB of GPU memory"
            pairs = zip(with_lms["windows"], without["windows"], strict=True)
            tables[heading] = [cells(i, *pair) for i, pair in enumerate(pairs, start=1)]
    report.write(
        arguments.out,
        "soak",
        f"A transformer of {LAYERS} layers, trained with LMS under a cap and without LMS",
        machine.describe(),
        tables,
        results,
    )
    print("\n".join(failures), end="\n" if failures else "")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
