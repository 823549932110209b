"""``lmsbuild simulate``: what an iteration would take on another GPU."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click
from rich import box
from rich.table import Table

from lmsbuild import console
from lmsbuild.cli.options import json_option
from lmsbuild.cli.types import BYTES, EXISTING_FILE
from lmsbuild.resources import patches_dir
from lmsbuild.simulate.planner import Machine, Prediction, Simulation, planner
from lmsbuild.simulate.trace import Trace, read_trace
from lmsbuild.tools.cache import default_cache

# LMS starts to page out there; the rest is for fragmentation.
_IN_USE = 0.95
# Measured with PCIe 5.0 x16 and pinned memory: docs/results/2026-11-22-h200.
_LINK = "52G"


@click.command()
@click.argument("trace", type=EXISTING_FILE)
@click.option(
    "--gpu-memory",
    type=BYTES,
    metavar="BYTES",
    help="Memory that PyTorch may reserve, such as 16G or 16GiB.  [default: the trace's limit]",
)
@click.option(
    "--link",
    type=BYTES,
    metavar="BYTES",
    default=_LINK,
    show_default=True,
    help="Bytes per second between GPU and host, in each direction.",
)
@click.option("--link-out", type=BYTES, metavar="BYTES", help="The same, to the host only.")
@click.option("--link-in", type=BYTES, metavar="BYTES", help="The same, to the GPU only.")
@json_option
def command(
    trace: Path,
    gpu_memory: int | None,
    link: int,
    link_out: int | None,
    link_in: int | None,
    as_json: bool,
) -> None:
    """Predict how long an iteration takes with less GPU memory, or with another link.

    TRACE is a file that torch.cuda.lms.record() has written. Computation takes as long as it took
    when the trace was recorded, so record it where the model fits.
    """
    recorded = read_trace(trace)
    memory = gpu_memory or recorded.limit_bytes
    machine = Machine(
        limit=int(_IN_USE * memory), out_rate=link_out or link, in_rate=link_in or link
    )
    simulation = planner(patches_dir(), default_cache()).simulate(recorded, machine)
    if as_json:
        told = {"gpu_memory": memory, "link_out": machine.out_rate, "link_in": machine.in_rate}
        click.echo(json.dumps({**told, **dataclasses.asdict(simulation)}, indent=2))
    else:
        _show(recorded, memory, simulation)


def _show(trace: Trace, memory: int, simulation: Simulation) -> None:
    console.out.print(
        f"recorded: PyTorch {trace.torch}, {trace.gpu}; an iteration has "
        f"{simulation.operators} operators, takes {_ms(simulation.compute_seconds)} and needs "
        f"{_gb(simulation.peak_bytes)}"
    )
    if simulation.fits:
        console.out.print(f"LMS is not necessary: that fits in {_gb(memory)}")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"with {_gb(memory)}")
    for heading in ("time", "stalls", "to the host", "to the GPU", "peak"):
        table.add_column(heading, justify="right")
    table.add_row("transfers on demand", *_cells(simulation.on_demand))
    table.add_row("planned transfers", *_cells(simulation.planned))
    table.add_row("lower bound", _ms(simulation.bound_seconds), "", "", "", "")
    console.table(table)


def _cells(prediction: Prediction) -> tuple[str, ...]:
    return (
        _ms(prediction.seconds),
        _ms(prediction.stall_seconds),
        _gb(prediction.bytes_out),
        _gb(prediction.bytes_in),
        _gb(prediction.peak_bytes),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
