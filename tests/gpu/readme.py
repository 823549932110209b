"""Runs README.md's example, on a real GPU: with all of its memory, and under a cap.

    python tests/gpu/readme.py --out DIR

needs a torch with Large Model Support, torchvision and rich. The line that turns LMS on is taken
out for the rows without it. Prints a table, and leaves readme.json and readme.md in DIR. Each row
is a process of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import subprocess
import sys
import time
from pathlib import Path

import machine
import report

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "commands"))

import listings

README = "README.md"
ENABLE = re.compile(r"^torch\.cuda\.set_enabled_lms\(True\).*$", re.MULTILINE)
CUDNN = "import torch; torch.manual_seed(0); torch.backends.cudnn.deterministic = True\n"
CAP = "torch.cuda.set_per_process_memory_fraction({bytes} / torch.cuda.mem_get_info()[1])\n"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    title: str
    lms: bool
    capped: bool
    trains: bool  # must it?


ROWS = (
    Row(title="without LMS", lms=False, capped=False, trains=True),
    Row(title="with LMS", lms=True, capped=False, trains=True),
    Row(title="without LMS, capped", lms=False, capped=True, trains=False),
    Row(title="with LMS, capped", lms=True, capped=True, trains=True),
)


def example() -> str:
    """The first Python block of the README."""
    found = listings.blocks_of(README)
    if not found or not ENABLE.search(found[0]):
        raise SystemExit(f"{README} has no example that turns LMS on")
    return found[0]


def run(row: Row, cap: int) -> dict[str, str]:
    """The row's cells."""
    code = CUDNN + (CAP.format(bytes=cap) if row.capped else "")
    code += example() if row.lms else ENABLE.sub("", example())
    code += "print('loss', loss.item().hex())\n"
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    seconds = time.perf_counter() - began
    loss = re.search(r"^loss (\S+)$", done.stdout, re.MULTILINE)
    last = (done.stderr.strip().split("\n") or [""])[-1]
    return {
        "": row.title,
        "cap GB": f"{cap / 1e9:.1f}" if row.capped else "",
        "s": f"{seconds:.1f}",
        "outcome": "trains" if done.returncode == 0 else last.split(":")[0],
        "last loss": loss[1] if loss else "",
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--cap", type=int, default=8 * 10**9, help="bytes (default: 8e9)")
    arguments = parser.parse_args()
    cells = [run(row, arguments.cap) for row in ROWS]
    losses = {row["last loss"] for row in cells if row["outcome"] == "trains"}
    expected = all(
        (row["outcome"] == "trains") == wanted.trains
        for row, wanted in zip(cells, ROWS, strict=True)
    )
    report.write(
        arguments.out,
        "readme",
        "The README's example",
        machine.describe(),
        {"Ten iterations": cells},
        {"rows": cells},
    )
    return int(not expected or len(losses) != 1)


if __name__ == "__main__":
    sys.exit(main())
