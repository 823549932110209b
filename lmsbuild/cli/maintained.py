"""The patches that a maintainer works on: a checkout's, never those of an installed lmsbuild."""

from __future__ import annotations

from pathlib import Path

import click

from lmsbuild import resources

patches_option = click.option(
    "--patches",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="The patches to work on, with tags.toml  [default: those of the checkout that lmsbuild"
    " runs from]",
)


def maintained_patches(given: Path | None) -> Path:
    """The patches to work on. Raises click.UsageError where there are none."""
    if given is None:
        own = resources.patches_dir()
        if _is_installed(own):
            raise click.UsageError(
                "this lmsbuild is installed, and its own patches are not to be changed: run it"
                " from a checkout of lmsbuild, or name the patches with --patches"
            )
        return own
    if _is_installed(given.resolve()):
        raise click.UsageError(
            f"{given} belongs to an installed lmsbuild, and is not to be changed: name the"
            " patches of a checkout, or a copy"
        )
    if not (given / "tags.toml").is_file():
        raise click.UsageError(f"{given} has no tags.toml: name a folder with patches")
    return given


def _is_installed(patches: Path) -> bool:
    """Whether a wheel of lmsbuild brought them: then they lie in its package."""
    return (patches.parent / "__init__.py").is_file()
