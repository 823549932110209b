"""The GPU tests and measurements in one command, each part in a process of its own with a limit.

    python tests/gpu/all.py --out DIR [--parts PART ...] [--minutes N]

Prints a line when a part ends and a table of them all at the end; what the parts write lies in DIR.
A part that would not end within the minutes that are left is not begun: give it --parts next time.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    command: tuple[str, ...]  # after the interpreter; {out} is the part's folder
    seconds: int  # it is stopped after these
    gpus: int = 1


PYTEST = ("-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider")
PARTS = {
    "writer": Part(command=("tests/gpu/writer.py",), seconds=300),
    "acceptance": Part(
        command=("tests/gpu/acceptance.py", "--out", "{out}", "--rows", "memory", "limit12"),
        seconds=120,
    ),
    "codec": Part(command=("tests/gpu/codec.py", "--out", "{out}"), seconds=300),
    "compiled": Part(command=("tests/gpu/compiled.py", "--out", "{out}"), seconds=600),
    "overhead": Part(command=("tests/gpu/overhead.py", "--out", "{out}"), seconds=180),
    "examples": Part(command=("tests/gpu/examples.py", "--out", "{out}"), seconds=900),
    "tests": Part(
        command=(*PYTEST, "tests/gpu", "--ignore=tests/gpu/test_distributed.py"), seconds=300
    ),
    "suite": Part(command=(*PYTEST, "tests/suite"), seconds=480),
    "runtime": Part(command=(*PYTEST, "tests/runtime"), seconds=480, gpus=2),
    "distributed": Part(
        command=("tests/gpu/distributed.py", "--out", "{out}/distributed.json"),
        seconds=480,
        gpus=2,
    ),
}


def run(name: str, folder: Path) -> tuple[str, float]:
    """How it ended, and seconds. Its output is in log.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    part = PARTS[name]
    command = [argument.format(out=folder) for argument in part.command]
    environment = {**os.environ, "LMS_TEST_DEVICE": "gpu", "PYTHONUNBUFFERED": "1"}
    began = time.monotonic()
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that what it starts ends with it
        )
        try:
            code = process.wait(timeout=part.seconds)
            how = "ok" if code == 0 else f"failed ({code})"
        except subprocess.TimeoutExpired:
            how = f"stopped after {part.seconds} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return how, time.monotonic() - began


def last_line(folder: Path) -> str:
    lines = (folder / "log.txt").read_text(errors="replace").strip().split("\n")
    return lines[-1][:100]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="default: what the GPUs allow")
    parser.add_argument("--minutes", type=float, default=60, help="for all parts (default: 60)")
    arguments = parser.parse_args()
    code = "import torch; print(torch.cuda.device_count())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    gpus = int(found.stdout.strip() or 0)
    names = arguments.parts or [name for name, part in PARTS.items() if part.gpus <= gpus]
    deadline = time.monotonic() + arguments.minutes * 60
    rows = []
    for name in names:
        folder = arguments.out.resolve() / name
        how, seconds = "no GPU" if not gpus else "needs two GPUs", 0.0
        if PARTS[name].gpus <= gpus:
            how = "not begun: too little time"
            if time.monotonic() + PARTS[name].seconds <= deadline:
                how, seconds = run(name, folder)
        rows.append((name, how, seconds))
        last = last_line(folder) if seconds else ""
        print(f"{name:<14}{how:<28}{seconds:>6.0f} s  {last}", flush=True)
    print("\n| part | | seconds |\n|---|---|---|")
    for name, how, seconds in rows:
        print(f"| {name} | {how} | {seconds:.0f} |")
    return int(not rows or any(how != "ok" for _, how, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
