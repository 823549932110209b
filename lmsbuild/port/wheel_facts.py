"""Make a registry entry from an official wheel."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable
from email.message import Message
from email.parser import HeaderParser

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement

from lmsbuild.architecture import architectures
from lmsbuild.errors import ForeignWheelError, RegistryError
from lmsbuild.native import compile, manylinux
from lmsbuild.registry import Registry, Tag, Verified
from lmsbuild.tools import elf
from lmsbuild.wheel import base as basewheel
from lmsbuild.wheel import integrity
from lmsbuild.wheel.base import BaseWheel
from lmsbuild.wheel.header_packages import Newest, exact, toolkit_of
from lmsbuild.wheel.version import VERSION_MEMBER, assigned

_PYTHON = re.compile(r"^Programming Language :: Python :: (3\.\d+)$")
_STANDARD = re.compile(r"__cplusplus < (\d{4})\d\dL")
_STANDARD_HEADER = "torch/include/torch/csrc/api/include/torch/all.h"
_YEARS = {"2017": 17, "2020": 20}


def tag_of_wheel(base: BaseWheel, registry: Registry, newest: Newest) -> Tag:
    """The registry entry for an official CUDA wheel, with nothing marked as verified.

    A wheel does not contain the value of -fabi-version. It is that of a known tag with the same C++
    ABI.

    Raises:
        ForeignWheelError: something is missing in the wheel's metadata.
        RegistryError: its CUDA version has no entry in toolkits.toml.
        NotOnIndexError, NetworkError: a header package cannot be downloaded.
    """
    with integrity.open_wheel(base.path) as wheel:
        if basewheel.CUDA_LIBRARY not in wheel.NameToInfo:
            raise basewheel.CpuOnlyWheelError(
                f"{base.path.name} is a CPU-only torch; give the CUDA wheel"
            )
        version = integrity.read_text(wheel, VERSION_MEMBER)
        metadata = HeaderParser().parsestr(integrity.read_text(wheel, f"{base.dist_info}/METADATA"))
        standard = _standard(wheel, base)
        with wheel.open("torch/lib/libc10.so") as stream:
            core = elf.read_stream(io.BytesIO(stream.read()))
    commit, cuda = assigned(version, "git_version"), assigned(version, "cuda")
    if not commit or not cuda:
        raise ForeignWheelError(f"{base.path.name}: torch/version.py has no commit or CUDA")
    name = f"v{base.version.public}"
    abi = compile.cxx11_abi_of(core)
    toolkit = toolkit_of(cuda)
    runtime, markers = _runtime_package(metadata, toolkit, newest)
    return Tag(
        name=name,
        git_commit=commit,
        hooks=name,
        pythons=_pythons(metadata, base),
        architectures=tuple(
            # A wheel that requires NVIDIA's packages is for an architecture that has them.
            name
            for name, known in architectures().items()
            if known.cuda_packages == name and _wanted(markers, name)
        ),
        strategies=("graft",),
        cuda=cuda,
        header_packages=(runtime, _compiler_package(metadata, toolkit, cuda, newest)),
        cxx_standard=standard,
        cxx11_abi=abi,
        # As for another release with the same std::string.
        abi_version=next(
            (
                tag.abi_version
                for tag in registry
                if tag.cxx11_abi == abi and "graft" in tag.strategies
            ),
            None,
        ),
        manylinux=_policy(base, core),
        verified=Verified(hooks_wheel=False, hooks_source=False, simulated=False, gpu=""),
    )


def _standard(wheel: zipfile.ZipFile, base: BaseWheel) -> int:
    found = _STANDARD.search(integrity.read_text(wheel, _STANDARD_HEADER))
    if found is None or found[1] not in _YEARS:
        raise ForeignWheelError(f"{base.path.name}: {_STANDARD_HEADER} has no known C++ standard")
    return _YEARS[found[1]]


def _pythons(metadata: Message, base: BaseWheel) -> tuple[str, ...]:
    classifiers = (_PYTHON.match(str(line)) for line in metadata.get_all("Classifier") or [])
    return tuple(found[1] for found in classifiers if found) or (base.python,)


def _requirements(metadata: Message) -> Iterable[Requirement]:
    for line in metadata.get_all("Requires-Dist") or []:
        try:
            yield Requirement(str(line))
        except InvalidRequirement:
            continue


def _runtime_package(
    metadata: Message, toolkit: dict[str, str], newest: Newest
) -> tuple[str, Requirement]:
    """The pinned package, and the requirement of the wheel that it comes from."""
    for requirement in _requirements(metadata):
        if requirement.name == toolkit["runtime"]:
            return f"{requirement.name}{requirement.specifier}", requirement
        if requirement.name == toolkit.get("meta"):
            return _pinned_by(requirement, toolkit["runtime"], newest), requirement
    raise ForeignWheelError(f"the wheel does not require {toolkit['runtime']}; use PyPI's")


def _compiler_package(metadata: Message, toolkit: dict[str, str], cuda: str, newest: Newest) -> str:
    for requirement in _requirements(metadata):
        if requirement.name == toolkit.get("meta"):
            return _pinned_by(requirement, toolkit["compiler"], newest)
    # torch does not require it, so take the newest of the same CUDA version.
    return exact(toolkit["compiler"], newest(f"{toolkit['compiler']}=={cuda}.*"))


def _pinned_by(meta: Requirement, package: str, newest: Newest) -> str:
    """The version of a package that a meta package pins ("nvidia-cuda-crt==13.0.88")."""
    with integrity.open_wheel(newest(f"{meta.name}{meta.specifier}")) as wheel:
        text = integrity.read_text(wheel, f"{integrity.dist_info(wheel)}/METADATA")
    for requirement in _requirements(HeaderParser().parsestr(text)):
        if requirement.name == package:
            return f"{package}{requirement.specifier}".removesuffix(".*")
    raise ForeignWheelError(f"{meta.name}{meta.specifier} does not pin {package}")


def _wanted(requirement: Requirement, machine: str) -> bool:
    """Whether a requirement applies to this architecture."""
    if requirement.marker is None:
        return True
    environment = {key: str(value) for key, value in default_environment().items()}
    environment |= {"platform_machine": machine, "platform_system": "Linux", "extra": ""}
    return requirement.marker.evaluate(environment)


def _policy(base: BaseWheel, core: elf.Library) -> str:
    """The policy in the wheel's file name; otherwise the oldest one that its library meets."""
    tag = base.platform_tag.removesuffix(f"_{base.architecture}").split(".")[0]
    name = manylinux.modern_name(tag)
    if name in manylinux.policy_names():
        return name
    # Wheels named manylinux1 do not comply with it.
    kept = manylinux.kept_by([core])
    if kept is None:
        raise RegistryError(f"{base.path.name} meets no policy of data/manylinux.toml")
    return kept
