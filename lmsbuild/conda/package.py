"""Make conda packages from an LMS wheel, with conda-build or rattler-build."""

from __future__ import annotations

import datetime
import enum
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmsbuild.addon.verify import is_addon
from lmsbuild.conda import addon, extra, package_file, recipe
from lmsbuild.conda.metadata import Metadata, metadata_of
from lmsbuild.conda.stage import licenses, stage
from lmsbuild.errors import DamagedWheelError, PackagerError, PackagingError, TargetExistsError
from lmsbuild.tools import lock
from lmsbuild.tools.atomic import draft
from lmsbuild.tools.cache import scratch
from lmsbuild.tools.report import Report, counter
from lmsbuild.wheel import base as basewheel
from lmsbuild.wheel import integrity
from lmsbuild.wheel.base import BaseWheel

# zstd's level. 19 makes the package 2 % smaller and takes ten times as long.
LEVEL = 9

_LOCK_FILE = ".lmsbuild.lock"

# What installers read to put the files into the environment's site-packages and bin.
_LINK = {"noarch": {"type": "python"}, "package_metadata_version": 1}


class Packager(str, enum.Enum):
    """The program that makes the package."""

    RATTLER_BUILD = "rattler-build"
    CONDA_BUILD = "conda-build"


@dataclass(frozen=True, kw_only=True)
class PackageRequest:
    """What to package.

    Attributes:
        wheel: an LMS wheel, or one of torch-lms.
        out: folder; packages are written to its subfolder for the platform.
        packager: each gives other bytes of the same files.
        build_number: if None, the number of the wheel's LMS version; 0 for torch-lms.
        recipes: folder of the recipes.
        cache: folder for temporary files, about 2 GB.
    """

    wheel: Path
    out: Path
    packager: Packager
    build_number: int | None
    recipes: Path
    cache: Path


@dataclass(frozen=True, kw_only=True)
class PackageResult:
    """A finished package."""

    path: Path
    metadata: Metadata
    packager: Packager


def build_packages(request: PackageRequest, report: Report) -> list[PackageResult]:
    """Make the conda packages of a wheel: one, or several of torch-lms.

    No unfinished file is left in the out folder.

    Raises:
        LmsbuildError: a subclass for each kind of failure.
        OSError: a file cannot be read or written.
    """
    require_packager(request.packager)
    chosen = request.packager is Packager.CONDA_BUILD
    build = _with_conda_build if chosen else _with_rattler_build
    with scratch(request.cache) as name:
        folder = Path(name) / "prepared"
        folder.mkdir()
        recipes = prepare(request, folder, report)
        report("package", 0, None)
        made = {
            build(into, metadata, Path(name) / "out"): metadata
            for into, metadata in recipes.items()
        }
        return [
            PackageResult(
                path=_keep(path, request.out / metadata.subdir),
                metadata=metadata,
                packager=request.packager,
            )
            for path, metadata in made.items()
        ]


def _keep(made: Path, out: Path) -> Path:
    """Copy a package into a folder. Returns its new path."""
    out.mkdir(parents=True, exist_ok=True)
    with lock.exclusive(out / _LOCK_FILE, out):
        path = out / made.name
        with draft(path) as unfinished:
            shutil.copyfile(made, unfinished)
    return path


def check_recipe_folder(folder: Path) -> None:
    """Raise TargetExistsError if recipes cannot be written there, PackagerError without jinja2."""
    if folder.exists() and any(folder.iterdir()):
        raise TargetExistsError(f"{folder} is not empty; name a new folder")
    extra.require("jinja2")


def write_recipe(request: PackageRequest, folder: Path, report: Report) -> dict[Path, Metadata]:
    """Write the recipes and the files into a new folder, for running a packager by hand.

    Raises TargetExistsError if the folder is not empty, and otherwise as build_packages.
    """
    check_recipe_folder(folder)
    existed = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return prepare(request, folder, report)
    except BaseException:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not existed:
            folder.rmdir()
        raise


def prepare(request: PackageRequest, folder: Path, report: Report) -> dict[Path, Metadata]:
    """Check the wheel, and write its files and recipes into an empty folder.

    Returns each package's metadata by the folder of its recipes, which is below ``folder``.
    """
    for_torch = not is_addon(request.wheel)
    wheel = (basewheel if for_torch else addon).identify(request.wheel)
    total = _checked(wheel, report)
    files = folder / recipe.STAGE
    files.mkdir()
    stage(wheel, files, counter("unpack", total, report))
    if for_torch:
        found: tuple[Metadata, ...] = (metadata_of(wheel, files, request.build_number),)
    else:
        found = addon.metadata_of(wheel, files, request.build_number)
    if len(found) == 1:
        recipes = {folder / recipe.FOLDER: found[0]}
    else:
        recipes = {folder / metadata.build_string: metadata for metadata in found}
    for into, metadata in recipes.items():
        recipe.write_recipes(metadata, licenses(files, wheel.dist_info), request.recipes, into)
    return recipes


def require_packager(packager: Packager) -> None:
    """Raise PackagerError if a packager is not installed."""
    if packager is Packager.CONDA_BUILD and not shutil.which("conda-build"):
        raise PackagerError("conda-build is not installed; run: conda install conda-build")
    if packager is Packager.RATTLER_BUILD:
        extra.require("rattler_build")
    for module in ("jinja2", "zstandard"):
        extra.require(module)


def render(folder: Path, subdir: str) -> Any:
    """recipe.yaml, rendered by rattler-build (a Stage1Recipe).

    Raises PackagerError, PackagingError.
    """
    rattler = extra.require("rattler_build")
    platform = rattler.PlatformConfig(target_platform=subdir)
    try:
        found = rattler.Stage0Recipe.from_file(folder / recipe.RATTLER_BUILD).render(
            rattler.VariantConfig(), rattler.RenderConfig(platform=platform)
        )
    except rattler.RattlerBuildError as error:
        raise PackagingError(
            f"rattler-build cannot read {recipe.RATTLER_BUILD} ({error})"
        ) from error
    return found[0].recipe


def _checked(wheel: BaseWheel, report: Report) -> int:
    """Check the wheel against its RECORD. Returns the unpacked size in bytes.

    Raises DamagedWheelError.
    """
    with integrity.open_wheel(wheel.path) as packed:
        total = sum(info.file_size for info in packed.infolist())
    problems = integrity.record_problems(wheel.path, counter("check", total, report))
    if problems:
        raise DamagedWheelError(
            f"{wheel.path.name} does not match its RECORD: {problems[0]}; build it again",
            detail="\n".join(problems),
        )
    return total


def _with_rattler_build(folder: Path, metadata: Metadata, out: Path) -> Path:
    """Assemble the package from the rendered recipe.

    A build would add the current time and its log files, and no two results would be identical.
    """
    rattler = extra.require("rattler_build")
    rendered = render(folder, metadata.subdir)
    build, about = rendered.build.to_dict(), rendered.about
    requirements = rendered.requirements.to_dict()
    try:
        made = rattler.assemble_package(
            name=rendered.package.name,
            version=rendered.package.version,
            target_platform=metadata.subdir,
            build_string=build["string"],
            build_number=build["number"],
            output_dir=out,
            files_dir=folder.parent / recipe.STAGE,
            depends=requirements.get("run", []),
            constrains=requirements.get("run_constraints", []),
            homepage=about.homepage,
            license=about.license,
            summary=about.summary,
            noarch="python",
            compression_level=LEVEL,
            # The number of threads determines the compressed bytes.
            compression_threads=1,
            detect_prefix=False,
            timestamp=datetime.datetime.fromtimestamp(metadata.timestamp, datetime.timezone.utc),
        )
    except rattler.RattlerBuildError as error:
        raise PackagingError(f"rattler-build failed ({error})") from error
    times = build.get("variant", {}).get("down_prioritize_variant", 0)
    features = " ".join(f"{rendered.package.name}-p-{number}" for number in range(times))

    def track(index: dict[str, Any]) -> None:
        if features:
            index["track_features"] = features

    more = {package_file.LINK: _json(_LINK)}
    if exports := requirements.get("run_exports"):
        more[package_file.RUN_EXPORTS] = _json(exports)
    for license_file in about.to_dict().get("license_file", []):
        more[f"{package_file.LICENSES}/{license_file}"] = (folder / license_file).read_bytes()
    package_file.edit_index(made.path, track, more)
    return Path(made.path)


def _with_conda_build(folder: Path, metadata: Metadata, out: Path) -> Path:
    # Name the file, because the folder also contains the recipe of rattler-build.
    command = ["conda-build", str(folder / recipe.CONDA_BUILD), "--output-folder", str(out)]
    command += ["--croot", str(out / "work"), "--package-format", "2", "--no-test"]
    command += ["--no-anaconda-upload", "--override-channels", "--no-include-recipe"]
    # The default, 19, takes many minutes, and the package is compressed again below.
    command += ["--zstd-compression-level", "1"]
    # conda-build writes sets of files in the order of their hashes.
    environment = {**os.environ, "CONDA_SUBDIR": metadata.subdir, "PYTHONHASHSEED": "0"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    found = sorted((out / metadata.subdir).glob(f"{metadata.stem}{package_file.ENDING}"))
    if result.returncode or not found:
        lines = [line for line in (result.stderr or result.stdout).splitlines() if line.strip()]
        raise PackagingError(
            f"conda-build failed: {(lines or ['it wrote no package'])[-1].strip()[:200]}",
            detail=result.stdout + result.stderr,
        )
    package_file.normalize(found[0], metadata.timestamp, LEVEL)
    return found[0]


def _json(document: object) -> bytes:
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()
