"""The GPU tests and measurements in one command, each part in a process of its own with a limit.

    python tests/gpu/all.py --out DIR [--parts PART ...] [--minutes N] [--jobs N]

Prints a line when a part ends and a table of them all at the end; what the parts write lies in DIR.
Parts that measure no time run first, some at the same time; the others run alone. A part that would
not end within the minutes that are left is not begun: give it to --parts next time.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from files import PYTEST

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    command: tuple[str, ...]  # after the interpreter; {out} is the part's folder
    seconds: int  # it is stopped after these
    gpus: int = 1
    alone: bool = False  # it measures time
    compressed: bool = False  # what is paged out
    under: tuple[str, ...] = ()  # what starts the interpreter


SUITE = (*PYTEST, "tests/suite", "-k")
HALF = "without_fragments or within_the_limit"
RUNTIME = Part(command=("tests/gpu/files.py", "tests/runtime", "--out", "{out}"), seconds=900)
OPINFO = Part(command=("tests/gpu/opinfo.py", "--out", "{out}", "--workers", "3"), seconds=600)
MEMCHECK = Part(
    command=("tests/gpu/writer.py", "--steps", "60"),
    seconds=300,
    under=("compute-sanitizer", "--tool", "memcheck"),
)
DISTRIBUTED = ("tests/gpu/distributed.py", "--out", "{out}/distributed.json", "--processes")
PARTS = {
    "runtime": RUNTIME,
    "runtime_compressed": dataclasses.replace(RUNTIME, compressed=True),
    "tests": Part(
        command=(*PYTEST, "tests/gpu", "--ignore=tests/gpu/test_distributed.py"), seconds=900
    ),
    "suite_1": Part(command=(*SUITE, HALF), seconds=480),
    "suite_2": Part(command=(*SUITE, f"not ({HALF})"), seconds=480),
    "writer": Part(command=("tests/gpu/writer.py",), seconds=900),
    "opinfo": OPINFO,
    "opinfo_compressed": dataclasses.replace(OPINFO, compressed=True),
    "opinfo_compiled": Part(command=(*OPINFO.command, "--compiled"), seconds=900),
    "memcheck": MEMCHECK,
    "memcheck_compressed": dataclasses.replace(MEMCHECK, compressed=True),
    "soak": Part(
        command=("tests/gpu/soak.py", "--out", "{out}", "--rows", "constant"), seconds=1500
    ),
    "one": Part(command=(*DISTRIBUTED, "one"), seconds=480),
    "shared": Part(command=(*DISTRIBUTED, "shared"), seconds=480),
    "two": Part(command=(*DISTRIBUTED, "two"), seconds=480, gpus=2),
    "acceptance": Part(
        command=("tests/gpu/acceptance.py", "--out", "{out}", "--rows", "memory", "limit12"),
        seconds=120,
        alone=True,
    ),
    "check": Part(command=("tests/gpu/check.py", "--out", "{out}"), seconds=240, alone=True),
    "overhead": Part(
        command=("tests/gpu/overhead.py", "--out", "{out}", "--processes", "5"),
        seconds=300,
        alone=True,
    ),
    "link": Part(command=("tests/gpu/link.py", "--out", "{out}"), seconds=180, alone=True),
    "codec": Part(command=("tests/gpu/codec.py", "--out", "{out}"), seconds=300, alone=True),
    "beside": Part(command=("tests/gpu/beside.py", "--out", "{out}"), seconds=300, alone=True),
    "planned": Part(
        command=("tests/gpu/planned.py", "--out", "{out}", "--modes", "planned"),
        seconds=720,
        alone=True,
    ),
    "compiled": Part(command=("tests/gpu/compiled.py", "--out", "{out}"), seconds=900, alone=True),
    "readme": Part(command=("tests/gpu/readme.py", "--out", "{out}"), seconds=180, alone=True),
    "examples": Part(command=("tests/gpu/examples.py", "--out", "{out}"), seconds=900, alone=True),
    "commands": Part(command=("tests/gpu/commands.py", "--out", "{out}"), seconds=900, alone=True),
}
COMPRESSED = {"PYTORCH_LMS_COMPRESSION": "on", "LMS_TEST_COMPRESSION": "on"}


def run(name: str, folder: Path) -> tuple[str, float]:
    """How it ended, and seconds. Its output is in log.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    part = PARTS[name]
    command = [argument.format(out=folder) for argument in part.command]
    environment = {**os.environ, "LMS_TEST_DEVICE": "gpu", "PYTHONUNBUFFERED": "1"}
    if part.compressed:
        environment.update(COMPRESSED)
    began = time.monotonic()
    with (folder / "log.txt").open("w") as log:
        try:
            process = subprocess.Popen(
                [*part.under, sys.executable, *command],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that what it starts ends with it
            )
        except FileNotFoundError as error:
            return f"needs {error.filename}", 0.0
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
    parser.add_argument("--jobs", type=int, default=8, help="parts at a time (default: 8)")
    arguments = parser.parse_args()
    code = "import torch; print(torch.cuda.device_count())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    gpus = int(found.stdout.strip() or 0)
    names = arguments.parts or [name for name, part in PARTS.items() if part.gpus <= gpus]
    deadline = time.monotonic() + arguments.minutes * 60

    def row(name: str) -> tuple[str, str, float]:
        folder = arguments.out.resolve() / name
        how, seconds = "no GPU" if not gpus else "needs two GPUs", 0.0
        if PARTS[name].gpus <= gpus:
            how = "not begun: too little time"
            if time.monotonic() + PARTS[name].seconds <= deadline:
                how, seconds = run(name, folder)
        last = last_line(folder) if seconds else ""
        print(f"{name:<22}{how:<28}{seconds:>6.0f} s  {last}", flush=True)
        return name, how, seconds

    with ThreadPoolExecutor(arguments.jobs) as pool:
        rows = list(pool.map(row, (name for name in names if not PARTS[name].alone)))
    rows += [row(name) for name in names if PARTS[name].alone]
    print("\n| part | | seconds |\n|---|---|---|")
    for name, how, seconds in rows:
        print(f"| {name} | {how} | {seconds:.0f} |")
    return int(not rows or any(how != "ok" for _, how, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
