"""lmsbuild --version: the release, the runtime's interface, and the commit."""

from __future__ import annotations

import re

import click

import lmsbuild

_RUNTIME = "runtime/torch/cuda/lms/__init__.py"  # below patches/


def version_option(command: click.Command) -> None:
    """Give the group its --version."""
    command.params.append(
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show,
            help="Show the versions of lmsbuild and of the runtime, and the commit, and exit.",
        )
    )


def version_line() -> str:
    """All that a bug report should have."""
    from lmsbuild.wheel.provenance import toolkit_commit

    commit = toolkit_commit()
    told = "unknown commit" if commit == "unknown" else f"commit {commit}"
    return f"lmsbuild {lmsbuild.__version__}, runtime ABI {runtime_abi()}, {told}"


def runtime_abi() -> str:
    """The version of the interface between the runtime and its Python part."""
    from lmsbuild.errors import RegistryError
    from lmsbuild.resources import patches_dir

    try:
        text = (patches_dir() / _RUNTIME).read_text(encoding="utf-8")
    except (OSError, RegistryError):
        return "unknown"
    found = re.search(r"^_ABI_VERSION = (\d+)$", text, re.MULTILINE)
    return found[1] if found else "unknown"


def _show(context: click.Context, parameter: click.Parameter, given: bool) -> None:
    if given and not context.resilient_parsing:
        click.echo(version_line())
        context.exit()
