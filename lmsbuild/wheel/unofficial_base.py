"""A base that is not the official wheel: how it differs from the registry's entry.

For some architectures there is no official CUDA wheel. Then the base can be anyone's build of the
same version. The hooks fit, because its Python files are those of the tag. The library is compiled
for the base's CUDA and C++ ABI.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterable

from lmsbuild.errors import IncompleteBaseError, RenamedLibrariesError
from lmsbuild.native import compile, manylinux
from lmsbuild.registry import Tag
from lmsbuild.tools import elf
from lmsbuild.wheel.base import CpuOnlyWheelError
from lmsbuild.wheel.header_packages import Newest, packages_for
from lmsbuild.wheel.version import VERSION_MEMBER, assigned

Read = Callable[[str], "bytes | None"]

_CXX11_STRINGS = (3, 4, 21)  # the GLIBCXX that introduced std::__cxx11::basic_string


def adapted(tag: Tag, name: str, read: Read, newest: Newest) -> Tag:
    """The tag's entry with this base's CUDA, header packages, C++ ABI and oldest system.

    ``name`` is the base's, for messages; ``read`` gives the content of a file of torch, None when
    there is none.

    Raises:
        CpuOnlyWheelError: torch/version.py names no CUDA.
        IncompleteBaseError: torch/lib/libc10.so or libc10_cuda.so is missing.
        RenamedLibrariesError: they need libraries under names that auditwheel made.
        ForeignWheelError, RegistryError, and as ``newest`` does.
    """
    cuda = assigned((read(VERSION_MEMBER) or b"").decode("utf-8", "replace"), "cuda")
    if cuda is None:
        raise CpuOnlyWheelError(
            f"{name} is a CPU-only torch ({VERSION_MEMBER} names no CUDA); give a build with CUDA"
        )
    core = _library(name, read, "libc10.so")
    core_cuda = _library(name, read, "libc10_cuda.so")
    if not any(soname.startswith("libcudart.so.") for soname in core_cuda.needed):
        found = [soname for soname in core_cuda.needed if "cudart" in soname]
        raise RenamedLibrariesError(
            f"{name}: libc10_cuda.so needs {found[0] if found else 'no libcudart'}, not "
            "libcudart.so of CUDA's own name; give a build that links to CUDA's shared libraries "
            "and went through no `auditwheel repair`"
        )
    abi = compile.cxx11_abi_of(core)
    kept = manylinux.kept_by([core, core_cuda])
    return dataclasses.replace(
        tag,
        # Two components: packages are named after "12.4", and not after the release "12.4.1".
        cuda=(version := ".".join(cuda.split(".")[:2])),
        header_packages=packages_for(tag, version, newest),
        cxx11_abi=abi,
        abi_version=tag.abi_version if abi == tag.cxx11_abi else None,
        manylinux=_newest(
            _oldest([tag.manylinux, *([kept] if kept else [])]), _first_with(abi, core.machine)
        ),
    )


def within(tag: Tag, platform_tag: str, machine: str) -> Tag:
    """The tag's entry, with a policy that is not newer than the one in a wheel's platform tag."""
    names = [part.removesuffix(f"_{machine}") for part in platform_tag.split(".")]
    promised = {manylinux.modern_name(name) for name in names}
    known = [name for name in manylinux.policy_names() if name in promised]
    return dataclasses.replace(tag, manylinux=_oldest([tag.manylinux, *known]))


def _library(name: str, read: Read, file: str) -> elf.Library:
    data = read(f"torch/lib/{file}")
    if data is None:
        raise IncompleteBaseError(
            f"{name} has no torch/lib/{file}; give the package that has it with --base, too"
        )
    return elf.read_stream(io.BytesIO(data))


def _first_with(abi: int, machine: str) -> str:
    """The oldest policy whose libstdc++ has the strings of a C++ ABI."""
    names = manylinux.policy_names()
    return next(
        name
        for name in names
        if not abi or manylinux.load_policy(name, machine).limits["GLIBCXX"] >= _CXX11_STRINGS
    )


def _newest(*names: str) -> str:
    return max(names, key=manylinux.policy_names().index)


def _oldest(names: Iterable[str]) -> str:
    return min(names, key=manylinux.policy_names().index)
