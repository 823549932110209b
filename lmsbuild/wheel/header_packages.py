"""CUDA's header packages: NVIDIA's wheels that the runtime is compiled with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lmsbuild._compat import tomllib
from lmsbuild.architecture import architecture as architecture_of
from lmsbuild.errors import RegistryError
from lmsbuild.registry import Tag
from lmsbuild.resources import data_file
from lmsbuild.tools import fetch
from lmsbuild.tools.download import Target
from lmsbuild.tools.report import Report, prefixed

# The wheel of the newest version that a requirement allows ("name==12.8.*").
Newest = Callable[[str], Path]


def fetch_headers(
    tag: Tag, target: Target, cache: Path, report: Report
) -> dict[str, fetch.Fetched]:
    """The tag's CUDA header packages, unpacked, by requirement. Raises as fetch_package."""
    target = packages_target(target)
    return {
        package: fetch.fetch_package(package, target, cache, prefixed("download", report))
        for package in tag.header_packages
    }


def newest_packages(target: Target, cache: Path) -> Newest:
    """A function that finds the newest CUDA header package that a requirement allows."""
    return lambda requirement: fetch.fetch_newest(requirement, packages_target(target), cache).path


def packages_target(target: Target) -> Target:
    """The target whose CUDA header packages are used for this one."""
    return Target(
        python=target.python, architecture=architecture_of(target.architecture).cuda_packages
    )


def packages_for(tag: Tag, cuda: str, newest: Newest) -> tuple[str, ...]:
    """The pinned packages with the headers of a CUDA version: the tag's own, or the newest.

    Raises RegistryError for a CUDA that lmsbuild does not know; as ``newest`` does.
    """
    if cuda == tag.cuda:
        return tag.header_packages
    toolkit = toolkit_of(cuda)
    names = (toolkit["runtime"], toolkit["compiler"])
    return tuple(exact(name, newest(f"{name}=={cuda}.*")) for name in names)


def toolkit_of(cuda: str) -> dict[str, str]:
    """The names of a CUDA version's packages. Raises RegistryError when it is unknown."""
    toolkits = tomllib.loads(data_file("toolkits.toml").read_text(encoding="utf-8"))
    major = cuda.split(".")[0]
    if major not in toolkits:
        raise RegistryError(f"CUDA {cuda} has no entry in data/toolkits.toml; add one")
    return dict(toolkits[major])


def exact(package: str, found: Path) -> str:
    """The requirement of a package that only the wheel ``found`` satisfies."""
    return f"{package}=={found.name.split('-')[1]}"
