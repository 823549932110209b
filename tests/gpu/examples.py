"""Runs the programs of docs/examples on a real GPU, at sizes where LMS has something to do.

    python tests/gpu/examples.py --out DIR [--tiny] [--parts PART ...]

needs a torch with Large Model Support, torchvision, transformers, matplotlib, nbclient, ipykernel
and rich. Each row is a process of its own. Prints a table, and leaves examples.json, examples.md,
and what the programs write (CSV files, pictures, the executed notebook) in DIR, after each part.
Exits 1 if a row ends otherwise than it must, or if losses with LMS are others than without. --tiny
is for a simulated device, where operators take long.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import report

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "docs" / "examples"
GIB = 1 << 30
PART = 0.6  # of what a program needs in memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    name: str
    command: str  # {log} is the file of its steps
    tiny: str  # the last one of an option counts

    def arguments(self, log: Path, tiny: bool) -> list[str]:
        found = f"{self.command} {self.tiny if tiny else ''}".format(log=log)
        script, *arguments = found.split()
        return [str(EXAMPLES / script), *arguments]


# Each step of them is a row of a CSV file.
PROGRAMS = (
    Program(
        name="many_models",
        command="many_models.py -a resnet50 -b 256 --image-size 224 --seed 0 --out {log.parent}",
        tiny="-a resnet18 -b 8 --image-size 64 --steps 4",
    ),
    Program(
        name="unet3d",
        command="unet3d.py --size 160 --log {log}",
        tiny="--size 32 --width 8 --levels 3 --batch-size 2 --steps 4",
    ),
    Program(
        name="gpt_finetune",
        command="gpt_finetune.py --layers 36 --embedding 1280 --log {log}",
        tiny="--layers 2 --embedding 384 --vocabulary 512 --length 32 --batch-size 2 --steps 4",
    ),
)
SEARCH = "many_models.py -a densenet121 --image-size 224 -b 64 --precision 8 --find-largest"
SEARCH += " batch-size --limit 8"
TINY_SEARCH = "-a resnet18 --image-size 64 -b 8 --limit 0.19 --host-limit 0.03"


@dataclasses.dataclass(kw_only=True)
class Row:
    title: str
    limit: float = 0.0  # GiB
    code: int
    wanted: int  # exit code
    seconds: float
    output: str
    errors: str
    steps: list[dict[str, float]] = dataclasses.field(default_factory=list)

    @property
    def losses(self) -> list[float]:
        return [float(loss) for loss in re.findall(r"^step \d+: loss (\S+),", self.output, re.M)]

    @property
    def expected(self) -> bool:
        failed_for_memory = "CUDA out of memory" in self.errors
        return self.code == self.wanted and (self.code == 0 or failed_for_memory)


def run(title: str, arguments: list[str], folder: Path, *, fails: bool = False) -> Row:
    print(title, *arguments, file=sys.stderr, flush=True)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=900
    )
    log = re.sub(r"[^a-z0-9]+", "-", title.lower()) + ".log"
    (folder / log).write_text(done.stdout + done.stderr)
    return Row(
        title=title,
        code=done.returncode,
        wanted=int(fails),
        seconds=time.monotonic() - began,
        output=done.stdout,
        errors=done.stderr,
    )


def train(program: Program, out: Path, tiny: bool) -> list[Row]:
    """In memory, without LMS in a part of it, and with LMS there."""
    rows: list[Row] = []

    def add(title: str, *options: str, limit: float = 0, fails: bool = False) -> None:
        folder = out / f"{program.name}-{len(rows)}"
        folder.mkdir(parents=True)
        arguments = [*program.arguments(folder / "steps.csv", tiny), f"--limit={limit:.6f}"]
        row = run(f"{program.name}, {title}", [*arguments, *options], folder, fails=fails)
        row.limit = limit
        for path in folder.glob("*.csv"):
            with path.open(newline="") as file:
                found = [{k: float(v) for k, v in step.items()} for step in csv_rows(file)]
            row.steps = found or row.steps
        rows.append(row)

    add("in memory", "--no-lms")
    if rows[0].code == 0:
        limit = PART * max(step["peak_allocated_bytes"] for step in rows[0].steps) / GIB
        add("too little", "--no-lms", limit=limit, fails=True)
        plot = ("--plot=step.html",) if program.name == "many_models" else ()
        add("LMS", *plot, limit=limit)
        if program.name == "many_models":
            add("LMS on demand", "--on-demand", limit=limit)
    return rows


def csv_rows(file: Any) -> list[dict[str, str]]:
    """Rows of steps; none of a summary."""
    rows = list(csv.DictReader(file))
    return rows if rows and "step" in rows[0] else []


def search(out: Path, tiny: bool) -> list[Row]:
    rows = []
    for lms in ("--no-lms", "--lms"):
        folder = out / f"find-largest{lms}"
        folder.mkdir(parents=True)
        script, *arguments = f"{SEARCH} {TINY_SEARCH if tiny else ''} {lms}".split()
        rows.append(run(f"find-largest {lms}", [str(EXAMPLES / script), *arguments], folder))
    return rows


def distributed(out: Path, tiny: bool) -> list[Row]:
    import torch

    if torch.cuda.device_count() < 2:
        return []
    folder = out / "torchrun"
    folder.mkdir(parents=True)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2"]
    arguments = PROGRAMS[0].arguments(folder / "steps.csv", tiny)
    backend = ["--dist-backend=gloo", "--limit=0.12"] if tiny else ["--limit=14"]
    return [run("many_models, torchrun", [*launcher, *arguments, *backend], folder)]


def notebook(out: Path, tiny: bool) -> list[Row]:
    import nbformat
    from nbclient import NotebookClient

    found = nbformat.read(EXAMPLES / "fit.ipynb", as_version=4)
    if tiny:
        (cell,) = (c for c in found.cells if "parameters" in c.metadata.get("tags", ()))
        cell.source = 'MODEL = "resnet18"\nBATCH_SIZE = 8\nIMAGE_SIZE = 64\nSTEPS = 3'
    began = time.monotonic()
    errors = ""
    try:
        NotebookClient(found, timeout=600, resources={"metadata": {"path": str(out)}}).execute()
    except Exception as error:
        errors = str(error)
    nbformat.write(found, out / "fit.ipynb")
    cells = (cell for cell in found.cells if cell.cell_type == "code")
    output = "".join(output.get("text", "") for cell in cells for output in cell.outputs)
    fine = not errors and "CUDA out of memory" in output and "losses: identical" in output
    return [
        Row(
            title="notebook",
            code=int(not fine),
            wanted=0,
            seconds=time.monotonic() - began,
            output=output,
            errors=errors,
        )
    ]


PARTS: dict[str, Callable[[Path, bool], list[Row]]] = {
    **{program.name: functools.partial(train, program) for program in PROGRAMS},
    "search": search,
    "distributed": distributed,
    "notebook": notebook,
}


def cells(row: Row) -> dict[str, str]:
    last = row.steps[-1] if row.steps else {}
    largest = re.search(r"^largest \S+: (.*)$", row.output, re.MULTILINE)
    outcome = "runs" if row.code == 0 else "out of memory"
    return {
        "": row.title,
        "limit GiB": f"{row.limit:.3f}" if row.limit else "",
        "outcome": outcome if row.expected else f"UNEXPECTED ({row.code})",
        "s": f"{row.seconds:.0f}",
        "last step ms": f"{last['seconds'] * 1e3:.1f}" if last else "",
        "reserved GiB": f"{last['peak_reserved_bytes'] / GIB:.3f}" if last else "",
        "paged out GiB": f"{last['page_out_bytes'] / GIB:.3f}" if last else "",
        "planned": f"{sum(step['planned_iterations'] for step in row.steps):.0f}" if last else "",
        "largest": largest[1] if largest else "",
        "last loss": f"{row.losses[-1]:.4f}" if row.losses else "",
    }


def wrong(rows: list[Row]) -> list[str]:
    """What is not as it must be."""
    found = [f"{row.title}: exit code {row.code}" for row in rows if not row.expected]
    by_title = {row.title: row for row in rows}
    for program in PROGRAMS:
        reference, swapped = (by_title.get(f"{program.name}, {t}") for t in ("in memory", "LMS"))
        if not reference or not swapped or swapped.code:
            continue
        if not any(step["page_out_bytes"] for step in swapped.steps):
            found.append(f"{program.name}: LMS moved nothing")
        # Not bit by bit: the examples ask for no deterministic algorithms.
        pairs = zip(reference.losses, swapped.losses, strict=True)
        if any(abs(a - b) > 0.01 * abs(a) for a, b in pairs):
            found.append(f"{program.name}: other losses with LMS")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--tiny", action="store_true", help="small models")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for name in arguments.parts:
        rows += PARTS[name](out, arguments.tiny)
        # After each part, in case that the next one is stopped.
        report.write(
            out,
            "examples",
            "The programs of docs/examples",
            machine.describe(),
            {"Examples": [cells(row) for row in rows]},
            json.loads(json.dumps([dataclasses.asdict(row) for row in rows])),
        )
    problems = wrong(rows)
    print(*problems, sep="\n", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
