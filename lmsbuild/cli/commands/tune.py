"""``lmsbuild tune``: the largest batch that fits, or the smallest GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.table import Table

from lmsbuild import console
from lmsbuild.cli.fake_options import fake_options
from lmsbuild.cli.machine_options import host_option, link_options, machine
from lmsbuild.cli.options import is_given, json_option
from lmsbuild.cli.progress import StageDisplay
from lmsbuild.cli.types import BYTES, FUNCTION
from lmsbuild.resources import patches_dir
from lmsbuild.simulate.fake import FakeProgram
from lmsbuild.simulate.gpu import Gpu
from lmsbuild.simulate.link import Link
from lmsbuild.simulate.planner import Simulation, planner
from lmsbuild.simulate.trace import Trace, parse_trace, read_trace
from lmsbuild.simulate.tune import Conditions, Report, Tuned, largest_value, smallest_memory
from lmsbuild.tools.cache import default_cache

_SEARCH = ("low", "high", "step")
_TRACES = (".json", ".json.gz")


@click.command()
@click.argument("what", metavar="MODULE:FUNCTION|TRACE")
@click.option(
    "--gpu-memory",
    type=BYTES,
    metavar="BYTES",
    help="Memory that PyTorch may reserve, such as 16G or 16GiB.  [default: the memory of --gpu]",
)
@click.option(
    "--value",
    type=int,
    metavar="N",
    help="Find the smallest GPU memory for this value, instead of the largest value.",
)
@click.option(
    "--low", type=int, metavar="N", default=1, show_default=True, help="Smallest value to try."
)
@click.option(
    "--high", type=int, metavar="N", default=65536, show_default=True, help="Largest value to try."
)
@click.option(
    "--step",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Try only values that are --low and multiples of N above it.",
)
@click.option(
    "--slowdown",
    type=click.FloatRange(min=1),
    metavar="FACTOR",
    help="An iteration may take FACTOR times as long as with everything on the GPU."
    "  [default: any time]",
)
@link_options
@host_option
@fake_options
@json_option
def command(
    what: str,
    gpu_memory: int | None,
    value: int | None,
    low: int,
    high: int,
    step: int,
    slowdown: float | None,
    link: Link,
    host_memory: int | None,
    gpu: Gpu,
    python: Path,
    smallest: int,
    as_json: bool,
) -> None:
    """Find the largest batch size that fits with LMS, or the smallest GPU memory.

    MODULE:FUNCTION makes the model, with one integer as its argument, such as the batch size or the
    resolution, and returns a function that runs one iteration. It is run with fake tensors, as by
    `lmsbuild trace`, so no GPU is needed. A larger value is taken to need more memory. For a TRACE,
    or with --value, the smallest GPU memory is found.
    """
    if Path(what).is_file():
        _refuse("a TRACE", "gpu_memory", "value", *_SEARCH, "gpu", "python", "smallest")
    elif value is not None:
        _refuse("--value", "gpu_memory", *_SEARCH)
    conditions = Conditions(link=link, host_memory=host_memory, slowdown=slowdown)
    given = {
        "gpu": gpu.title,
        "link_out": link.out_rate,
        "link_in": link.in_rate,
        "compressed": link.compressed,
        "host_memory": host_memory,
        "slowdown": slowdown,
    }
    if Path(what).is_file():
        trace = read_trace(Path(what))
        _memory(trace, conditions, {**given, "gpu": trace.gpu}, as_json)
        return
    if what.endswith(_TRACES):
        raise click.BadParameter(f"there is no file {what}")
    function = FUNCTION.convert(what, None, click.get_current_context())
    if low > high:
        raise click.BadParameter(f"--low is {low}, and --high {high}")
    with FakeProgram(python, function, gpu, smallest) as program:

        def record(value: int) -> Trace:
            return parse_trace(program.record([value]))

        if value is not None:
            with StageDisplay() as display:
                display.report("trace", 0, None)
                trace = record(value)
            _memory(trace, conditions, {**given, "value": value}, as_json)
            return
        memory = gpu_memory or gpu.memory
        with _progress() as report:
            found = largest_value(
                planner(patches_dir(), default_cache()),
                record,
                memory,
                conditions,
                range(low, high + 1, step),
                report,
            )
    if as_json:
        click.echo(json.dumps({**given, "gpu_memory": memory, **_as_dict(found)}, indent=2))
        return
    _show(found, memory)


@contextlib.contextmanager
def _progress() -> Iterator[Report]:
    """A bar whose end is where the search ends at the latest."""
    if not console.shows_progress():
        yield lambda text, done, left: None
        return
    with console.step_progress() as progress:
        task = progress.add_task("tune", total=1)

        def report(text: str, done: int, left: int) -> None:
            progress.update(task, description=text, completed=done, total=done + left)

        yield report


def _as_dict(found: Tuned) -> dict[str, Any]:
    def told(value: int | None) -> dict[str, Any] | None:
        if value is None:
            return None
        simulation = found.tried[value].simulation
        assert simulation is not None
        return {"value": value, **dataclasses.asdict(simulation)}

    return {
        "with_lms": told(found.with_lms),
        "without_lms": told(found.without_lms),
        "tried": [
            {"value": value, "peak_bytes": attempt.peak_bytes, "problem": attempt.problem}
            for value, attempt in found.tried.items()
        ],
    }


def _show(found: Tuned, memory: int) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"with {_gb(memory)}")
    for heading in ("largest value", "needs", "time", "time of each", "to the host", "pinned"):
        table.add_column(heading, justify="right")
    for title, value in (("without LMS", found.without_lms), ("with LMS", found.with_lms)):
        if value is None:
            table.add_row(title, "none", "", "", "", "", "")
            continue
        simulation = found.tried[value].simulation
        assert simulation is not None
        seconds = _seconds(simulation)
        table.add_row(
            title,
            str(value),
            _gb(simulation.peak_bytes),
            _time(seconds),
            _time(seconds / value) if value > 0 else "",
            _gb(simulation.planned.bytes_out),
            _gb(simulation.host_least_bytes),
        )
    console.table(table)
    problem = next((a.problem for v, a in found.tried.items() if v > found.with_lms), "")
    if problem:
        larger = next(v for v in found.tried if v > found.with_lms)
        console.out.print(f"{larger} does not fit: {problem}")
    console.out.print("Times are estimates; see docs/simulation.md")


def _refuse(what: str, *options: str) -> None:
    """Refuses options that say something about the question that is not asked."""
    for name in options:
        if is_given(name):
            raise click.UsageError(f"--{name.replace('_', '-')} has no effect with {what}")


def _memory(trace: Trace, conditions: Conditions, given: dict[str, Any], as_json: bool) -> None:
    compiled = planner(patches_dir(), default_cache())
    with _progress() as report:
        least, enough = smallest_memory(compiled, trace, conditions, report)
    found = compiled.simulate(trace, machine(least, conditions.link), conditions.host_memory)
    if as_json:
        told = {"smallest_gpu_memory": least, "smallest_gpu_memory_without_lms": enough}
        click.echo(json.dumps({**given, **told, **dataclasses.asdict(found)}, indent=2))
        return
    console.out.print(f"without LMS: {_gb(enough)} of GPU memory, {_time(found.compute_seconds)}")
    console.out.print(
        f"with LMS: {_gb(least)} of GPU memory, {_time(_seconds(found))}, and "
        f"{_gb(found.host_least_bytes)} of host memory"
    )


def _seconds(simulation: Simulation) -> float:
    return simulation.compute_seconds if simulation.fits else simulation.planned.seconds


def _time(seconds: float) -> str:
    """A time; that of one item of a large batch is short."""
    for unit, count in (("ms", 1e3), ("µs", 1e6)):
        if seconds * count >= 1:
            return f"{seconds * count:.1f} {unit}"
    return f"{seconds * 1e9:.1f} ns"


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
