"""lmsbuild overlay: LMS for a torch that is installed read-only."""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild import console
from lmsbuild.cli.progress import StageDisplay
from lmsbuild.cli.types import EXISTING_FOLDER
from lmsbuild.registry import load_registry
from lmsbuild.resources import patches_dir
from lmsbuild.tools.cache import default_cache
from lmsbuild.tools.cache_content import in_use
from lmsbuild.wheel.overlay import build_overlay, find_installation, tag_for


@click.command("overlay")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--torch",
    "torch",
    required=True,
    type=EXISTING_FOLDER,
    help="The installed torch: …/site-packages/torch.",
)
def command(folder: Path, torch: Path) -> None:
    """Make DIR, a folder that adds LMS to an installed torch for programs with DIR on PYTHONPATH.

    The installation is not touched, and has to stay where it is.
    """
    patches = patches_dir()
    installation = find_installation(torch)
    tag = tag_for(installation, load_registry(patches))
    with in_use(default_cache()) as cache, StageDisplay() as display:
        made = build_overlay(
            installation, tag, folder, patches=patches, cache=cache, report=display.report
        )
    console.say(f"LMS for torch {installation.version}: export PYTHONPATH={made}")
    console.out.print(str(made))
