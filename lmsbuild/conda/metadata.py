"""The metadata of a conda package, from the metadata of its wheel."""

from __future__ import annotations

import calendar
import re
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import Specifier
from packaging.utils import canonicalize_name
from packaging.version import Version

from lmsbuild.conda.libraries import (
    is_library_requirement,
    library_specs,
    load_mapping,
    needs_of,
)
from lmsbuild.conda.platforms import subdir_of
from lmsbuild.conda.stage import FOLDERS, SITE_PACKAGES, licenses, requirements_of
from lmsbuild.errors import CondaError
from lmsbuild.wheel import integrity
from lmsbuild.wheel.base import BaseWheel
from lmsbuild.wheel.version import VERSION_MEMBER, assigned

NAME = "pytorch"  # what conda calls torch
FACE = "torch/cuda/lms/__init__.py"  # what a torch with LMS has, however it was built
HOME = "https://pytorch.org"
_BUILDS = 100  # builds of one LMS version that can be numbered


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """The metadata of a conda package that the recipes do not contain.

    Attributes:
        name, version, build_number, build_string: its identity.
        subdir: such as "linux-64".
        depends, constrains: match specs, sorted.
        run_exports: what a package that is built with this one depends on.
        license, license_files, summary, home: as in the wheel's METADATA.
        timestamp: the wheel's date, in seconds since 1970. It is not the time of the build.
        tracked_features: how many it has. Of the packages that fit, solvers choose the one with the
            fewest, whatever the versions.
    """

    name: str
    version: str
    build_number: int
    build_string: str
    subdir: str
    depends: tuple[str, ...]
    constrains: tuple[str, ...]
    run_exports: tuple[str, ...]
    license: str
    license_files: tuple[str, ...]
    summary: str
    home: str
    timestamp: int
    tracked_features: int

    @property
    def stem(self) -> str:
        """The package's file name without its ending."""
        return f"{self.name}-{self.version}-{self.build_string}"

    def document(self) -> dict[str, object]:
        """As plain data, for the recipes."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in {**asdict(self), "folders": tuple(sorted(FOLDERS))}.items()
        }


def metadata_of(wheel: BaseWheel, staged: Path, build_number: int | None = None) -> Metadata:
    """The metadata for an LMS wheel that is unpacked in ``staged``.

    If ``build_number`` is None, it follows the LMS version, so that solvers prefer the later: 0 for
    "+lms1", 100 for "+lms2".

    Raises:
        CondaError: the wheel has no LMS or no CUDA, or needs something that is not in conda.toml.
        WrongPlatformError: conda has no packages for its architecture.
        DamagedWheelError: METADATA cannot be read.
    """
    name = wheel.path.name
    subdir = subdir_of(wheel.architecture)
    with integrity.open_wheel(wheel.path) as packed:
        members = packed.NameToInfo
        if FACE not in members:
            raise CondaError(f"{name} has no LMS; build a wheel that has it with `lmsbuild wheel`")
        text = integrity.read_text(packed, VERSION_MEMBER) if VERSION_MEMBER in members else ""
        timestamp = seconds(packed.getinfo(f"{wheel.dist_info}/METADATA"))
    cuda = assigned(text, "cuda")
    if not cuda or not re.fullmatch(r"\d+\.\d+", cuda):
        raise CondaError(f"{name} is a torch without CUDA; give the wheel of a CUDA build")
    fields, requirements = requirements_of(wheel)
    needs = needs_of(staged / SITE_PACKAGES, wheel.architecture)
    glibc = max(needs.glibc, promised_glibc(wheel.platform_tag))
    if not glibc:
        raise CondaError(f"{name} has no shared library that needs glibc; it is not a torch wheel")
    lms = _lms_version(wheel)
    number = _BUILDS * (lms - 1) if build_number is None else build_number
    python, after, version = wheel.python, _next_minor(wheel.python), wheel.version.public
    depends = [
        f"python >={python},<{after}.0a0",
        f"python_abi {python}.* *_{wheel.python_tag}",
        f"__glibc >={'.'.join(map(str, glibc))},<3.0.a0",
        # Any driver of the same major version: NVIDIA's minor version compatibility.
        f"__cuda >={cuda.partition('.')[0]}",
        *library_specs(needs.sonames, requirements, cuda),
        *python_specs(requirements),
        *used_specs(wheel.version),
    ]
    return Metadata(
        name=NAME,
        version=version,
        build_number=number,
        build_string=f"cuda{cuda.replace('.', '')}_py{python.replace('.', '')}_lms{lms}_{number}",
        subdir=subdir,
        depends=tuple(sorted(depends)),
        # What else would bring a torch, or its libraries, into the same environment.
        constrains=("libtorch <0.0a0", "pytorch-cpu <0.0a0"),
        # An extension of one minor version does not work with the next one.
        run_exports=(f"{NAME} >={version},<{_next_minor(version)}.0a0",),
        license=fields.get("License-Expression") or fields.get("License", "BSD-3-Clause"),
        license_files=tuple(licenses(staged, wheel.dist_info)),
        summary=fields.get("Summary", NAME) + ", with Large Model Support",
        home=fields.get("Home-page", HOME),
        timestamp=timestamp,
        # Chosen when it is asked for, and never in the place of a PyTorch without it.
        tracked_features=1,
    )


def promised_glibc(platform_tag: str) -> tuple[int, ...]:
    """The glibc version that a platform tag requires; () if it names none (linux_ppc64le)."""
    legacy = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
    found: list[tuple[int, ...]] = [
        (int(major), int(minor))
        for major, minor in re.findall(r"manylinux_(\d+)_(\d+)_", platform_tag)
    ]
    found += [glibc for name, glibc in legacy.items() if f"{name}_" in platform_tag]
    # If there are several tags, all of them apply.
    return min(found, default=())


def python_specs(requirements: Sequence[Requirement]) -> list[str]:
    """Conda specs for what a wheel requires besides CUDA's libraries.

    Raises:
        CondaError: conda has no equivalent of a version specifier.
    """
    names = load_mapping()["names"]
    specs = []
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        if is_library_requirement(name):
            continue
        parts = sorted(_conda_specifier(part, name) for part in requirement.specifier)
        specs.append(" ".join([names.get(name, name), ",".join(parts)]).strip())
    return specs


def used_specs(version: Version) -> list[str]:
    """Conda specs for what this version of PyTorch uses and does not require."""
    specs = []
    for package, by_release in load_mapping()["uses"].items():
        begun = [release for release in by_release if Version(release) <= version]
        if begun:
            specs.append(f"{package} {by_release[max(begun, key=Version)]}")
    return specs


def _conda_specifier(part: Specifier, name: str) -> str:
    """A version specifier (PEP 440) in conda's syntax."""
    version = part.version
    if part.operator == "==" and version.endswith(".*"):
        return version
    if part.operator == "~=":
        release = Version(version).release
        upper = (*release[:-2], release[-2] + 1)
        upper = (*upper, 0) if len(upper) == 1 else upper
        return f">={version},<{'.'.join(map(str, upper))}a0"
    if part.operator == "===" or (part.operator == "!=" and version.endswith(".*")):
        raise CondaError(
            f"the wheel requires {name}{part}, which has no equivalent in conda;"
            " make it a range in METADATA"
        )
    return f"{part.operator}{version}"


def _lms_version(wheel: BaseWheel) -> int:
    match = re.search(r"(?:^|\.)lms(\d+)$", wheel.version.local or "")
    return max(int(match[1]), 1) if match else 1


def _next_minor(version: str) -> str:
    major, minor = Version(version).release[:2]
    return f"{major}.{minor + 1}"


def seconds(info: zipfile.ZipInfo) -> int:
    """The date of a member, since 1970."""
    return calendar.timegm((*info.date_time, 0, 0, 0))
