"""lmsbuild wheel --strategy source: its options, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from lmsbuild import console
from lmsbuild.registry import load_registry

_OPTIONS = (
    click.option(
        "--strategy",
        type=click.Choice(["graft", "source"]),
        default="graft",
        show_default=True,
        help="From the official wheel, or from PyTorch's sources in a container.",
    ),
    click.option(
        "--source",
        metavar="SOURCE",
        help="With --strategy source: URL, clone, checkout or tarball.  [default: upstream's URL]",
    ),
    click.option(
        "--into",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="With --strategy source: the checkout to make.",
    ),
    click.option(
        "--image",
        metavar="IMAGE",
        help="With --strategy source: a container image that has CUDA and a compiler.",
    ),
    click.option(
        "--engine",
        metavar="ENGINE",
        help="With --strategy source: docker or podman; arguments as in cibuildwheel's"
        " container-engine.  [default: the one that works]",
    ),
    click.option("--dry-run", is_flag=True, help="With --strategy source: say what would be done."),
)


def source_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of a build from source to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def refuse_source_options(options: Mapping[str, Any]) -> None:
    """A graft takes none of them. Raises click.UsageError."""
    for name, value in options.items():
        if value:
            raise click.UsageError(f"--{name.replace('_', '-')} is for --strategy source")


def build_from_source(
    tag: str | None,
    architecture: str,
    python: str | None,
    base: Path | None,
    out: Path,
    *,
    source: str | None,
    into: Path | None,
    image: str | None,
    engine: str | None,
    dry_run: bool,
) -> None:
    """Plan a build and say so; then do it."""
    if base is not None:
        raise click.UsageError("--base is for --strategy graft")
    from lmsbuild.container.build import BuildRequest, build, plan_build

    registry = load_registry()
    request = BuildRequest(
        tag=registry.get(tag) if tag else registry.default,
        architecture=architecture,
        python=python,
        source=source,
        upstream_url=registry.upstream_url,
        into=into,
        out=out,
        image=image,
        engine=engine,
    )
    plan = plan_build(request)
    if dry_run:
        for line in plan.lines():
            console.out.print(line)
        return
    for line in plan.lines():
        console.say(line)
    path = build(plan)
    console.say(f"{path.name}: LMS for {request.tag.name}; install it with pip or uv")
    console.out.print(str(path))
