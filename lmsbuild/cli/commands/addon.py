"""lmsbuild addon: the wheel torch-lms, for an official torch that stays as it is."""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild import console
from lmsbuild.addon.build import build_addon
from lmsbuild.addon.release import suitable
from lmsbuild.addon.request import AddonRequest
from lmsbuild.cli.options import architecture_option
from lmsbuild.cli.progress import StageDisplay
from lmsbuild.cli.types import TAG
from lmsbuild.registry import load_registry
from lmsbuild.resources import patches_dir
from lmsbuild.tools.cache import default_cache
from lmsbuild.tools.cache_content import in_use


@click.command("addon")
@architecture_option("wheel")
@click.option(
    "--tag",
    "tags",
    type=TAG,
    metavar="TAG",
    multiple=True,
    help="A release of PyTorch that it supports; can be given several times."
    " [default: all that have an official wheel, from 2.6 on]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("dist"),
    show_default=True,
    help="Folder of the new wheel.",
)
def command(architecture: str, tags: tuple[str, ...], out: Path) -> None:
    """Make the wheel torch-lms, which adds LMS to an official torch that is installed.

    `import torch` loads it, and no file of torch changes. It has one library for each release;
    each official wheel is fetched once.
    """
    patches = patches_dir()
    registry = load_registry(patches)
    wanted = {registry.get(name).name for name in tags}
    chosen = [tag for tag in registry if tag.name in wanted] or suitable(registry, architecture)
    with in_use(default_cache()) as cache, StageDisplay() as display:
        request = AddonRequest(
            tags=tuple(chosen), architecture=architecture, out=out, patches=patches, cache=cache
        )
        path = build_addon(request, display.report)
    versions = ", ".join(tag.version for tag in chosen)
    console.say(
        f"{path.name}: LMS for PyTorch {versions}, {path.stat().st_size / 1e6:.1f} MB; install it"
        " with pip or uv"
    )
    console.out.print(str(path))
