"""The official wheel that LMS is grafted onto: identify it, and check that it is suitable."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from lmsbuild.errors import (
    DamagedWheelError,
    ForeignWheelError,
    InputError,
    RenamedLibrariesError,
    WrongPlatformError,
    WrongPythonError,
)
from lmsbuild.native.compile import LIBRARY, SEAM
from lmsbuild.registry import Tag
from lmsbuild.wheel import integrity
from lmsbuild.wheel.version import VERSION_MEMBER, assigned

PROJECT = "torch"
LIBRARY_FOLDER = "torch/lib/"
LIBRARY_MEMBER = f"{LIBRARY_FOLDER}{LIBRARY}"
# Only some variants of the runtime have it.
SEAM_MEMBER = f"{LIBRARY_FOLDER}{SEAM}"
SEAM_LOADER = "torch/_lms_seam.py"
CUDA_LIBRARY = "torch/lib/libtorch_cuda.so"

# The names that auditwheel gives to libraries that it adds to a wheel: libcudart-1a2b3c4d.so.12.
_RENAMED = re.compile(
    r"torch(/lib|\.libs)/lib(c10|c10_cuda|cudart|torch_cpu|torch_cuda)-[0-9a-f]{8,}\.so(\.[\d.]+)?"
)


class CpuOnlyWheelError(InputError):
    """The wheel is a torch without CUDA, for which LMS is of no use."""


class AlreadyGraftedError(InputError):
    """The wheel has LMS already."""


@dataclass(frozen=True, kw_only=True)
class BaseWheel:
    """What a wheel says about itself.

    Attributes:
        path: the file.
        version: of METADATA, such as "9.1.0" or "9.1.0+cu130".
        dist_info: name of its dist-info folder.
        python_tag, platform_tag: as in the file name, such as "cp312", "manylinux_2_28_x86_64".
            "py3" is each version of Python.
    """

    path: Path
    version: Version
    dist_info: str
    python_tag: str
    platform_tag: str

    @property
    def python(self) -> str:
        """Such as "3.12"; empty for each version."""
        minor = self.python_tag[3:]
        return f"{self.python_tag[2]}.{minor}" if minor else ""

    @property
    def architecture(self) -> str:
        """Such as "x86_64"; empty when the platform is not Linux."""
        match = re.search(r"(?:^|\.)(?:many)?linux\d*(?:_\d+_\d+)?_(\w+)$", self.platform_tag)
        return match[1] if match else ""


def identify(path: Path) -> BaseWheel:
    """Read name, version and tags of a torch wheel.

    Raises:
        ForeignWheelError: not named like a wheel, or a wheel of another project.
        DamagedWheelError, UnsafeMemberError: as integrity.open_wheel.
        WrongPythonError: not a wheel for one CPython version.
    """
    if not path.is_file():
        raise ForeignWheelError(f"{path}: no such file")
    try:
        name, *_ = parse_wheel_filename(path.name)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise ForeignWheelError(
            f"{path.name} is not named like a wheel ({error}); keep the name "
            "that it was published under"
        ) from error
    if name != PROJECT:
        raise ForeignWheelError(
            f"{path.name} is a wheel of {name}, not of {PROJECT}; give one of {PROJECT}"
        )
    with integrity.open_wheel(path) as wheel:
        folder = integrity.dist_info(wheel)
        metadata = HeaderParser().parsestr(integrity.read_text(wheel, f"{folder}/METADATA"))
    if metadata["Name"] != PROJECT:
        raise ForeignWheelError(
            f"{path.name} is a wheel of {metadata['Name']}, not of {PROJECT}; give one of {PROJECT}"
        )
    try:
        version = Version(metadata["Version"] or "")
    except InvalidVersion as error:
        raise DamagedWheelError(f"{path.name}: METADATA has no valid version") from error
    python_tag, _, platform_tag = path.stem.split("-")[-3:]
    if not re.fullmatch(r"cp3\d+", python_tag) or f"{python_tag}-{python_tag}-" not in path.name:
        raise WrongPythonError(
            f"{path.name} is not for one ordinary CPython version; give one for 3.12, say"
        )
    return BaseWheel(
        path=path,
        version=version,
        dist_info=folder,
        python_tag=python_tag,
        platform_tag=platform_tag,
    )


def check(
    base: BaseWheel,
    tag: Tag,
    *,
    architecture: str,
    python: str | None,
    official: bool = True,
    advance: Callable[[int], None] | None = None,
) -> None:
    """Raise unless this is the tag's CUDA wheel for the target, complete and unchanged.

    ``python`` None accepts every version that the tag has. ``official`` asks for the official
    wheel; otherwise any build of the version with CUDA is accepted. ``advance`` gets the number of
    unpacked bytes.

    Raises:
        AlreadyGraftedError, CpuOnlyWheelError, ForeignWheelError, RenamedLibrariesError,
        WrongPythonError, WrongPlatformError, DamagedWheelError.
    """
    name = base.path.name
    with integrity.open_wheel(base.path) as wheel:
        members = wheel.NameToInfo
        if LIBRARY_MEMBER in members or "lms" in (base.version.local or ""):
            raise AlreadyGraftedError(f"{name} has LMS already; give the official wheel")
        _check_target(base, tag, architecture, python)
        if official:
            # Upstream's oldest wheels also have renamed libraries, but with the original sonames.
            _check_origin(base, tag, wheel)
            check_cuda(name, members)
        else:
            check_libraries(name, members)
    problems = integrity.record_problems(base.path, advance)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise DamagedWheelError(
            f"{name} does not match its RECORD: {problems[0]}{more}; download it again",
            detail="\n".join(problems),
        )


def check_libraries(name: str, members: Collection[str]) -> None:
    """Raise unless torch's CUDA library is among the members, under its own name.

    Raises RenamedLibrariesError, CpuOnlyWheelError.
    """
    renamed = sorted(filter(_RENAMED.fullmatch, members))
    if renamed:
        raise RenamedLibrariesError(
            f"{name}: auditwheel has renamed its libraries ({renamed[0]}); give the wheel as it "
            "was before `auditwheel repair`"
        )
    check_cuda(name, members)


def check_cuda(name: str, members: Collection[str]) -> None:
    """Raise CpuOnlyWheelError unless torch's CUDA library is among the members."""
    if CUDA_LIBRARY not in members:
        raise CpuOnlyWheelError(
            f"{name} is a CPU-only torch (no {CUDA_LIBRARY}); give the CUDA wheel"
        )


def check_python(name: str, found: str, tag: Tag, wanted: str | None) -> None:
    """Raise WrongPythonError unless a base is for a CPython that the tag has, and for the one that
    is wanted if any is."""
    if wanted is not None and found != wanted:
        raise WrongPythonError(f"{name} is for CPython {found}, not {wanted}; see --python")
    if found not in tag.pythons:
        raise WrongPythonError(
            f"{tag.name} supports CPython {', '.join(tag.pythons)}, not {found}; give one for these"
        )


def _check_target(base: BaseWheel, tag: Tag, architecture: str, python: str | None) -> None:
    name = base.path.name
    if base.version.public != tag.version:
        raise ForeignWheelError(
            f"{name} is torch {base.version}, {tag.name} needs "
            f"{tag.version}; name its own tag or another wheel"
        )
    if base.architecture != architecture:
        raise WrongPlatformError(
            f"{name} is for {base.platform_tag}, not for Linux on {architecture}; see --arch"
        )
    check_python(name, base.python, tag, python)


def _check_origin(base: BaseWheel, tag: Tag, wheel: zipfile.ZipFile) -> None:
    """torch/version.py names the commit and the CUDA version that the wheel was built from."""
    name = base.path.name
    if VERSION_MEMBER not in wheel.NameToInfo:
        raise ForeignWheelError(f"{name} has no {VERSION_MEMBER}; give the official wheel")
    text = integrity.read_text(wheel, VERSION_MEMBER)
    commit, cuda = assigned(text, "git_version"), assigned(text, "cuda")
    if commit != tag.git_commit:
        raise ForeignWheelError(
            f"{name} was built from commit {commit or 'unknown'}, "
            f"{tag.name} is {tag.git_commit}; give the official wheel"
        )
    if cuda != tag.cuda:
        raise ForeignWheelError(
            f"{name} was built for CUDA {cuda or 'unknown'}, the official "
            f"wheel of {tag.name} is for {tag.cuda}; give that one"
        )
