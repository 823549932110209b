"""Build a wheel with LMS from PyTorch's sources, with cibuildwheel in a manylinux container."""

from __future__ import annotations

import json
import os
import shlex
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from lmsbuild import console
from lmsbuild._compat import tomllib
from lmsbuild.architecture import architectures
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.state import default_directory
from lmsbuild.container.cibuildwheel import Builder, config_text, find_builder
from lmsbuild.container.engine import find_engine, is_emulated
from lmsbuild.errors import (
    BuildConfigError,
    NoEngineError,
    SourceBuildError,
    WrongPlatformError,
    WrongPythonError,
)
from lmsbuild.registry import Tag
from lmsbuild.resources import data_file
from lmsbuild.tools import git
from lmsbuild.tools.atomic import folder_beside
from lmsbuild.wheel.base import LIBRARY_MEMBER
from lmsbuild.wheel.version import lms_version

DATA = "source.toml"
# Libraries that are not put into the wheel: CUDA's, and the driver's.
_FOREIGN = ("libcu*", "libnv*", "libnccl*")
_PASSED = ("MAX_JOBS", "TORCH_CUDA_ARCH_LIST")  # variables of PyTorch's build that the user may set


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """What to build.

    Attributes:
        tag: the release.
        architecture: such as "ppc64le".
        python: such as "3.12". If None, the running one if the release supports it, otherwise the
            newest of the release.
        source: URL, local repository, checkout or tarball. If None, ``upstream_url`` is cloned.
        into: folder of the new checkout.
        out: folder of the new wheel.
        image: container image with CUDA and a compiler. If None, they are installed in the
            manylinux image.
        engine: container engine, optionally with arguments, in cibuildwheel's syntax. If None, the
            first one that works.
        patches: folder with the runtime and the hooks. If None, the project's own.
    """

    tag: Tag
    architecture: str
    python: str | None
    source: str | None
    upstream_url: str
    into: Path | None
    out: Path
    image: str | None = None
    engine: str | None = None
    patches: Path | None = None


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """What a build would do.

    Attributes:
        python: CPython version of the wheel.
        identifier: cibuildwheel's name for the wheel.
        checkout: folder of the patched sources; it may not exist yet.
        engine: the container engine, or None if none works on this machine.
        no_engine: the reason why none works.
        image: the container's image.
        environment: variables in the container.
        config: cibuildwheel's configuration file.
        estimate: how long the build takes, in words.
    """

    request: BuildRequest
    builder: Builder
    python: str
    identifier: str
    checkout: Path
    engine: str | None
    no_engine: str
    image: str
    environment: Mapping[str, str]
    config: str
    estimate: str

    def document(self) -> dict[str, object]:
        """The plan as an object for JSON."""
        request = self.request
        return {
            "tag": request.tag.name,
            "strategy": "source",
            "architecture": request.architecture,
            "python": self.python,
            "out": str(request.out),
            "source": request.source or request.upstream_url,
            "checkout": str(self.checkout),
            "cibuildwheel": self.builder.version,
            "identifier": self.identifier,
            "engine": self.engine,
            "image": self.image,
            "environment": dict(self.environment),
            "config": self.config,
            "estimate": self.estimate,
        }

    def lines(self) -> list[str]:
        """The plan as lines of text."""
        request = self.request
        tag = request.tag
        command = [*self.builder.command(self.identifier, Path("CONFIG")), "--output-dir"]
        rows = [
            ("sources", f"{request.source or request.upstream_url}, patched in {self.checkout}"),
            ("builder", f"cibuildwheel {self.builder.version}, {self.identifier}"),
            ("container", self.image),
            ("engine", self.engine or f"none: {self.no_engine}"),
            ("time", self.estimate),
            ("then", "git submodule update --init --recursive"),
            ("then", f"{shlex.join(command)} {shlex.quote(str(request.out))} ."),
        ]
        title = f"{tag.name} for CPython {self.python} on {request.architecture}, from source"
        table = [f"  {name:<10} {text}" for name, text in rows]
        config = [f"    {line}".rstrip() for line in self.config.splitlines()]
        return [title, *table, "  CONFIG", *config]


def plan_build(request: BuildRequest) -> BuildPlan:
    """Plan a build. Nothing is built or downloaded.

    Raises:
        WrongPythonError: the release does not support this version of Python.
        WrongPlatformError: there is no CUDA of the release for this architecture.
        BuilderError: cibuildwheel is not installed, or too old.
        NoIdentifierError: cibuildwheel cannot build this wheel.
        BuildConfigError: the configuration, or the data that it is made from, is malformed.
    """
    data = load_data()
    tag, architecture = request.tag, request.architecture
    _require_cuda(request, data)
    python = request.python or _default_python(tag)
    if python not in tag.pythons:
        raise WrongPythonError(
            f"{tag.name} supports CPython {', '.join(tag.pythons)}, not {python};"
            " choose with --python"
        )
    builder = find_builder(_advice(python, data))
    identifier = f"cp{python.replace('.', '')}-manylinux_{architecture}"
    engine, no_engine = request.engine, ""
    if engine is None:
        try:
            engine = find_engine(architecture).name
        except NoEngineError as error:
            no_engine = error.message
    environment = _environment(tag, request.image, data)
    config = config_text(_settings(request, engine, data), environment)
    builder.check_config(config)
    builder.require(identifier, config, _advice(python, data))
    return BuildPlan(
        request=request,
        builder=builder,
        python=python,
        identifier=identifier,
        checkout=_checkout(request),
        engine=engine,
        no_engine=no_engine,
        image=request.image or builder.image(data["image"], architecture),
        environment=environment,
        config=config,
        estimate=_estimate(tag, architecture, data),
    )


def build(plan: BuildPlan) -> Path:
    """Patch the sources, build the wheel, and move it to ``request.out``. Returns its path.

    Raises:
        NoEngineError: no container engine works on this machine.
        SourceBuildError: the build failed, or its wheel has no LMS.
        LmsbuildError: as apply().
    """
    request = plan.request
    if plan.engine is None:
        raise NoEngineError(plan.no_engine)
    outcome = apply(
        request.tag,
        upstream_url=request.upstream_url,
        given_source=request.source,
        into=request.into,
        patches=request.patches,
    )
    if outcome.left_out:
        hook, reason = outcome.left_out[0]
        raise SourceBuildError(
            f"{hook} is left out of {outcome.directory}: {reason}; a wheel that is built there"
            " would have no LMS"
        )
    if (outcome.directory / ".gitmodules").is_file():
        console.say("fetching the submodules")
        with git.session(), git.opened(outcome.directory) as repo:
            git.fetch_submodules(repo)
    request.out.mkdir(parents=True, exist_ok=True)
    with folder_beside(request.out / plan.identifier) as folder:
        config = folder / "config.toml"
        config.write_text(plan.config, encoding="utf-8")
        wheel = plan.builder.build(plan.identifier, config, outcome.directory, folder)
        _require_lms(wheel, request.tag)
        finished = request.out / wheel.name
        os.replace(wheel, finished)
    return finished


def load_data() -> dict[str, Any]:
    """The content of source.toml. Raises BuildConfigError."""
    import jsonschema

    try:
        data = tomllib.loads(data_file(DATA).read_text("utf-8"))
        schema = json.loads(data_file("source.schema.json").read_text("utf-8"))
        jsonschema.validate(data, schema)
    except (ValueError, jsonschema.ValidationError) as error:
        reason = getattr(error, "message", error)
        raise BuildConfigError(f"data/{DATA}: {reason}; reinstall lmsbuild") from error
    return data


def _require_cuda(request: BuildRequest, data: Mapping[str, Any]) -> None:
    tag, architecture = request.tag, request.architecture
    if architecture not in architectures():
        known = ", ".join(architectures())
        raise WrongPlatformError(f"there is no CUDA for {architecture}; choose one of {known}")
    last = data["last_cuda"].get(architecture)
    if last and Version(tag.cuda) > Version(last):
        raise WrongPlatformError(
            f"{tag.name} is built with CUDA {tag.cuda}, and the last CUDA for {architecture} is"
            f" {last}; choose an older release: lmsbuild tags"
        )
    if request.image is not None:
        return  # the image has CUDA
    if Version(tag.cuda) < Version(data["first_cuda"]):
        raise WrongPlatformError(
            f"{tag.name} is built with CUDA {tag.cuda}, and NVIDIA's packages begin with"
            f" {data['first_cuda']}; name an image that has it with --image"
        )
    if tag.cuda not in data["gcc"]:
        raise BuildConfigError(
            f"data/{DATA} has no compiler for CUDA {tag.cuda}; add one under [gcc]"
        )


def _default_python(tag: Tag) -> str:
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    return running if running in tag.pythons else tag.pythons[-1]


def _advice(python: str, data: Mapping[str, Any]) -> str:
    for row in data["cibuildwheel"]:
        if Version(python) >= Version(row["oldest_python"]):
            return f"run: pip install '{row['requirement']}'"
    return f"no version of it builds for CPython {python}; choose a newer one with --python"


def _checkout(request: BuildRequest) -> Path:
    if request.into is not None:
        return request.into
    if request.source is not None and (Path(request.source) / ".git").exists():
        return Path(request.source)
    return default_directory(request.tag)


def _settings(
    request: BuildRequest, engine: str | None, data: Mapping[str, Any]
) -> dict[str, str | list[str]]:
    tag, architecture = request.tag, request.architecture
    exclude = " ".join(f"--exclude '{pattern}'" for pattern in _FOREIGN)
    packages = " ".join(f"'{package}'" for package in data["build_packages"])
    settings: dict[str, str | list[str]] = {
        f"manylinux-{architecture}-image": request.image or data["image"],
        "before-build": f"pip install {packages} && pip install -r {{project}}/requirements.txt",
        # The requirements are those of the release, and not what pip installs in isolation.
        "build-frontend": "pip; args: --no-build-isolation",
        "environment-pass": list(_PASSED),
        # PyTorch's own libraries keep their names, because LMS looks for them.
        "repair-wheel-command": f"auditwheel repair {exclude} -w {{dest_dir}} {{wheel}}",
        "test-command": "",
    }
    if engine is not None:
        settings["container-engine"] = engine
    if request.image is None:
        major, minor = tag.cuda.split(".")
        cuda = data["cuda_packages"].format(major=major, minor=minor)
        folder = architectures()[architecture].cuda_repository
        repository = data["repository"].format(architecture=folder)
        settings["before-all"] = (
            "dnf install -y dnf-plugins-core"
            f" && dnf config-manager --add-repo {repository}"
            f" && dnf install -y {data['gcc'][tag.cuda]} {cuda}"
        )
    return settings


def _environment(tag: Tag, image: str | None, data: Mapping[str, Any]) -> dict[str, str]:
    variables = {
        "PYTORCH_BUILD_VERSION": lms_version(Version(tag.version)),
        "PYTORCH_BUILD_NUMBER": "1",
        "USE_CUDA": "1",
        "USE_LMS": "1",
        "BUILD_TEST": "0",
    }
    if image is not None:
        return variables
    gcc = data["gcc"][tag.cuda]
    compilers = f"/opt/rh/{gcc}/root/usr/bin" if gcc.startswith("gcc-toolset") else "/usr/bin"
    home = f"/usr/local/cuda-{tag.cuda}"
    return {
        **variables,
        "CUDA_HOME": home,
        "CC": f"{compilers}/gcc",
        "CXX": f"{compilers}/g++",
        "CUDAHOSTCXX": f"{compilers}/g++",
        "PATH": f"{home}/bin:$PATH",
    }


def _estimate(tag: Tag, architecture: str, data: Mapping[str, Any]) -> str:
    for row in data["estimate"]:
        if (row["cuda"], row["architecture"]) == (tag.cuda, architecture):
            if is_emulated(architecture):
                return f"unknown for an emulated processor; otherwise {row['source']}"
            cores = os.cpu_count() or 1
            low, high = (hours / cores for hours in row["core_hours"])
            return f"about {low:.1f} to {high:.1f} h on {cores} cores ({row['source']})"
    return "unknown"


def _require_lms(wheel: Path, tag: Tag) -> None:
    """Raise SourceBuildError if a wheel that should contain the runtime's library does not."""
    if "graft" in tag.strategies:
        with zipfile.ZipFile(wheel) as archive:
            if LIBRARY_MEMBER not in archive.NameToInfo:
                raise SourceBuildError(
                    f"{wheel.name} was built without LMS; look for USE_LMS in CMake's output above"
                )
