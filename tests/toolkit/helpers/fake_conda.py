"""Conda packages of a few kilobytes: LMS wheels for any architecture, and what they depend on."""

from __future__ import annotations

import datetime
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import rattler
import rattler_build
from elftools.elf.enums import ENUM_E_MACHINE

from lmsbuild.architecture import architectures
from lmsbuild.conda.coroutine import run
from lmsbuild.conda.package import Packager, PackageRequest, PackageResult, build_packages
from lmsbuild.resources import recipes_dir
from toolkit.helpers.fake_torch import CP, DIST_INFO, MACHINE, PYTHON, VERSION, FakeTorch

LMS_INFO = f"torch-{VERSION}+lms1.dist-info"
LICENSES = {"LICENSE": b"License\n", "third_party/NOTICE": b"Notice\n"}
WHEN = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)


def unheard(_: str) -> None:
    """For what says what it does."""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A conda package, for a channel."""
    return stub(tmp_path / "made", "thing", "1.0", subdir="linux-64")


def ignore(_stage: str, _done: int, _total: int | None) -> None:
    pass


def lms_wheel(
    fake: FakeTorch,
    folder: Path,
    *,
    architecture: str = MACHINE,
    cp: str = CP,
    platform: str = "",
    lms: str = "lms1",
    changes: Mapping[str, bytes | None] | None = None,
) -> Path:
    """The fake torch with LMS, as `lmsbuild wheel` would name it; ``changes`` to its members, whose
    names are those of the new wheel (None removes)."""
    info = LMS_INFO.replace("lms1", lms)
    wheel = fake.wheel.copy()
    wheel.members = {
        name.replace(DIST_INFO, info): for_machine(data, architecture)
        for name, data in wheel.members.items()
    }
    metadata = f"{info}/METADATA"
    wheel.members[metadata] = wheel.members[metadata].replace(
        f"Version: {VERSION}\n".encode(), f"Version: {VERSION}+{lms}\n".encode(), 1
    )
    wheel.members[metadata] = wheel.members[metadata].replace(
        b"Requires-Dist: filelock\n",
        b"".join(f"License-File: {name}\n".encode() for name in LICENSES)
        + b"Requires-Dist: filelock\nRequires-Dist: sympy==1.13.1\nRequires-Dist: triton~=3.9.0\n",
    )
    wheel.members["torch/cuda/lms/__init__.py"] = b"def set_enabled_lms(enable): ...\n"
    for name, data in LICENSES.items():
        wheel.members[f"{info}/licenses/{name}"] = data
    for name, data in (changes or {}).items():
        if data is None:
            wheel.members.pop(name)
        else:
            wheel.members[name] = data
    wheel.dist_info = info
    wheel.modes["torch/nn/__init__.py"] = 0  # as zips from systems without modes say
    folder.mkdir(parents=True, exist_ok=True)
    tag = platform or f"manylinux_2_28_{architecture}"
    return wheel.write(folder / f"torch-{VERSION}+{lms}-{cp}-{cp}-{tag}.whl")


def for_machine(data: bytes, architecture: str) -> bytes:
    """An ELF file's bytes with another machine in its header; other files as they are."""
    if not data.startswith(b"\x7fELF"):
        return data
    machine = ENUM_E_MACHINE[architectures()[architecture].elf_machine]
    return data[:18] + struct.pack("<H", machine) + data[20:]


def package_of(
    wheel: Path, folder: Path, *, name: str = "dist", build_number: int | None = None
) -> PackageResult:
    (result,) = packages_of(wheel, folder, name=name, build_number=build_number)
    return result


def packages_of(
    wheel: Path, folder: Path, *, name: str = "dist", build_number: int | None = None
) -> list[PackageResult]:
    return build_packages(
        PackageRequest(
            wheel=wheel,
            out=folder / name,
            packager=Packager.RATTLER_BUILD,
            build_number=build_number,
            recipes=recipes_dir(),
            cache=folder / "cache",
        ),
        ignore,
    )


def stub(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    subdir: str = "noarch",
    build: str = "0",
    depends: Sequence[str] = (),
    files: Path | None = None,
) -> Path:
    """A package, with nothing in it unless ``files`` says where they are."""
    if files is None:
        files = folder / "empty"
        (files / "share" / "stubs").mkdir(parents=True, exist_ok=True)
        (files / "share" / "stubs" / "stub").write_text("")
    made = rattler_build.assemble_package(
        name=name,
        version=version,
        target_platform=subdir,
        build_string=build,
        output_dir=folder / subdir,
        files_dir=files,
        depends=list(depends),
        noarch="generic" if subdir == "noarch" else None,
        compression_level=1,
        timestamp=WHEN,
        detect_prefix=False,
    )
    return Path(made.path)


def virtual(*, glibc: str = "2.39", cuda: str | None = "13.0") -> list[Any]:
    """A machine as solvers see it."""
    found = [("__unix", "0"), ("__linux", "6.1"), ("__glibc", glibc)]
    if cuda:
        found.append(("__cuda", cuda))
    return [
        rattler.GenericVirtualPackage(
            rattler.PackageName(name), rattler.Version(version), rattler.BuildString("0")
        )
        for name, version in found
    ]


def solve(
    channels: Iterable[Path | str],
    specs: Sequence[str],
    cache: Path,
    *,
    subdir: str = "linux-64",
    machine: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """The packages that a solver chooses, by name. Raises rattler.exceptions.SolverError."""
    records = run(
        rattler.solve(
            [rattler.Channel(c if isinstance(c, str) else c.as_uri()) for c in channels],
            list(specs),
            gateway=rattler.Gateway(cache_dir=cache),
            platforms=[subdir, "noarch"],
            virtual_packages=list(virtual() if machine is None else machine),
        )
    )
    return {record.name.normalized: record for record in records}


def stub_channel(folder: Path, depends: Iterable[str], subdirs: Iterable[str]) -> list[Path]:
    """Packages that meet what a package depends on, but for Python and virtual ones."""
    made = []
    for spec in sorted(depends):
        name, _, rest = spec.partition(" ")
        if name.startswith("__") or name in ("python", "python_abi"):
            continue
        made.append(stub(folder, name, _meeting(rest)))
    for subdir in subdirs:
        made.append(
            stub(
                folder,
                "python",
                f"{PYTHON}.5",
                subdir=subdir,
                build="0_cpython",
                depends=[f"python_abi {PYTHON}.* *_{CP}"],
            )
        )
    made.append(stub(folder, "python_abi", PYTHON, build=f"8_{CP}"))
    return made


def _meeting(constraint: str) -> str:
    """A version that meets ">=1.2,<3" and its like."""
    for part in constraint.split(","):
        for operator in (">=", "=="):
            if part.startswith(operator):
                return part.removeprefix(operator)
    return "1.0"


def index_of(channel: Path, subdir: str) -> dict[str, Any]:
    return dict(json.loads((channel / subdir / "repodata.json").read_text())["packages.conda"])
