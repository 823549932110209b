"""``lmsbuild simulate``: what an iteration would take on another GPU."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.table import Table

from lmsbuild import console
from lmsbuild.cli.machine_options import host_option, link_options, machine
from lmsbuild.cli.options import json_option
from lmsbuild.cli.progress import counted
from lmsbuild.cli.types import BYTES, EXISTING_FILE
from lmsbuild.errors import TraceError
from lmsbuild.resources import patches_dir
from lmsbuild.simulate.link import Link
from lmsbuild.simulate.planner import Prediction, Simulation, planner
from lmsbuild.simulate.trace import Trace, read_trace
from lmsbuild.tools.cache import default_cache


@click.command()
@click.argument("trace", type=EXISTING_FILE)
@click.option(
    "--gpu-memory",
    "memories",
    type=BYTES,
    metavar="BYTES",
    multiple=True,
    help="Memory that PyTorch may reserve, such as 16G or 16GiB. Give it several times to compare."
    "  [default: the trace's limit]",
)
@link_options
@host_option
@json_option
def command(
    trace: Path,
    memories: tuple[int, ...],
    link: Link,
    host_memory: int | None,
    as_json: bool,
) -> None:
    """Predict how long an iteration takes with less GPU memory, or with another link.

    TRACE is a file that torch.cuda.lms.record() has written. Computation takes as long as it took
    when the trace was recorded, so record it where the model fits.
    """
    recorded = read_trace(trace)
    compiled = planner(patches_dir(), default_cache())
    found: list[tuple[int, Simulation | TraceError]] = []
    for memory in counted("simulate", memories or (recorded.limit_bytes,)):
        try:
            found.append((memory, compiled.simulate(recorded, machine(memory, link), host_memory)))
        except TraceError as error:
            if len(memories) < 2:
                raise
            found.append((memory, error))
    failures = [result for _, result in found if isinstance(result, TraceError)]
    if len(failures) == len(found):
        raise failures[0]
    if as_json:
        told = [_as_json(memory, link, result) for memory, result in found]
        click.echo(json.dumps({"simulations": told} if len(told) > 1 else told[0], indent=2))
        return
    _say_what_was_recorded(recorded, next(r for _, r in found if isinstance(r, Simulation)))
    if len(found) > 1:
        _compare(found)
        return
    for memory, result in found:
        if isinstance(result, Simulation):
            _show(memory, result)


def _as_json(memory: int, link: Link, result: Simulation | TraceError) -> dict[str, Any]:
    told = {
        "gpu_memory": memory,
        "link_out": link.out_rate,
        "link_in": link.in_rate,
        "compressed": link.compressed,
    }
    if isinstance(result, TraceError):
        return {**told, "problem": str(result)}
    return {**told, **dataclasses.asdict(result)}


def _say_what_was_recorded(trace: Trace, simulation: Simulation) -> None:
    console.out.print(
        f"recorded: PyTorch {trace.torch}, {trace.gpu}; an iteration has "
        f"{simulation.operators} operators, takes {_ms(simulation.compute_seconds)}"
        f"{' (estimated)' if trace.estimated else ''} and needs "
        f"{_gb(simulation.peak_bytes)}"
    )


def _show(memory: int, simulation: Simulation) -> None:
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
    console.out.print(
        f"host memory: LMS pins at least {_gb(simulation.host_least_bytes)} for what is swapped, "
        f"and up to {_gb(simulation.host_most_bytes)} where there is enough"
    )


def _compare(found: list[tuple[int, Simulation | TraceError]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("GPU memory", justify="right")
    for heading in ("on demand", "planned", "lower bound", "to the host", "to the GPU", "pinned"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for memory, result in found:
        if isinstance(result, TraceError):
            table.add_row(_gb(memory), "", "", "", "", "", "", str(result))
            continue
        table.add_row(
            _gb(memory),
            _ms(result.on_demand.seconds),
            _ms(result.planned.seconds),
            _ms(result.bound_seconds),
            _gb(result.planned.bytes_out),
            _gb(result.planned.bytes_in),
            _gb(result.host_least_bytes),
            "LMS is not necessary" if result.fits else "",
        )
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
