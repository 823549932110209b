"""Manylinux policies: the symbol versions of the C and C++ libraries that a system has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmsbuild._compat import tomllib
from lmsbuild.architecture import architectures
from lmsbuild.errors import RegistryError
from lmsbuild.resources import data_file
from lmsbuild.tools import elf

# What the g++ driver links by default; the dynamic loader joins them for __tls_get_addr.
LIBRARIES = ("libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6")
# Parts of libc before glibc 2.34.
_SPLIT_FROM_LIBC = ("libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1")

_LEGACY_NAMES = {"manylinux2014": "manylinux_2_17"}

Limits = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class ManylinuxPolicy:
    """A manylinux policy: the newest allowed symbol version of each family (GLIBC, CXXABI)."""

    name: str
    limits: Limits


def modern_name(tag: str) -> str:
    """The current name of a policy: "manylinux_2_17" for "manylinux2014"."""
    return _LEGACY_NAMES.get(tag, tag)


def policy_names() -> list[str]:
    """The names of all policies, oldest first."""
    return list(_policies())


def load_policy(name: str, machine: str) -> ManylinuxPolicy:
    """The policy of this name ("manylinux_2_17") on an architecture. Raises RegistryError."""
    policies = _policies()
    if name not in policies:
        raise RegistryError(f"no manylinux policy {name}; known: {', '.join(policies)}")
    rows = policies[name]
    common = {family: version for family, version in rows.items() if isinstance(version, str)}
    limits = {
        family: tuple(int(part) for part in version.split("."))
        for family, version in {**common, **rows.get(machine, {})}.items()
    }
    return ManylinuxPolicy(name=name, limits=limits)


def _policies() -> dict[str, dict[str, Any]]:
    return tomllib.loads(data_file("manylinux.toml").read_text(encoding="utf-8"))


def violations(library: elf.Library, policy: ManylinuxPolicy) -> list[str]:
    """Lines "soname: version" for each symbol version that the policy does not allow.

    Versions of libraries that are not the system's are ignored. For example, libcudart has its own.
    """
    loaders = [known.loader for known in architectures().values()]
    system = {*LIBRARIES, *_SPLIT_FROM_LIBC, *loaders}
    return [
        f"{soname}: {version}"
        for soname, versions in sorted(library.needed_versions.items())
        if soname in system
        for version in sorted(versions)
        if not elf.within(version, policy.limits)
    ]


def kept_by(libraries: Sequence[elf.Library]) -> str | None:
    """The oldest policy that all of the libraries meet, if any."""
    for name in policy_names():
        if not any(
            violations(library, load_policy(name, library.machine)) for library in libraries
        ):
            return name
    return None
