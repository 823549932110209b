"""lmsbuild wheel: an LMS wheel from the official one, or from another base."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from lmsbuild import console
from lmsbuild.cli.options import architecture_option, json_option, python_option
from lmsbuild.cli.progress import StageDisplay
from lmsbuild.cli.source_options import (
    build_from_source,
    choose_strategy,
    refuse_source_options,
    source_options,
)
from lmsbuild.cli.types import EXISTING_FILE, TAG
from lmsbuild.conda import base as condabase
from lmsbuild.registry import load_registry
from lmsbuild.resources import patches_dir
from lmsbuild.tools.cache import default_cache
from lmsbuild.tools.cache_content import in_use
from lmsbuild.wheel.base import identify
from lmsbuild.wheel.request import GraftRequest


@click.command("wheel")
@click.argument("tag", type=TAG, metavar="[TAG]", required=False)
@architecture_option("wheel")
@python_option("wheel")
@click.option(
    "--base",
    "bases",
    type=EXISTING_FILE,
    multiple=True,
    help="Wheel or conda package to build on; a second one has what a conda package lacks."
    " [default: the official wheel, fetched with pip]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("dist"),
    show_default=True,
    help="Folder of the new wheel.",
)
@source_options
@click.option("--dry-run", is_flag=True, help="Fetch and build nothing; say what would be done.")
@json_option
def command(
    tag: str | None,
    architecture: str,
    python: str | None,
    bases: tuple[Path, ...],
    out: Path,
    strategy: str,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Make the LMS wheel of TAG: graft LMS onto the official one, or build it from source.

    Without TAG: of the base's version, or of the newest release proven on a GPU. Where there is no
    official CUDA wheel (ppc64le), --base is a wheel or a conda package with CUDA: a package of the
    same kind comes out.
    """
    base = bases[0] if bases else None
    conda = base is not None and condabase.is_package(base)
    if len(bases) > 1 and not conda:
        raise click.UsageError("only a conda package can have a second --base")
    if as_json and not dry_run:
        raise click.UsageError("--json is for --dry-run")
    patches = patches_dir()
    registry = load_registry(patches)
    if tag is None and base is not None and strategy != "source":
        tag = condabase.release(base) if conda else identify(base).version.public
    chosen = registry.get(tag) if tag else registry.default
    strategy = choose_strategy(strategy, chosen, architecture, base=base is not None)
    if strategy == "source":
        build_from_source(
            chosen,
            registry,
            architecture,
            python,
            base,
            out,
            dry_run=dry_run,
            as_json=as_json,
            **options,
        )
        return
    refuse_source_options(options)
    if python is None and base is None:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
    request = GraftRequest(
        tag=chosen,
        architecture=architecture,
        python=python,
        base=base,
        out=out,
        patches=patches,
        cache=default_cache(),
        companions=bases[1:],
    )
    if dry_run:
        from lmsbuild.wheel.preview import preview

        plan = preview(request)
        click.echo(json.dumps(plan.document(), indent=2) if as_json else "\n".join(plan.lines()))
        return
    with in_use(request.cache), StageDisplay() as display:
        if conda:
            from lmsbuild.conda.graft import build_package as build
        else:
            from lmsbuild.wheel.graft import build_wheel as build
        result = build(request, display.report)
    from lmsbuild.patchset.cmake_hook import is_cmake_file

    # What the build's files say is what this command does itself.
    skipped = [path for path in result.provenance.skipped if not is_cmake_file(path)]
    if skipped:
        console.say(f"hooks for files that no wheel carries were left out: {', '.join(skipped)}")
    console.say(
        f"{result.path.name}: LMS for {chosen.name}, "
        f"{result.path.stat().st_size / 1e6:.1f} MB; install it with "
        + ("conda" if conda else "pip or uv")
    )
    console.out.print(str(result.path))
