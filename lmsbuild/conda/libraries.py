"""The conda packages that contain the libraries that a torch wheel needs and does not contain.

Both the METADATA of a wheel and its shared libraries say what it needs: METADATA requires NVIDIA's
wheels, and the libraries need sonames. The sonames determine the packages, METADATA the versions.

conda's CUDA packages put their libraries into $PREFIX/lib, which is not in the RPATH of the wheel's
libraries. They are found nevertheless: the wheel's libraries have an RPATH and no RUNPATH, so ld.so
also searches the RPATH of the program, and conda's python has $ORIGIN/../lib there (conda-build and
rattler-build set it with patchelf --force-rpath). See ld.so(8).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from lmsbuild._compat import tomllib
from lmsbuild.architecture import architectures
from lmsbuild.errors import CondaError, RegistryError
from lmsbuild.native.compile import LIBRARY
from lmsbuild.resources import data_file
from lmsbuild.tools import elf

_TOOLKIT = "cuda-toolkit"  # PyPI's meta package
_LEAST_COMPONENTS = 2  # of a lower bound: features come with minor versions


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a wheel's shared libraries need.

    Attributes:
        sonames: libraries that the wheel does not contain.
        glibc: the newest glibc version of a needed symbol, such as (2, 28).
    """

    sonames: frozenset[str]
    glibc: tuple[int, ...]


def load_mapping() -> dict[str, Any]:
    """conda.toml, with each architecture's loader among the system's libraries.

    Raises RegistryError.
    """
    try:
        mapping = tomllib.loads(data_file("conda.toml").read_text(encoding="utf-8"))
    except ValueError as error:
        raise RegistryError(f"lmsbuild's own data/conda.toml is malformed ({error})") from error
    mapping["system"].update({known.loader: "" for known in architectures().values()})
    return mapping


def needs_of(site_packages: Path, architecture: str) -> Needs:
    """What the shared libraries below a folder need.

    Raises:
        CondaError: a library is for another architecture, or would not find the libraries of a
            conda environment.
    """
    libraries: dict[Path, elf.Library] = {}
    for path in sorted(site_packages.rglob("*.so*")):
        try:
            libraries[path] = elf.read(path, symbols=False)
        except elf.NotElfError:
            continue
    system = load_mapping()["system"]
    own = {path.name for path in libraries} | {found.soname for found in libraries.values()}
    sonames: set[str] = set()
    glibc: tuple[int, ...] = ()
    for path, library in libraries.items():
        if library.machine != architecture:
            raise CondaError(
                f"{path.name} is for {library.machine}, but the wheel is for {architecture}; "
                "rebuild the wheel"
            )
        missing = {name for name in library.needed if name not in own}
        lost = missing - system.keys() if library.runpath else set()
        # What the runtime's library needs is in the process before it: torch is imported first.
        if lost and path.name != LIBRARY:
            raise CondaError(
                f"{path.name} has a RUNPATH and would not find {min(lost)} in a conda "
                "environment; use a base whose libraries have an RPATH (patchelf --force-rpath)"
            )
        sonames |= missing
        for versions in library.needed_versions.values():
            for version in versions:
                split = elf.split_version(version)
                if split and split[0] == "GLIBC":
                    glibc = max(glibc, split[1])
    return Needs(sonames=frozenset(sonames), glibc=glibc)


def is_library_requirement(name: str) -> bool:
    """Whether a PyPI project contains CUDA libraries, which have other names in conda."""
    name = canonicalize_name(name)
    return name == _TOOLKIT or name.startswith("nvidia-")


def library_specs(
    sonames: Iterable[str], requirements: Iterable[Requirement], cuda: str
) -> list[str]:
    """Conda specs for the libraries that a wheel needs, sorted.

    ``requirements`` are those of the wheel whose markers apply. ``cuda`` is a version like "13.0".

    Raises:
        CondaError: conda.toml does not contain a library or a version.
    """
    mapping = load_mapping()
    major = cuda.partition(".")[0]
    toolkit = mapping["cuda"].get(major, {})
    versions = _versions(requirements, toolkit, cuda)
    known: Mapping[str, str] = {**mapping["system"], **toolkit.get("sonames", {})}
    packages = set(versions)
    from_cuda = bool(versions)
    for soname in sonames:
        if soname not in known:
            raise CondaError(
                f"the wheel needs {soname}, and lmsbuild/data/conda.toml has no package with it "
                f"for CUDA {cuda}; add one, or bundle the library (auditwheel repair)"
            )
        if known[soname]:
            packages.add(known[soname])
        from_cuda |= soname not in mapping["system"]
    follows = toolkit.get("follows", {})
    found = {**dict.fromkeys(follows, Version(cuda)), **versions}
    pins = {**mapping["pins"], **follows}
    specs = [_spec(package, found.get(package), pins) for package in packages]
    if from_cuda:
        specs.append(f"cuda-version >={cuda},<{int(major) + 1}.0a0")
    return sorted(specs)


def _versions(
    requirements: Iterable[Requirement], toolkit: Mapping[str, Any], cuda: str
) -> dict[str, Version | None]:
    """The version of each CUDA package that METADATA requires; None if it gives no version."""
    found: dict[str, Version | None] = {}
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        if name == _TOOLKIT:
            release = _toolkit(requirement, toolkit)
            for extra in requirement.extras:
                if extra not in toolkit["extras"] or extra not in release:
                    raise CondaError(
                        f"the wheel requires {_TOOLKIT}[{extra}], which lmsbuild/data/conda.toml "
                        f"does not have for {requirement.specifier}; add it there"
                    )
                found[toolkit["extras"][extra]] = Version(release[extra])
        elif is_library_requirement(name):
            plain = re.sub(r"-cu\d+$", "", name)
            if plain not in toolkit.get("distributions", {}):
                raise CondaError(
                    f"the wheel requires {name}, which lmsbuild/data/conda.toml does not have for "
                    f"CUDA {cuda}; add it there"
                )
            found[toolkit["distributions"][plain]] = _lower_bound(requirement)
    return found


def _toolkit(requirement: Requirement, toolkit: Mapping[str, Any]) -> Mapping[str, str]:
    for release, versions in toolkit.get("toolkits", {}).items():
        if requirement.specifier.contains(release):
            return dict(versions)
    raise CondaError(
        f"the wheel requires {_TOOLKIT}{requirement.specifier}, whose versions are not in "
        "lmsbuild/data/conda.toml; add them there"
    )


def _lower_bound(requirement: Requirement) -> Version | None:
    bounds = [
        Version(part.version.removesuffix(".*"))
        for part in requirement.specifier
        if part.operator in ("==", ">=", "~=")
    ]
    return max(bounds, default=None)


def _spec(package: str, version: Version | None, pins: Mapping[str, int]) -> str:
    if version is None:
        return package
    if package not in pins:
        raise RegistryError(f"lmsbuild's own data/conda.toml has no pin for {package}")
    kept = pins[package]
    lowest = version.release[: max(kept, _LEAST_COMPONENTS)]
    upper = (*version.release[: kept - 1], version.release[kept - 1] + 1)
    if len(upper) == 1:
        upper = (*upper, 0)
    return f"{package} >={_dotted(lowest)},<{_dotted(upper)}a0"


def _dotted(release: Iterable[int]) -> str:
    return ".".join(str(part) for part in release)
