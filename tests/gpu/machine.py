"""What a result of a GPU run has to say about where it comes from."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.split("\n")[0].strip() or "unknown"


def cudnn() -> str:
    import torch

    try:
        return str(torch.backends.cudnn.version())
    except RuntimeError:  # none that this torch can use
        return "none"


def describe() -> dict[str, str]:
    """Date, hardware, versions and the command, in the order to print them."""
    import torch

    gpu = torch.cuda.get_device_properties(0)
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "date": now.strftime("%Y-%m-%d %H:%M UTC"),
        "GPU": f"{gpu.name}, {gpu.total_memory / 1e9:.1f} GB",
        "driver": driver(),
        "CPU": f"{processor()}, {len(os.sched_getaffinity(0))} cores",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "CUDA": str(torch.version.cuda),
        "cuDNN": cudnn(),
        "command": shlex.join(["python", *sys.argv]),
    }
