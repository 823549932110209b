"""The conda package of PyTorch that LMS is grafted onto: unpacking and checking it."""

from __future__ import annotations

import json
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from lmsbuild.architecture import architecture as architecture_of
from lmsbuild.conda import extra
from lmsbuild.errors import (
    DamagedWheelError,
    ForeignWheelError,
    IncompleteBaseError,
    ToolMissingError,
    UnsafeMemberError,
    WrongPlatformError,
)
from lmsbuild.registry import Tag
from lmsbuild.tools.cache import sha256_of
from lmsbuild.wheel.base import (
    LIBRARY_MEMBER,
    AlreadyGraftedError,
    CpuOnlyWheelError,
    check_libraries,
    check_python,
)
from lmsbuild.wheel.version import VERSION_MEMBER, assigned

SUFFIXES = (".conda", ".tar.bz2")
INDEX, FILES, PATHS = "info/index.json", "info/files", "info/paths.json"

_SITE = re.compile(r"lib/python(3\.\d+)/site-packages/torch/version\.py")

Advance = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class CondaBase:
    """An unpacked package.

    Attributes:
        path: the package's file.
        folder: the folder that it and the packages that it needs are unpacked into.
        members: its own members, in the order in which they are written again.
        index: the content of info/index.json.
        site: path of the folder that contains torch/, relative to ``folder``.
        python: such as "3.12".
    """

    path: Path
    folder: Path
    members: tuple[tarfile.TarInfo, ...]
    index: dict[str, Any]
    site: str
    python: str

    @property
    def torch(self) -> Path:
        return self.folder / self.site / "torch"

    def read(self, path: str) -> bytes | None:
        """Content of a file of torch ("torch/version.py"), None when there is none."""
        file = self.folder / self.site / path
        return file.read_bytes() if file.is_file() else None


def is_package(path: Path) -> bool:
    """Whether a file is a conda package, by its name."""
    return path.name.endswith(SUFFIXES)


def suffix(path: Path) -> str:
    """ ".conda" or ".tar.bz2"."""
    return next(known for known in SUFFIXES if path.name.endswith(known))


def release(path: Path) -> str:
    """The release of PyTorch in a package: a post release is the same one, packed again.

    Raises DamagedWheelError, ToolMissingError.
    """
    for tar, member in _members(path, "info"):
        if member.name == INDEX:
            packed = tar.extractfile(member)
            assert packed is not None
            return _version(path.name, _index(path, packed.read())).base_version
    raise DamagedWheelError(f"{path.name} has no {INDEX}; it is not a conda package")


def unpack(path: Path, companions: Sequence[Path], folder: Path) -> CondaBase:
    """Unpack a package, and the packages that contain the rest of PyTorch, into one folder.

    Raises:
        DamagedWheelError: a file is not a conda package, or is damaged.
        UnsafeMemberError: a member would be written outside of the folder.
        IncompleteBaseError: the package does not contain torch.
        ToolMissingError: the library that reads such packages is not installed.
    """
    for other in companions:
        _extract(other, "pkg", folder)
    members = _extract(path, "pkg", folder)
    if suffix(path) == ".conda":
        members += _extract(path, "info", folder)
    named = {member.name: member for member in members}
    for needed in (INDEX, FILES, PATHS):
        if needed not in named:
            raise DamagedWheelError(f"{path.name} has no {needed}; it is not a conda package")
    found = [match for name in named if (match := _SITE.fullmatch(name))]
    if len(found) != 1:
        raise IncompleteBaseError(
            f"{path.name} does not contain lib/python3.*/site-packages/torch; give the package "
            "that does (in Open-CE: pytorch-base)"
        )
    return CondaBase(
        path=path,
        folder=folder,
        members=tuple(members),
        index=_index(path, (folder / INDEX).read_bytes()),
        site=found[0][0].removesuffix(f"/{VERSION_MEMBER}"),
        python=found[0][1],
    )


def check(
    base: CondaBase,
    tag: Tag,
    *,
    architecture: str,
    python: str | None,
    advance: Advance | None = None,
) -> None:
    """Check that this is an intact CUDA build of the tag's version, for the given target.

    If ``python`` is None, every Python version of the tag is accepted. ``advance`` is called with
    the number of bytes that were checked.

    Raises:
        AlreadyGraftedError, CpuOnlyWheelError, ForeignWheelError, IncompleteBaseError,
        RenamedLibrariesError, WrongPythonError, WrongPlatformError, DamagedWheelError.
    """
    name = base.path.name
    if base.read(LIBRARY_MEMBER) is not None:
        raise AlreadyGraftedError(f"{name} already has LMS; give a package without it")
    found = _version(name, base.index)
    # A post release is the same PyTorch, packed again.
    if found.base_version != tag.version:
        raise ForeignWheelError(
            f"{name} is PyTorch {found}, but {tag.name} needs {tag.version}; give the tag of this "
            "release, or another package"
        )
    platform = architecture_of(architecture).conda
    if base.index.get("subdir") != platform:
        raise WrongPlatformError(
            f"{name} is for {base.index.get('subdir')}, not for {platform}; see --arch"
        )
    check_python(name, base.python, tag, python)
    if assigned((base.read(VERSION_MEMBER) or b"").decode("utf-8", "replace"), "cuda") is None:
        raise CpuOnlyWheelError(
            f"{name} is a CPU-only torch ({VERSION_MEMBER} has no CUDA); give the CUDA build"
        )
    _check_complete(base)
    problems = list(_problems(base, advance))
    if problems:
        raise DamagedWheelError(
            f"{name} does not match its {PATHS}: {problems[0]}; download it again",
            detail="\n".join(problems),
        )


def _check_complete(base: CondaBase) -> None:
    """Some channels put torch's libraries and headers into a separate package."""
    present = [
        f"torch/lib/{file.name}" for file in sorted((base.torch / "lib").glob("*")) if file.exists()
    ]
    if any("/libc10" in name for name in present):
        check_libraries(base.path.name, present)
        if (base.torch / "include" / "c10" / "util" / "Exception.h").is_file():
            return
    raise IncompleteBaseError(
        f"{base.path.name} has no torch/lib or no torch/include; give the package that has "
        "them as a second --base (in conda-forge: libtorch)"
    )


def _problems(base: CondaBase, advance: Advance | None) -> Iterator[str]:
    try:
        rows = json.loads((base.folder / PATHS).read_bytes())["paths"]
        listed = {row["_path"]: row for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedWheelError(f"{base.path.name}: {PATHS} cannot be read: {error}") from error
    for member in base.members:
        row = listed.get(member.name)
        if row is None or not member.isfile() or "sha256" not in row:
            continue
        if sha256_of(base.folder / member.name, advance) != row["sha256"]:
            yield f"{member.name} does not match its hash"


def _version(name: str, index: Mapping[str, Any]) -> Version:
    try:
        return Version(str(index.get("version")))
    except InvalidVersion as error:
        raise DamagedWheelError(f"{name}: {INDEX} has no valid version") from error


def _extract(path: Path, component: str, folder: Path) -> list[tarfile.TarInfo]:
    if not hasattr(tarfile, "data_filter"):
        raise ToolMissingError(
            "this Python cannot unpack packages safely; use 3.10.12, 3.11.4 or a later one"
        )
    found = []
    try:
        for tar, member in _members(path, component):
            # "tar" would follow a hard link out of the folder, and write through it.
            tar.extract(member, folder, filter="data")
            found.append(member)
    except tarfile.FilterError as error:
        raise UnsafeMemberError(f"{path.name}: {error}; do not use this file") from error
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError) as error:
        raise DamagedWheelError(f"{path.name} cannot be unpacked ({error})") from error
    except Exception as error:
        if _of_decompressor(error):
            raise DamagedWheelError(f"{path.name} cannot be unpacked ({error})") from error
        raise
    return found


def _members(path: Path, component: str) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    try:
        from conda_package_streaming.package_streaming import stream_conda_component
    except ImportError as error:
        raise ToolMissingError(
            f"conda packages need conda-package-streaming; {extra.HOW}"
        ) from error
    if not path.is_file():
        raise ForeignWheelError(f"{path}: no such file")
    try:
        yield from stream_conda_component(str(path), component=component)
    except tarfile.FilterError:
        raise
    except Exception as error:
        known = (tarfile.TarError, zipfile.BadZipFile, LookupError, EOFError, OSError)
        if isinstance(error, known) or _of_decompressor(error):
            raise DamagedWheelError(
                f"{path.name} is not a complete conda package ({error})"
            ) from error
        raise


def _of_decompressor(error: Exception) -> bool:
    """Whether an error says that compressed data is damaged.

    conda-package-streaming takes one of several libraries for zstd. And OSErrors without a number
    are decompressors', not the disk's.
    """
    return type(error).__name__ == "ZstdError" or getattr(error, "errno", 0) is None


def _index(path: Path, data: bytes) -> dict[str, Any]:
    try:
        index = json.loads(data)
        if isinstance(index, dict):
            return index
    except ValueError:
        pass
    raise DamagedWheelError(f"{path.name}: {INDEX} cannot be read; it is not a conda package")
