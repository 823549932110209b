"""``lmsbuild trace``: record an iteration without a GPU."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import click

from lmsbuild import console
from lmsbuild.cli.fake_options import fake_options
from lmsbuild.cli.progress import StageDisplay
from lmsbuild.cli.types import FUNCTION, NEW_FILE
from lmsbuild.simulate.fake import FakeProgram
from lmsbuild.simulate.gpu import Gpu
from lmsbuild.tools import atomic


@click.command()
@click.argument("function", type=FUNCTION, metavar="MODULE:FUNCTION")
@click.argument("values", type=int, metavar="[VALUE]...", nargs=-1)
@fake_options
@click.option(
    "--out",
    type=NEW_FILE,
    metavar="FILE",
    default="trace.json.gz",
    show_default=True,
    help="File to write; compressed if its name ends with .gz.",
)
def command(
    function: str, values: tuple[int, ...], gpu: Gpu, python: Path, smallest: int, out: Path
) -> None:
    """Record an iteration with fake tensors: without a GPU, and without the model's memory.

    MODULE:FUNCTION makes the model, with VALUEs as its arguments, and returns a function that runs
    one iteration. The file is a trace as torch.cuda.lms.record() writes it, for `lmsbuild simulate`
    and `lmsbuild report`. Its times are estimates from the GPU's peak rates, and it has no
    workspaces of libraries such as cuDNN.
    """
    with StageDisplay() as display, FakeProgram(python, function, gpu, smallest) as program:
        display.report("trace", 0, None)
        recorded = program.record(values)
    data = json.dumps(recorded).encode("ascii")
    atomic.write_bytes(out, gzip.compress(data, mtime=0) if out.suffix == ".gz" else data)
    console.say(f"wrote {out}")  # the file may be /dev/stdout
