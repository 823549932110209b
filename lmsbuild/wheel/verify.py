"""Verify a grafted wheel."""

from __future__ import annotations

import ast
import io
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from lmsbuild.errors import DamagedWheelError, ForeignWheelError, LmsbuildError, RegistryError
from lmsbuild.native import manylinux
from lmsbuild.native.compile import EXPORT_PREFIX
from lmsbuild.native.manylinux import ManylinuxPolicy
from lmsbuild.tools import elf
from lmsbuild.tools.cache import sha256_of
from lmsbuild.wheel import base as basewheel
from lmsbuild.wheel import integrity, provenance, record, sbom
from lmsbuild.wheel.base import LIBRARY_MEMBER, SEAM_LOADER, SEAM_MEMBER
from lmsbuild.wheel.integrity import is_binary
from lmsbuild.wheel.provenance import Provenance
from lmsbuild.wheel.version import LOCAL_VERSION, VERSION_MEMBER

API_MODULE = "torch/cuda/lms/__init__.py"
API_PACKAGE = "torch/cuda/__init__.py"

# What users call on torch.cuda, since the first LMS.
API = (
    "set_enabled_lms",
    "get_enabled_lms",
    "set_limit_lms",
    "get_limit_lms",
    "set_size_lms",
    "get_size_lms",
    "reclaim_inactive",
)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check: ``problems`` is empty if it passes, ``detail`` says what was checked."""

    name: str
    detail: str = ""
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """The wheel under test, read once."""

    path: Path
    wheel: zipfile.ZipFile
    dist_info: str
    rows: dict[str, record.Row]
    platform_tag: str
    version: Version
    provenance: Provenance | None
    library: elf.Library | None
    seam: elf.Library | None


def verify(
    path: Path, base: Path | None = None, advance: Callable[[int], None] | None = None
) -> list[Check]:
    """All checks of a wheel, in the order to show them.

    ``base`` is the official wheel. Without it, the hashes in the provenance are used instead.
    ``advance`` gets the number of unpacked bytes that were hashed.

    Raises:
        ForeignWheelError: the file does not exist, or is not named like a wheel of torch.
        DamagedWheelError, UnsafeMemberError: it cannot be read at all.
    """
    if not path.is_file():
        raise ForeignWheelError(f"{path}: no such file")
    record_check = Check(name="RECORD", problems=integrity.record_problems(path, advance))
    with integrity.open_wheel(path) as wheel:
        subject = _read(path, wheel)
        return [
            _with_detail(record_check, f"{len(subject.rows)} members"),
            _names(subject),
            _provenance(subject, base),
            _sbom(subject),
            _binaries(subject, base),
            _one_library(subject),
            _symbols(subject),
            _exports(subject),
            _api(subject),
        ]


def _read(path: Path, wheel: zipfile.ZipFile) -> _Subject:
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise ForeignWheelError(
            f"{path.name} is not named like a wheel ({error}); give its name back to it"
        ) from error
    if name != basewheel.PROJECT:
        raise ForeignWheelError(
            f"{path.name} is a wheel of {name}, not of {basewheel.PROJECT}; give one of"
            f" {basewheel.PROJECT}"
        )
    folder = integrity.dist_info(wheel)
    origin: Provenance | None = None
    if f"{folder}/{provenance.FILE_NAME}" in wheel.NameToInfo:
        try:
            origin = provenance.load(wheel.read(f"{folder}/{provenance.FILE_NAME}"))
        except (provenance.ProvenanceError, zipfile.BadZipFile):
            origin = None
    return _Subject(
        path=path,
        wheel=wheel,
        dist_info=folder,
        platform_tag=path.stem.split("-")[-1],
        rows={row.path: row for row in integrity.read_record(wheel)},
        version=version,
        provenance=origin,
        library=read_library(wheel, LIBRARY_MEMBER),
        seam=read_library(wheel, SEAM_MEMBER),
    )


def read_library(wheel: zipfile.ZipFile, member: str) -> elf.Library | None:
    """A member of a wheel as a shared library; None if it is none."""
    if member not in wheel.NameToInfo:
        return None
    try:
        return elf.read_stream(io.BytesIO(wheel.read(member)))
    except (elf.NotElfError, zipfile.BadZipFile):
        return None


def _with_detail(check: Check, detail: str) -> Check:
    return Check(name=check.name, detail=detail, problems=check.problems)


def _names(subject: _Subject) -> Check:
    """File name, dist-info, METADATA and torch/version.py have one version, with LMS's mark."""
    problems = []
    version = str(subject.version)
    if LOCAL_VERSION not in (subject.version.local or "").split("."):
        problems.append(f"version {version} has no {LOCAL_VERSION}")
    problems += version_problems(subject.wheel, subject.dist_info, basewheel.PROJECT, version)
    if VERSION_MEMBER not in subject.wheel.NameToInfo:
        problems.append(f"{VERSION_MEMBER} is missing")
    elif (
        f"{LOCAL_VERSION}'" not in (text := integrity.read_text(subject.wheel, VERSION_MEMBER))
        and f'{LOCAL_VERSION}"' not in text
    ):
        problems.append(f"torch.__version__ has no {LOCAL_VERSION}")
    return Check(name="version", detail=version, problems=problems)


def version_problems(
    wheel: zipfile.ZipFile, dist_info: str, package: str, version: str
) -> Iterator[str]:
    """Where the dist-info of a package's wheel says another version than this."""
    if dist_info != f"{package}-{version}.dist-info":
        yield f"{dist_info} does not belong to version {version}"
    metadata = integrity.read_text(wheel, f"{dist_info}/METADATA")
    if f"\nVersion: {version}\n" not in metadata.replace("\r\n", "\n").split("\n\n")[0] + "\n":
        yield f"METADATA does not say version {version}"


def _is_from_source(subject: _Subject) -> bool:
    """Whether it was built from source: only a graft has a record of how it was made."""
    members = {f"{subject.dist_info}/{name}" for name in (provenance.FILE_NAME, sbom.FILE_NAME)}
    return subject.library is not None and not members & subject.wheel.NameToInfo.keys()


def _provenance(subject: _Subject, base: Path | None) -> Check:
    if base is None and _is_from_source(subject):
        return Check(name="provenance", detail="none: built from source")
    if subject.provenance is None:
        return Check(name="provenance", problems=[f"no readable {provenance.FILE_NAME}"])
    problems = []
    if base is not None and sha256_of(base) != subject.provenance.base_sha256:
        problems.append(f"{base.name} is not the wheel that this one was made from")
    detail = f"{subject.provenance.base}, {subject.provenance.compiler}"
    return Check(name="provenance", detail=detail, problems=problems)


def _sbom(subject: _Subject) -> Check:
    """A wheel that was made before there was a bill, or from source, has none."""
    member = f"{subject.dist_info}/{sbom.FILE_NAME}"
    if member not in subject.wheel.NameToInfo:
        return Check(name="SBOM", detail="none")
    hashes = {row.path: row.hexdigest for row in subject.rows.values()}
    base = subject.provenance.base_sha256 if subject.provenance else ""
    try:
        text = integrity.read(subject.wheel, member)
    except DamagedWheelError as error:
        return Check(name="SBOM", detail=sbom.FILE_NAME, problems=[str(error)])
    problems = sbom.problems(text, str(subject.version), base, hashes)
    return Check(name="SBOM", detail=sbom.FILE_NAME, problems=problems)


def _binaries(subject: _Subject, base: Path | None) -> Check:
    """Compare RECORD's hashes. The first check has compared them with the members."""
    if base is not None:
        with integrity.open_wheel(base) as wheel:
            expected = {
                row.path: row.hash for row in integrity.read_record(wheel) if is_binary(row.path)
            }
    elif subject.provenance is not None:
        expected = dict(subject.provenance.base_binaries)
    elif _is_from_source(subject):
        return Check(name="upstream's binaries", detail="none: built from source")
    else:
        return Check(
            name="upstream's binaries",
            problems=["nothing to compare with: no provenance, and no --base"],
        )
    present = {row.path: row.hash for row in subject.rows.values() if is_binary(row.path)}
    problems = [f"{name} is missing" for name in sorted(expected.keys() - present.keys())]
    problems += [
        f"{name} has changed"
        for name in sorted(expected.keys() & present.keys())
        if expected[name] != present[name]
    ]
    problems += [
        f"{name} is not upstream's"
        for name in sorted(present.keys() - expected.keys() - {LIBRARY_MEMBER, SEAM_MEMBER})
    ]
    if not expected:
        problems.append("the base has no binaries")
    return Check(name="upstream's binaries", detail=f"{len(expected)} libraries", problems=problems)


def _one_library(subject: _Subject) -> Check:
    found = [
        info.filename
        for info in subject.wheel.infolist()
        if is_binary(info.filename) and "lms" in info.filename.rsplit("/", 1)[-1]
    ]
    problems = []
    # A seam and the module that loads it belong together.
    expected = [LIBRARY_MEMBER] + [SEAM_MEMBER] * (SEAM_LOADER in subject.wheel.NameToInfo)
    if sorted(found) != sorted(expected):
        problems.append(
            f"LMS libraries: {', '.join(found) or 'none'}; expected {', '.join(expected)}"
        )
    elif subject.library is None:
        problems.append(f"{LIBRARY_MEMBER} is no shared library")
    elif not subject.platform_tag.endswith(f"_{subject.library.machine}"):
        problems.append(
            f"the library is for {subject.library.machine}, the wheel for {subject.platform_tag}"
        )
    return Check(name="one LMS library", detail=", ".join(expected), problems=problems)


def _symbols(subject: _Subject) -> Check:
    name = "manylinux symbols"
    if subject.library is None:
        return Check(name=name, problems=["no library to look at"])
    policy = _policy(subject)
    if policy is None:
        return Check(name=name, problems=[f"no known policy for {subject.platform_tag}"])
    too_new = manylinux.violations(subject.library, policy)
    if subject.seam:
        too_new += manylinux.violations(subject.seam, policy)
    return Check(
        name=name,
        detail=policy.name,
        problems=[f"{symbol} is newer than {policy.name} allows" for symbol in too_new],
    )


def _policy(subject: _Subject) -> ManylinuxPolicy | None:
    """The policy of the wheel's own tag.

    Upstream's oldest tags (manylinux1) name a policy that its own libraries do not meet. For these,
    the policy that the library was linked for is used.
    """
    architecture = subject.library.machine if subject.library else ""
    names = [tag.removesuffix(f"_{architecture}") for tag in subject.platform_tag.split(".")]
    if subject.provenance is not None:
        names.append(subject.provenance.manylinux)
    for name in names:
        try:
            return manylinux.load_policy(name, architecture)
        except RegistryError:
            continue
    return None


def _exports(subject: _Subject) -> Check:
    if subject.library is None:
        return Check(name="C interface", problems=["no library to look at"])
    exported = subject.library.exported
    problems = export_problems(subject.library)
    return Check(name="C interface", detail=f"{len(exported)} functions", problems=problems)


def export_problems(library: elf.Library) -> list[str]:
    """What is wrong with the functions that a library exports."""
    exported = library.exported
    wanted = {EXPORT_PREFIX + name.removesuffix("_lms") for name in API}
    wanted.add(EXPORT_PREFIX + "abi_version")
    return [f"{name} is not exported" for name in sorted(wanted - exported)] + [
        f"{name} is exported, but not part of the interface"
        for name in sorted(exported)
        if not name.startswith(EXPORT_PREFIX)
    ]


def _api(subject: _Subject) -> Check:
    """The functions are defined in torch.cuda.lms, and torch.cuda takes them from there."""
    problems = []
    trees: dict[str, ast.Module] = {}
    for member in (API_MODULE, API_PACKAGE):
        if member not in subject.wheel.NameToInfo:
            problems.append(f"{member} is missing")
            continue
        try:
            trees[member] = ast.parse(integrity.read_text(subject.wheel, member))
        except (SyntaxError, ValueError, LmsbuildError) as error:
            problems.append(f"{member} cannot be read: {error}")
    if API_MODULE in trees:
        problems += api_problems(trees[API_MODULE])
    if API_PACKAGE in trees:
        imported = set(_imported_from_lms(trees[API_PACKAGE]))
        problems += [
            f"torch.cuda has no {name}"
            for name in API
            if name not in imported and "*" not in imported
        ]
    return Check(name="Python interface", detail=f"{len(API)} functions", problems=problems)


def api_problems(module: ast.Module) -> list[str]:
    """Which of the functions of API a module lacks that should be torch.cuda.lms."""
    defined = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    return [f"torch.cuda.lms has no {name}" for name in API if name not in defined]


def _imported_from_lms(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module in ("lms", "torch.cuda.lms"):
            yield from (alias.name for alias in node.names)
