"""lmsbuild wheel --strategy: how it is chosen, the options of "source", and what that says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from lmsbuild import console
from lmsbuild.registry import Registry, Tag

_OPTIONS = (
    click.option(
        "--strategy",
        type=click.Choice(["auto", "graft", "source"]),
        default="auto",
        show_default=True,
        help="graft: from the official wheel, or from --base; source: from PyTorch's sources, in a"
        " container; auto: graft where there is something to graft onto, else source.",
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
)


def source_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of a build from source to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def choose_strategy(given: str, tag: Tag, architecture: str, *, base: bool) -> str:
    """ "graft" or "source", which it says when it was not asked for by name."""
    if given != "auto":
        return given
    if "graft" not in tag.strategies:
        reason = f"{tag.name} can only be built from source"
    elif not base and architecture not in tag.architectures:
        reason = (
            f"{tag.name} has no official CUDA wheel for {architecture}; --base names another one"
        )
    else:
        onto = "the given base" if base else "the official wheel"
        console.say(f"strategy: graft, onto {onto}")
        return "graft"
    console.say(f"strategy: source, because {reason}")
    return "source"


def refuse_source_options(options: Mapping[str, Any]) -> None:
    """A graft takes none of them. Raises click.UsageError."""
    for name, value in options.items():
        if value:
            raise click.UsageError(f"--{name.replace('_', '-')} is for --strategy source")


def build_from_source(
    tag: Tag,
    registry: Registry,
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
    as_json: bool,
) -> None:
    """Plan a build and say so; then do it."""
    if base is not None:
        raise click.UsageError("--base is for --strategy graft")
    from lmsbuild.container.build import BuildRequest, build, plan_build

    request = BuildRequest(
        tag=tag,
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
    if as_json:
        click.echo(json.dumps(plan.document(), indent=2))
        return
    if dry_run:
        for line in plan.lines():
            console.out.print(line)
        return
    for line in plan.lines():
        console.say(line)
    path = build(plan)
    console.say(f"{path.name}: LMS for {request.tag.name}; install it with pip or uv")
    console.out.print(str(path))
