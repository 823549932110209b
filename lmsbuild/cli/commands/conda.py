"""lmsbuild conda: conda packages from an LMS wheel."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lmsbuild import console
from lmsbuild.cli.options import architecture_option, is_given, python_option
from lmsbuild.cli.progress import StageDisplay
from lmsbuild.cli.types import EXISTING_FILE, TAG
from lmsbuild.conda import package
from lmsbuild.conda.package import Packager
from lmsbuild.registry import load_registry
from lmsbuild.resources import patches_dir, recipes_dir
from lmsbuild.tools.cache import default_cache, scratch
from lmsbuild.tools.cache_content import in_use


@click.command("conda")
@click.argument("tag", type=TAG, metavar="[TAG]", required=False)
@architecture_option("package")
@python_option("package")
@click.option(
    "--base",
    type=EXISTING_FILE,
    help="Official wheel to build on. [default: fetched with pip]",
)
@click.option(
    "--wheel",
    type=EXISTING_FILE,
    help="LMS wheel to package, or one of torch-lms, made before; it says tag, architecture and"
    " Python.",
)
@click.option(
    "--addon",
    "for_addon",
    is_flag=True,
    help="Make the packages of torch-lms instead, which adds LMS to conda-forge's PyTorch: for TAG,"
    " or for each release that has an official wheel, from 2.6 on.",
)
@click.option(
    "--packager",
    type=click.Choice([choice.value for choice in Packager]),
    default=Packager.RATTLER_BUILD.value,
    show_default=True,
    help="What makes the package: py-rattler-build, or the program conda-build.",
)
@click.option(
    "--build-number",
    type=click.IntRange(min=0),
    help="Raise it to replace a package of the same version in a channel.  [default: 0 for"
    " torch-lms, else that of the LMS version]",
)
@click.option(
    "--recipe",
    type=click.Path(path_type=Path, file_okay=False),
    help="Only write both recipes and the files there, for a packager that is run by hand.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("dist"),
    show_default=True,
    help="Folder of the new package, which is written to its subfolder for the platform, such as"
    " linux-64.",
)
def command(
    tag: str | None,
    architecture: str,
    python: str | None,
    base: Path | None,
    wheel: Path | None,
    for_addon: bool,
    packager: str,
    build_number: int | None,
    recipe: Path | None,
    out: Path,
) -> None:
    """Make a conda package of PyTorch with LMS, of TAG's wheel or of a given one.

    Without TAG: of the newest release proven on a GPU. With --addon, or with a wheel of `lmsbuild
    addon`, packages of torch-lms are made, one for each major version of CUDA.
    """
    if wheel is not None and (tag or is_given("architecture") or python or base):
        raise click.UsageError(
            "--wheel says tag, architecture, Python and base itself: leave them out"
        )
    if for_addon and (wheel or python or base):
        raise click.UsageError("--addon takes no --wheel, --python or --base: leave them out")
    if recipe is not None and (is_given("packager") or is_given("out")):
        raise click.UsageError("--recipe makes no package: leave --packager and --out out")
    # Before a wheel is built for nothing.
    if recipe is not None:
        package.check_recipe_folder(recipe)
    else:
        package.require_packager(Packager(packager))
        out.mkdir(parents=True, exist_ok=True)
    cache = default_cache()
    with in_use(cache), StageDisplay() as display, scratch(cache) as folder:
        if for_addon:
            wheel = _build_addon(tag, architecture, Path(folder), display)
        elif wheel is None:
            wheel = _build(tag, architecture, python, base, Path(folder), display)
        request = package.PackageRequest(
            wheel=wheel,
            out=out,
            packager=Packager(packager),
            build_number=build_number,
            recipes=recipes_dir(),
            cache=cache,
        )
        if recipe is not None:
            recipes = package.write_recipe(request, recipe, display.report)
        else:
            results = package.build_packages(request, display.report)
    if recipe is not None:
        for path, metadata in recipes.items():
            console.say(f"{metadata.stem}: recipes and files for {metadata.subdir}")
            console.out.print(str(path))
        return
    for result in results:
        path, subdir = result.path, result.metadata.subdir
        console.say(
            f"{path.name}: {path.stat().st_size / 1e6:.1f} MB for {subdir}, made with "
            f"{result.packager.value}; put it into a channel with `lmsbuild channel add`"
        )
        console.out.print(str(path))


def _build(
    tag: str | None,
    architecture: str,
    python: str | None,
    base: Path | None,
    folder: Path,
    display: StageDisplay,
) -> Path:
    from lmsbuild.wheel import graft
    from lmsbuild.wheel.request import GraftRequest

    patches = patches_dir()
    registry = load_registry(patches)
    if python is None and base is None:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
    request = GraftRequest(
        tag=registry.get(tag) if tag else registry.default,
        architecture=architecture,
        python=python,
        base=base,
        out=folder,
        patches=patches,
        cache=default_cache(),
    )
    return graft.build_wheel(request, display.report).path


def _build_addon(tag: str | None, architecture: str, folder: Path, display: StageDisplay) -> Path:
    from lmsbuild.addon.build import build_addon
    from lmsbuild.addon.release import suitable
    from lmsbuild.addon.request import AddonRequest

    patches = patches_dir()
    registry = load_registry(patches)
    request = AddonRequest(
        tags=(registry.get(tag),) if tag else tuple(suitable(registry, architecture)),
        architecture=architecture,
        out=folder,
        patches=patches,
        cache=default_cache(),
    )
    return build_addon(request, display.report)
