"""lmsbuild index: a package index of one's own."""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild import console
from lmsbuild.cli.progress import StageDisplay
from lmsbuild.cli.types import EXISTING_FILE
from lmsbuild.index.package_index import SIMPLE, PackageIndex


@click.command("index")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.argument("wheels", metavar="[WHEEL]...", nargs=-1, type=EXISTING_FILE)
@click.option(
    "--check", is_flag=True, help="Write nothing; the exit code is 1 if the index is stale."
)
def command(folder: Path, wheels: tuple[Path, ...], check: bool) -> None:
    """Make DIR a package index of the wheels that lie there, for pip and uv.

    Any web server can serve DIR: pip's --index-url is its address and /simple/. Each WHEEL is
    copied to DIR first. DIR can be a conda channel, too: see `lmsbuild channel`.
    """
    index = PackageIndex(folder)
    if check:
        if wheels:
            raise click.UsageError("--check writes nothing: leave the wheels out")
        index.check()
        return
    with StageDisplay() as display:
        if wheels:
            index.add(wheels, console.say, display.report)
        else:
            index.index(display.report)
    entries = index.entries()
    projects = sorted({entry.project for entry in entries})
    count = f"{len(entries)} wheel{'s' * (len(entries) != 1)}"
    console.say(f"{count} of {', '.join(projects) or 'no project'}")
    console.out.print(str(folder / SIMPLE))
