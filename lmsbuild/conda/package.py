"""Making a conda package of an LMS wheel, with the packager that is there."""

from __future__ import annotations

import datetime
import enum
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmsbuild.conda import extra, package_file, recipe
from lmsbuild.conda.metadata import Metadata, metadata_of
from lmsbuild.conda.stage import stage
from lmsbuild.errors import DamagedWheelError, PackagerError, TargetExistsError
from lmsbuild.tools import lock
from lmsbuild.tools.atomic import draft
from lmsbuild.tools.cache import scratch
from lmsbuild.tools.report import Report, counter
from lmsbuild.wheel import base as basewheel
from lmsbuild.wheel import integrity
from lmsbuild.wheel.base import BaseWheel

# zstd's: 19 makes PyTorch 2 % smaller and takes ten times as long.
LEVEL = 9

_LOCK_FILE = ".lmsbuild.lock"


class Packager(str, enum.Enum):
    """What makes the package."""

    AUTO = "auto"
    CONDA_BUILD = "conda-build"
    RATTLER_BUILD = "rattler-build"


@dataclass(frozen=True, kw_only=True)
class PackageRequest:
    """What to package.

    Attributes:
        wheel: an LMS wheel.
        out: folder; the package goes to its subfolder of the platform.
        packager: AUTO takes conda-build where it is installed.
        build_number: None takes the one of the wheel's LMS version.
        recipes: the recipes folder.
        cache: folder for temporary files, 2 GB.
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


def build_package(request: PackageRequest, report: Report) -> PackageResult:
    """Make the conda package of a wheel in its out folder; on failure nothing is left there.

    Raises a subclass of LmsbuildError for each way to fail; OSError for the file system's.
    """
    packager = choose(request.packager)
    with scratch(request.cache) as name:
        folder = Path(name) / "recipe"
        folder.mkdir()
        metadata = prepare(request, folder, report)
        out = request.out / metadata.subdir
        out.mkdir(parents=True, exist_ok=True)
        with lock.exclusive(out / _LOCK_FILE, out):
            report("package", 0, None)
            build = _with_conda_build if packager is Packager.CONDA_BUILD else _with_rattler_build
            made = build(folder, metadata, Path(name) / "out")
            path = out / made.name
            with draft(path) as unfinished:
                shutil.copyfile(made, unfinished)
    return PackageResult(path=path, metadata=metadata, packager=packager)


def write_recipe(request: PackageRequest, folder: Path, report: Report) -> Metadata:
    """Write recipes and files into a new folder, for a packager that is run by hand.

    Raises TargetExistsError, and as build_package.
    """
    if folder.exists() and any(folder.iterdir()):
        raise TargetExistsError(f"{folder} is not empty; name a new folder")
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


def prepare(request: PackageRequest, folder: Path, report: Report) -> Metadata:
    """Check the wheel, and write its files and recipes into an empty folder."""
    wheel = basewheel.identify(request.wheel)
    total = _checked(wheel, report)
    files = folder / recipe.STAGE
    files.mkdir()
    stage(wheel, files, counter("unpack", total, report))
    metadata = metadata_of(wheel, files, request.build_number)
    recipe.write_recipes(metadata, request.recipes, folder)
    return metadata


def choose(packager: Packager) -> Packager:
    """The packager to use. Raises PackagerError when it is not installed."""
    if packager is Packager.AUTO:
        packager = Packager.CONDA_BUILD if shutil.which("conda-build") else Packager.RATTLER_BUILD
    if packager is Packager.CONDA_BUILD and not shutil.which("conda-build"):
        raise PackagerError("conda-build is not installed; run: conda install conda-build")
    if packager is Packager.RATTLER_BUILD:
        extra.require("rattler_build")
    for module in ("jinja2", "zstandard"):
        extra.require(module)
    return packager


def render(folder: Path, subdir: str) -> Any:
    """recipe.yaml as rattler-build itself reads it: its Stage1Recipe. Raises PackagerError."""
    rattler = extra.require("rattler_build")
    platform = rattler.PlatformConfig(target_platform=subdir)
    try:
        found = rattler.Stage0Recipe.from_file(folder / recipe.RATTLER_BUILD).render(
            rattler.VariantConfig(), rattler.RenderConfig(platform=platform)
        )
    except rattler.RattlerBuildError as error:
        raise PackagerError(
            f"rattler-build cannot read {recipe.RATTLER_BUILD} ({error})"
        ) from error
    return found[0].recipe


def _checked(wheel: BaseWheel, report: Report) -> int:
    """Raise DamagedWheelError unless RECORD is true; the unpacked size."""
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
    """Assembled from the rendered recipe, not built by its script: that takes the clock's time and
    leaves log files in the package, so that no two builds would be the same."""
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
            files_dir=folder / recipe.STAGE,
            depends=requirements.get("run", []),
            constrains=requirements.get("run_constraints", []),
            homepage=about.homepage,
            license=about.license,
            summary=about.summary,
            compression_level=LEVEL,
            # What is compressed in how many parts shall not depend on the machine.
            compression_threads=1,
            detect_prefix=False,
            timestamp=datetime.datetime.fromtimestamp(metadata.timestamp, datetime.timezone.utc),
        )
    except rattler.RattlerBuildError as error:
        raise PackagerError(f"rattler-build failed ({error})") from error
    times = build.get("variant", {}).get("down_prioritize_variant", 0)
    features = " ".join(f"{rendered.package.name}-p-{number}" for number in range(times))

    def track(index: dict[str, Any]) -> None:
        index["track_features"] = features

    package_file.edit_index(made.path, track)
    return Path(made.path)


def _with_conda_build(folder: Path, metadata: Metadata, out: Path) -> Path:
    # The file: the folder has rattler-build's recipe, too.
    command = ["conda-build", str(folder / recipe.CONDA_BUILD), "--output-folder", str(out)]
    command += ["--croot", str(out / "work"), "--package-format", "2", "--no-test"]
    command += ["--no-anaconda-upload", "--override-channels", "--no-include-recipe"]
    # By default 19, which takes many minutes; what it makes is compressed again below.
    command += ["--zstd-compression-level", "1"]
    # Its sets of files are written in the order of their hashes.
    environment = {**os.environ, "CONDA_SUBDIR": metadata.subdir, "PYTHONHASHSEED": "0"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    found = sorted((out / metadata.subdir).glob(f"{metadata.stem}{package_file.ENDING}"))
    if result.returncode or not found:
        lines = [line for line in (result.stderr or result.stdout).splitlines() if line.strip()]
        raise PackagerError(
            f"conda-build failed: {(lines or ['it made no package'])[-1].strip()[:200]}",
            detail=result.stdout + result.stderr,
        )
    package_file.normalize(found[0], metadata.timestamp, LEVEL)
    return found[0]
