"""``lmsbuild report``: what an iteration needs, what would be swapped, and what that costs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from lmsbuild import console
from lmsbuild.cli.machine_options import host_option, link_options
from lmsbuild.cli.options import json_option
from lmsbuild.cli.progress import counted
from lmsbuild.cli.types import BYTES, EXISTING_FILE, NEW_FILE
from lmsbuild.resources import patches_dir
from lmsbuild.simulate.link import Link
from lmsbuild.simulate.planner import planner
from lmsbuild.simulate.report import Report, check_form
from lmsbuild.simulate.trace import read_trace
from lmsbuild.tools import atomic
from lmsbuild.tools.cache import default_cache


def _check_forms(
    context: click.Context, parameter: click.Parameter, files: tuple[Path, ...]
) -> tuple[Path, ...]:
    for file in files:
        try:
            check_form(file)
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from error
    return files


@click.command()
@click.argument("trace", type=EXISTING_FILE)
@click.option(
    "--gpu-memory",
    type=BYTES,
    metavar="BYTES",
    help="Memory that PyTorch may reserve, such as 16G or 16GiB.  [default: the trace's limit]",
)
@link_options
@host_option
@click.option(
    "--out",
    "files",
    type=NEW_FILE,
    metavar="FILE",
    multiple=True,
    callback=_check_forms,
    help="Write the report to FILE: a page (.html), a picture (.png, which needs matplotlib), text"
    " (.txt), or a trace for Perfetto (.json, .json.gz). Can be given several times."
    "  [default: TRACE with .html, in the current folder]",
)
@json_option
def command(
    trace: Path,
    gpu_memory: int | None,
    link: Link,
    host_memory: int | None,
    files: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Show what an iteration needs, what LMS would swap, and what that would cost.

    TRACE is a file that torch.cuda.lms.record() has written. The report has graphs of GPU and host
    memory over one iteration and of the transfers beside the computation, says what is swapped,
    where the GPU waits and what would help. With --json, only the files of --out are written.
    """
    for file in files:
        if file.exists() and file.samefile(trace):
            raise click.UsageError(f"--out {file} would replace the trace")
    recorded = read_trace(trace)
    report = Report(
        planner(patches_dir(), default_cache()),
        recorded,
        gpu_memory or recorded.limit_bytes,
        link,
        lambda amounts: counted("simulate", amounts),
        host_memory,
    )
    if not files and not as_json:
        files = (Path(f"{trace.name.removesuffix('.gz').removesuffix('.json')}.html"),)
    rendered = {file: report.render(file) for file in files}
    for file, content in rendered.items():
        atomic.write_bytes(file, content)
    if as_json:
        click.echo(json.dumps({**report.data, "compressed": link.compressed}, indent=2))
        return
    click.echo(report.text)
    for file in files:
        console.out.print(f"wrote {file}")
