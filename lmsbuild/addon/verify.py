"""`lmsbuild verify` for the wheel torch-lms."""

from __future__ import annotations

import ast
import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion

from lmsbuild.addon.metadata import (
    ENTRY_POINTS,
    PACKAGE,
    PROJECT,
    RELEASES,
    RUNTIME,
)
from lmsbuild.addon.release import RELEASE_FILE
from lmsbuild.errors import DamagedWheelError, RegistryError
from lmsbuild.native import manylinux
from lmsbuild.native.compile import LIBRARY
from lmsbuild.tools import elf
from lmsbuild.wheel import integrity, provenance, sbom
from lmsbuild.wheel.verify import (
    Check,
    api_problems,
    export_problems,
    read_library,
    version_problems,
)

_API_MODULE = f"{RUNTIME}/cuda/lms/__init__.py"
_KINDS = ({"run"}, {"decorate", "with"}, {"change", "sha256", "count", "lines"})


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """The wheel under test."""

    wheel: zipfile.ZipFile
    dist_info: str
    version: str
    platform_tag: str
    versions: list[str]
    libraries: dict[str, elf.Library]


def is_addon(path: Path) -> bool:
    """Whether a file is named like a wheel of torch-lms."""
    try:
        return parse_wheel_filename(path.name)[0] == canonicalize_name(PROJECT)
    except (InvalidWheelFilename, InvalidVersion):
        return False


def verify_addon(path: Path, advance: Callable[[int], None] | None = None) -> list[Check]:
    """All checks of a wheel of torch-lms, in the order to show them.

    ``advance`` gets the number of unpacked bytes that were hashed. Raises DamagedWheelError,
    UnsafeMemberError.
    """
    record = Check(name="RECORD", problems=integrity.record_problems(path, advance))
    with integrity.open_wheel(path) as wheel:
        names = [name for name in wheel.namelist() if name.startswith(f"{RELEASES}/")]
        versions = sorted({name.split("/")[2] for name in names})
        found = {v: read_library(wheel, f"{RELEASES}/{v}/{LIBRARY}") for v in versions}
        subject = _Subject(
            wheel=wheel,
            dist_info=integrity.dist_info(wheel),
            version=str(parse_wheel_filename(path.name)[1]),
            platform_tag=path.stem.split("-")[-1],
            versions=versions,
            libraries={version: library for version, library in found.items() if library},
        )
        return [
            record,
            _check("files", ", ".join(versions), _files(subject)),
            _check("provenance", f"{len(versions)} releases", _provenance(subject)),
            _check("SBOM", sbom.FILE_NAME, _sbom(subject)),
            _check("hooks", f"{len(versions)} releases", _edits(subject)),
            _check("LMS libraries", f"{len(found)} libraries", _libraries(subject)),
            _check("manylinux symbols", subject.platform_tag, _symbols(subject)),
            _check("C interface", f"{len(found)} libraries", _exports(subject)),
            _check("Python interface", _API_MODULE, _api(subject)),
        ]


def _check(name: str, detail: str, problems: Iterator[str]) -> Check:
    found: list[str] = []
    try:
        found += problems
    except DamagedWheelError as error:  # a member cannot be read
        found.append(str(error))
    return Check(name=name, detail=detail, problems=found)


def _files(subject: _Subject) -> Iterator[str]:
    """Nothing is installed outside of the package, and PyTorch finds the package."""
    # Of any version of lmsbuild, as long as all of it is of the same one.
    yield from version_problems(subject.wheel, subject.dist_info, PACKAGE, subject.version)
    for name in subject.wheel.namelist():
        if not name.startswith((f"{PACKAGE}/", f"{subject.dist_info}/")):
            yield f"{name} does not belong into {PROJECT}"
    name = f"{subject.dist_info}/entry_points.txt"
    if (
        name not in subject.wheel.NameToInfo
        or integrity.read(subject.wheel, name) != ENTRY_POINTS.encode()
    ):
        yield f"{name} does not name {PACKAGE}"
    if not subject.versions:
        yield "it has no library for any release"


def _provenance(subject: _Subject) -> Iterator[str]:
    for version in subject.versions:
        try:
            origin = provenance.load(_read(subject, version, provenance.FILE_NAME))
        except provenance.ProvenanceError as error:
            yield f"{version}: {error}"
            continue
        if origin.tag != f"v{version}":
            yield f"{version}: {provenance.FILE_NAME} is that of {origin.tag}"


def _sbom(subject: _Subject) -> Iterator[str]:
    """One that was made before there was a bill has none."""
    member = f"{subject.dist_info}/{sbom.FILE_NAME}"
    if member in subject.wheel.NameToInfo:
        hashes = {row.path: row.hexdigest for row in integrity.read_record(subject.wheel)}
        yield from sbom.problems(integrity.read(subject.wheel, member), subject.version, "", hashes)


def _edits(subject: _Subject) -> Iterator[str]:
    """The edits can be read, and what they add is Python."""
    for version in subject.versions:
        try:
            release = json.loads(_read(subject, version, RELEASE_FILE))
            if not release["modules"]:
                yield f"{version}: the hooks change no module"
            for _, edits in release["modules"]:
                for edit in edits:
                    if set(edit) not in _KINDS:
                        yield f"{version}: an edit with {', '.join(sorted(edit))}"
                    ast.parse(edit.get("run") or edit.get("with") or "")
        except (ValueError, TypeError, KeyError, AttributeError, SyntaxError) as error:
            yield f"{version}: {RELEASE_FILE} cannot be read: {error!r}"


def _libraries(subject: _Subject) -> Iterator[str]:
    for version in subject.versions:
        library = subject.libraries.get(version)
        if library is None:
            yield f"{version}: there is no shared library {LIBRARY}"
        elif not subject.platform_tag.endswith(f"_{library.machine}"):
            yield f"{version}: the library is for {library.machine}"


def _symbols(subject: _Subject) -> Iterator[str]:
    for version, library in subject.libraries.items():
        name = subject.platform_tag.removesuffix(f"_{library.machine}")
        try:
            policy = manylinux.load_policy(name, library.machine)
        except RegistryError as error:
            yield f"{version}: {error}"
            continue
        for symbol in manylinux.violations(library, policy):
            yield f"{version}: {symbol} is newer than {policy.name} allows"


def _exports(subject: _Subject) -> Iterator[str]:
    for version, library in subject.libraries.items():
        for problem in export_problems(library):
            yield f"{version}: {problem}"


def _api(subject: _Subject) -> Iterator[str]:
    if _API_MODULE not in subject.wheel.NameToInfo:
        yield f"{_API_MODULE} is missing"
        return
    try:
        yield from api_problems(ast.parse(integrity.read(subject.wheel, _API_MODULE)))
    except (SyntaxError, ValueError) as error:
        yield f"{_API_MODULE} cannot be read: {error}"


def _read(subject: _Subject, version: str, name: str) -> bytes:
    member = f"{RELEASES}/{version}/{name}"
    return integrity.read(subject.wheel, member) if member in subject.wheel.NameToInfo else b""
