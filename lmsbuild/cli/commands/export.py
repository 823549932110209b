"""``lmsbuild export``: the patches as one plain file for `git am`."""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild import console
from lmsbuild.cli.types import TAG
from lmsbuild.patchset.cmake_hook import is_unproven
from lmsbuild.patchset.export import default_file, export
from lmsbuild.patchset.series import load_hooks
from lmsbuild.registry import load_registry


@click.command()
@click.argument("tag", type=TAG, metavar="TAG")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write  [default: pytorch_TAG_large_model_support.patch]",
)
def command(tag: str, output: Path | None) -> None:
    """Write the patches of TAG as one plain patch, to be applied with `git am`."""
    chosen = load_registry().get(tag)
    target = output or default_file(chosen)
    size = export(chosen, target)
    unproven = [mail.name for mail in load_hooks(chosen) if is_unproven(mail)]
    if unproven:
        console.warn(
            f"left out, because nobody has compared it with {chosen.name}'s own files:"
            f" {', '.join(unproven)}; `lmsbuild apply` tries it"
        )
    console.say(f"wrote {target} ({size / 1000:.0f} kB); on {chosen.name}: git am {target}")
