"""``lmsbuild dev``: what those need who maintain the patches."""

from __future__ import annotations

import sys

import click

from lmsbuild.cli.lazy import LazyGroup


@click.group("dev", cls=LazyGroup, package=sys.modules[__name__])
def command() -> None:
    """Maintain the patches: port them to a new release, write them anew, test every tag.

    These commands work in a checkout of lmsbuild, or on the patches that --patches names.
    """
