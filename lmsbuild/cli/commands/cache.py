"""lmsbuild cache: what was downloaded and compiled, and is kept."""

from __future__ import annotations

import click
from rich.table import Table

from lmsbuild import console
from lmsbuild.tools.cache import default_cache
from lmsbuild.tools.cache_content import Entry, clean, entries


@click.group("cache")
def command() -> None:
    """Show and clean the folder of downloaded wheels and compiled libraries."""


@command.command("dir")
def show_dir() -> None:
    """Show the cache's folder."""
    console.out.print(str(default_cache()))


@command.command("list")
def list_entries() -> None:
    """List what is in the cache, with sizes and ages."""
    found = entries(default_cache())
    table = Table("kind", "name")
    table.add_column("MB", justify="right")
    table.add_column("days", justify="right")
    for entry in found:
        table.add_row(entry.kind, entry.name, f"{entry.size / 1e6:.1f}", f"{entry.days():.0f}")
    console.table(table)
    console.say(f"{_total(found)} in {default_cache()}")


@command.command("clean")
@click.option(
    "--older-than",
    metavar="DAYS",
    type=click.FloatRange(min=0),
    help="Remove only what is older than this.  [default: everything]",
)
def clean_entries(older_than: float | None) -> None:
    """Remove what is in the cache.

    Nothing else is touched. Waits for no one: while another lmsbuild uses the cache, nothing is
    removed, and the exit code is 8.
    """
    removed = clean(default_cache(), older_than=older_than)
    for entry in removed:
        console.detail(f"removed {entry.paths[0]}")
    console.out.print(f"removed: {_total(removed)}")


def _total(found: list[Entry]) -> str:
    plural = "y" if len(found) == 1 else "ies"
    return f"{len(found)} entr{plural}, {sum(entry.size for entry in found) / 1e6:.1f} MB"
