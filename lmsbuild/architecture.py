"""The architectures that wheels are made for (data/architectures.toml)."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from lmsbuild._compat import tomllib
from lmsbuild.errors import RegistryError, WrongPlatformError
from lmsbuild.resources import data_file


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One architecture, and what others call it.

    Attributes:
        name: as `uname -m` gives it, such as "aarch64".
        elf_machine: e_machine of its ELF files, such as "EM_AARCH64".
        triplet: GNU's name, such as "aarch64-linux-gnu".
        compiler_package: Debian's package with the C++ cross compiler.
        loader: soname of the dynamic loader.
        qemu: the emulator that tests run with.
        debian, conda: Debian's and conda's name, such as "arm64", "linux-aarch64".
        cuda_packages: the architecture whose CUDA header packages are taken.
        cuda_repository: NVIDIA's name in the URLs of CUDA's RPM packages, such as "sbsa".
    """

    name: str
    elf_machine: str
    triplet: str
    compiler_package: str
    loader: str
    qemu: str
    debian: str
    conda: str
    cuda_packages: str
    cuda_repository: str


@functools.cache
def architectures() -> dict[str, Architecture]:
    """All of them by name. Raises RegistryError when the data is malformed."""
    path = data_file("architectures.toml")
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8"))
        return {name: Architecture(name=name, **row) for name, row in rows.items()}
    except (TypeError, ValueError) as error:
        raise RegistryError(f"{path}: malformed ({error}); reinstall lmsbuild") from error


def architecture(name: str) -> Architecture:
    """The architecture of this name. Raises WrongPlatformError."""
    known = architectures()
    if name not in known:
        raise WrongPlatformError(f"no architecture {name}; known: {', '.join(known)}")
    return known[name]
