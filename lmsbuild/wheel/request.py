"""The request for a graft, its checks, and its result."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from lmsbuild.architecture import architecture as architecture_of
from lmsbuild.errors import (
    MissingBaseError,
    NoSpaceError,
    WrongPlatformError,
    WrongPythonError,
)
from lmsbuild.registry import Tag
from lmsbuild.wheel.provenance import Provenance

LOCK_FILE = ".lmsbuild.lock"
_SPACE_MARGIN = 64 << 20  # bytes that must stay free beside the new wheel


@dataclass(frozen=True, kw_only=True)
class GraftRequest:
    """What to build.

    Attributes:
        tag: the torch release.
        architecture: such as "x86_64".
        python: such as "3.12"; None takes the base's, where one is given.
        base: the wheel or conda package to build on; None fetches the official wheel.
        companions: conda packages with what the base lacks.
        out: folder of the new wheel.
        patches: the patches folder.
        cache: folder of what is fetched and built.
    """

    tag: Tag
    architecture: str
    python: str | None
    base: Path | None
    out: Path
    patches: Path
    cache: Path
    companions: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GraftResult:
    """A finished wheel or package and what it was made from."""

    path: Path
    provenance: Provenance


def check_request(tag: Tag, architecture: str, python: str | None, base: Path | None) -> None:
    """Raise unless there is such a wheel, or a base that can be checked later.

    Raises WrongPlatformError, MissingBaseError, WrongPythonError.
    """
    architecture_of(architecture)
    if "graft" not in tag.strategies:
        raise WrongPlatformError(
            f"{tag.name} can only be built from source, because there LMS is inside of PyTorch's"
            f" own libraries; run `lmsbuild wheel {tag.name} --strategy source`, or `lmsbuild apply"
            f" {tag.name}` and then, in the checkout that it makes, `python setup.py bdist_wheel`"
        )
    if architecture not in tag.architectures and base is None:
        raise MissingBaseError(
            f"{tag.name} has no official CUDA wheel for {architecture} (only for "
            f"{', '.join(tag.architectures)}): give a wheel or a conda package of PyTorch "
            f"{tag.version} with CUDA for {architecture} with --base (Open-CE's, conda-forge's, "
            "your own build's), or build PyTorch itself with --strategy source"
        )
    if python is not None and python not in tag.pythons:
        raise WrongPythonError(
            f"{tag.name} supports CPython {', '.join(tag.pythons)}, not "
            f"{python}; choose with --python"
        )


def require_space(out: Path, size: int) -> None:
    """Raise NoSpaceError unless a file of ``size`` bytes fits into the folder."""
    if shutil.disk_usage(out).free < size + _SPACE_MARGIN:
        raise NoSpaceError(
            f"{out} has less than {(size + _SPACE_MARGIN) // 10**6} MB free; "
            "free some, or name another folder with --out"
        )
