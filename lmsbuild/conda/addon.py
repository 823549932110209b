"""The conda packages of torch-lms: the same files for each major version of CUDA.

A package constrains the version and the build of pytorch that it is installed beside, and each
constraint is a set of versions and one pattern for builds. So "a release for CUDA 12, or a later
one for CUDA 13" takes two packages. Neither depends on pytorch, which can also be PyPI's torch: for
that one, they have all libraries.

They work with each version of Python (CEP 20: "noarch: python" for one platform).
"""

from __future__ import annotations

import json
import re
import zipfile
from email.parser import HeaderParser
from pathlib import Path

from packaging.utils import parse_wheel_filename
from packaging.version import InvalidVersion, Version

from lmsbuild.addon.metadata import PROJECT, RELEASES
from lmsbuild.addon.release import RELEASE_FILE
from lmsbuild.conda.libraries import load_mapping, needs_of
from lmsbuild.conda.metadata import HOME, NAME, Metadata, promised_glibc, seconds
from lmsbuild.conda.platforms import subdir_of
from lmsbuild.conda.stage import SITE_PACKAGES, licenses
from lmsbuild.errors import CondaError, DamagedWheelError
from lmsbuild.wheel import integrity
from lmsbuild.wheel.base import BaseWheel

_RELEASE = re.compile(rf"{RELEASES}/([^/]+)/{re.escape(RELEASE_FILE)}")
_NONE = "<0.0a0"  # no version


def identify(path: Path) -> BaseWheel:
    """Read version and tags of a wheel of torch-lms. Raises as integrity.open_wheel."""
    with integrity.open_wheel(path) as wheel:
        folder = integrity.dist_info(wheel)
    return BaseWheel(
        path=path,
        version=parse_wheel_filename(path.name)[1],
        dist_info=folder,
        python_tag="py3",
        platform_tag=path.stem.split("-")[-1],
    )


def metadata_of(
    wheel: BaseWheel, staged: Path, build_number: int | None = None
) -> tuple[Metadata, ...]:
    """The metadata of each package of a wheel that is unpacked in ``staged``, latest CUDA first.

    If ``build_number`` is None, it is 0: torch-lms has its own version.

    Raises:
        CondaError: the wheel has no library for any release, or one for another architecture.
        WrongPlatformError: conda has no packages for its architecture.
        DamagedWheelError: METADATA or the description of a release cannot be read.
    """
    subdir = subdir_of(wheel.architecture)
    needs = needs_of(staged / SITE_PACKAGES, wheel.architecture)
    with integrity.open_wheel(wheel.path) as packed:
        name = f"{wheel.dist_info}/METADATA"
        header = HeaderParser().parsestr(integrity.read_text(packed, name))
        timestamp = seconds(packed.getinfo(name))
        versions = _versions(packed, wheel.path.name)
    glibc = max(needs.glibc, promised_glibc(wheel.platform_tag))
    system = load_mapping()["system"]
    depends = [
        f"python {header['Requires-Python'] or '>=3'}",
        f"__glibc >={'.'.join(map(str, glibc))},<3.0.a0",
        # The rest of what the libraries need is loaded when PyTorch is imported.
        *{system[soname] for soname in needs.sonames if system.get(soname)},
    ]
    number = build_number or 0
    return tuple(
        Metadata(
            name=PROJECT,
            version=wheel.version.public,
            build_number=number,
            build_string=f"cuda{major}_{number}",
            subdir=subdir,
            depends=tuple(sorted(depends)),
            constrains=(_constraint(versions[major], major),),
            run_exports=(),
            license=header.get("License-Expression", "BSD-3-Clause"),
            license_files=tuple(licenses(staged, wheel.dist_info)),
            summary=header.get("Summary", PROJECT),
            home=HOME,
            timestamp=timestamp,
            # A later CUDA has later releases of PyTorch.
            tracked_features=later,
        )
        for later, major in enumerate(sorted(versions, reverse=True))
    )


def _versions(packed: zipfile.ZipFile, name: str) -> dict[int, list[Version]]:
    """By CUDA's major version, the releases whose conda packages its libraries fit.

    Raises CondaError, DamagedWheelError.
    """
    found: dict[int, list[Version]] = {}
    for member in packed.namelist():
        if not (match := _RELEASE.fullmatch(member)):
            continue
        try:
            release = json.loads(integrity.read_text(packed, member))
            versions = found.setdefault(int(release["cuda"].partition(".")[0]), [])
            # conda-forge builds PyTorch with the new ABI of libstdc++, whatever upstream does.
            if release["cxx11_abi"]:
                versions.append(Version(match[1]))
        except (ValueError, TypeError, KeyError, AttributeError, InvalidVersion) as error:
            raise DamagedWheelError(
                f"{name}: {member} cannot be read ({error!r}); build it again"
            ) from error
    if not found:
        raise CondaError(f"{name} has no library for any release; build it with `lmsbuild addon`")
    return found


def _constraint(versions: list[Version], major: int) -> str:
    if not versions:
        return f"{NAME} {_NONE}"
    return f"{NAME} {'|'.join(f'=={version}' for version in sorted(versions))} cuda{major}*"
