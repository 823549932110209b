"""Grafting LMS onto an official wheel.

Nothing of upstream's compiled code changes: members are copied as they are, still compressed.
Python files that the hooks touch are replaced, the runtime is added, name, version and RECORD
follow.
"""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import lmsbuild
from lmsbuild import facts
from lmsbuild.architecture import architecture as architecture_of
from lmsbuild.errors import (
    DamagedWheelError,
    MissingBaseError,
    NoSpaceError,
    WrongPlatformError,
    WrongPythonError,
)
from lmsbuild.native import compile
from lmsbuild.native.manylinux import load_policy
from lmsbuild.native.toolchain import Compiler, find_compiler
from lmsbuild.registry import Tag
from lmsbuild.tools import fetch, lock, zipcopy
from lmsbuild.tools.atomic import draft, remove_drafts
from lmsbuild.tools.cache import sha256_of
from lmsbuild.tools.download import Progress, Target
from lmsbuild.wheel import base as basewheel
from lmsbuild.wheel import integrity, provenance, record, runtime_library, unofficial_base
from lmsbuild.wheel.base import LIBRARY_FOLDER, PROJECT, BaseWheel
from lmsbuild.wheel.patch_python import PythonPatch, lms_version, patch_python
from lmsbuild.wheel.provenance import Provenance

# report(stage, done, total): bytes, but for the stage "compile", which counts files. The total
# is None while unknown.
Report = Callable[[str, int, "int | None"], None]

LOCK_FILE = ".lmsbuild.lock"
_SPACE_MARGIN = 64 << 20  # bytes that must stay free beside the new wheel
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")  # of the old RECORD, worthless with the new one


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to build.

    Attributes:
        tag: the torch release.
        architecture: such as "x86_64".
        python: such as "3.12"; None takes the base's, where one is given.
        base: the wheel or conda package to build on; None fetches the official wheel.
        companions: conda packages with what the base lacks.
        out: folder of the new wheel.
        patches: the patches folder.
        cache: folder of what is fetched and built.
    """

    tag: Tag
    architecture: str
    python: str | None
    base: Path | None
    out: Path
    patches: Path
    cache: Path
    companions: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished wheel and what it was made from."""

    path: Path
    provenance: Provenance


def build_wheel(request: Request, report: Report) -> Result:
    """Make the LMS wheel of a request in its out folder; on failure nothing is left there.

    Raises a subclass of LmsbuildError for each way to fail; OSError for the file system's.
    """
    tag = request.tag
    check_request(tag, request.architecture, request.python, request.base)
    # Before half a gigabyte is fetched for nothing.
    compiler = find_compiler(request.architecture)
    request.out.mkdir(parents=True, exist_ok=True)
    with lock.exclusive(request.out / LOCK_FILE, request.out):
        remove_drafts(request.out)
        official = request.architecture in tag.architectures
        base, digest, index_digest = _obtain(request, report)
        total = sum(info.file_size for info in zipfile.ZipFile(base.path).infolist())
        basewheel.check(
            base,
            tag,
            architecture=request.architecture,
            python=request.python,
            official=official,
            advance=counter("check", total, report),
        )
        target = Target(python=base.python, architecture=request.architecture)
        with integrity.open_wheel(base.path) as wheel:
            patched = patch_python(tag, request.patches, _reader(wheel))
            rows = integrity.read_record(wheel)
            if not official:
                tag = unofficial_base.adapted(
                    tag, base.path.name, _reader(wheel), newest_packages(target, request.cache)
                )
        tag = unofficial_base.within(tag, base.platform_tag, request.architecture)
        recipe = recipe_for(tag, compiler, target, request, report)
        identity = (
            runtime_library.release_identity(tag, request.architecture, rows)
            if official
            else digest
        )
        libraries = runtime_library.library_for(recipe, base, identity, request.cache, report)
        origin = origin_of(
            recipe,
            patched,
            base=base.path,
            sha256=digest,
            index_sha256=index_digest,
            binaries={row.path: row.hash for row in rows if is_binary(row.path)},
            python=base.python,
        )
        path = write_wheel(base, patched, libraries, origin, request.out, report)
    return Result(path=path, provenance=origin)


def recipe_for(
    tag: Tag, compiler: Compiler, target: Target, request: Request, report: Report
) -> runtime_library.Recipe:
    """What the library of a release is made of. Raises as fetch_headers."""
    return runtime_library.Recipe(
        tag=tag,
        compiler=compiler,
        headers=fetch_headers(tag, target, request.cache, report),
        patches=request.patches,
        policy=load_policy(tag.manylinux, request.architecture),
    )


def origin_of(
    recipe: runtime_library.Recipe,
    patched: PythonPatch,
    *,
    base: Path,
    sha256: str,
    index_sha256: str | None,
    binaries: Mapping[str, str],
    python: str,
) -> Provenance:
    """Where a build of this recipe on this base comes from."""
    return Provenance(
        tag=recipe.tag.name,
        base=base.name,
        base_sha256=sha256,
        base_index_sha256=index_sha256,
        base_binaries=binaries,
        runtime_sha256=patched.runtime_sha256,
        hooks_sha256=patched.hooks_sha256,
        hooks=patched.hooks,
        skipped=patched.skipped,
        compiler=recipe.compiler.version,
        flags=tuple(compile.flags(recipe.tag)),
        header_packages={name: found.sha256 for name, found in recipe.headers.items()},
        manylinux=recipe.tag.manylinux,
        pythons=(python,),
        lmsbuild=lmsbuild.__version__,
        commit=provenance.toolkit_commit(),
    )


def fetch_headers(
    tag: Tag, target: Target, cache: Path, report: Report
) -> dict[str, fetch.Fetched]:
    """The tag's CUDA header packages, unpacked, by requirement. Raises as fetch_package."""
    target = packages_target(target)
    return {
        package: fetch.fetch_package(package, target, cache, _renamed("download", report))
        for package in tag.header_packages
    }


def newest_packages(target: Target, cache: Path) -> facts.Newest:
    """What finds the newest CUDA header package that a requirement allows."""
    return lambda requirement: fetch.fetch_newest(requirement, packages_target(target), cache).path


def packages_target(target: Target) -> Target:
    """The target whose CUDA header packages serve for another one."""
    return Target(
        python=target.python, architecture=architecture_of(target.architecture).cuda_packages
    )


def check_request(tag: Tag, architecture: str, python: str | None, base: Path | None) -> None:
    """Raise unless there is such a wheel, or a base that can be checked for being one.

    Raises WrongPlatformError, MissingBaseError, WrongPythonError.
    """
    architecture_of(architecture)
    if "graft" not in tag.strategies:
        raise WrongPlatformError(
            f"{tag.name} can only be built from source, because there LMS is inside of PyTorch's"
            f" own libraries; run `lmsbuild wheel {tag.name} --strategy source`, or `lmsbuild apply"
            f" {tag.name}` and then, in the checkout that it makes, `python setup.py bdist_wheel`"
        )
    if architecture not in tag.architectures and base is None:
        raise MissingBaseError(
            f"{tag.name} has no official CUDA wheel for {architecture} (only for "
            f"{', '.join(tag.architectures)}): give a wheel or a conda package of PyTorch "
            f"{tag.version} with CUDA for {architecture} with --base (Open-CE's, conda-forge's, "
            "your own build's), or build PyTorch itself with --strategy source"
        )
    if python is not None and python not in tag.pythons:
        raise WrongPythonError(
            f"{tag.name} supports CPython {', '.join(tag.pythons)}, not "
            f"{python}; choose with --python"
        )


def is_binary(member: str) -> bool:
    """Whether a member is a shared library, by its name."""
    name = member.rsplit("/", 1)[-1]
    return name.endswith(".so") or ".so." in name


def require_space(out: Path, size: int) -> None:
    """Raise NoSpaceError unless a file of ``size`` bytes fits into the folder."""
    if shutil.disk_usage(out).free < size + _SPACE_MARGIN:
        raise NoSpaceError(
            f"{out} has less than {(size + _SPACE_MARGIN) // 10**6} MB free; "
            "free some, or name another folder with --out"
        )


def write_wheel(
    base: BaseWheel,
    patched: PythonPatch,
    libraries: Mapping[str, bytes],
    origin: Provenance,
    out: Path,
    report: Report,
) -> Path:
    """Write the grafted wheel, first under another name. The same inputs give the same bytes.

    Raises NoSpaceError, OSError.
    """
    require_space(out, base.path.stat().st_size + sum(map(len, libraries.values())))
    version = lms_version(base.version)
    name, _, *rest = base.path.name.split("-")
    path = out / "-".join([name, version, *rest])
    with draft(path) as unfinished, unfinished.open("xb") as stream:
        _write(stream, base, version, patched, libraries, origin, report)
        stream.flush()
        os.fsync(stream.fileno())
    return path


def _write(
    stream: IO[bytes],
    base: BaseWheel,
    version: str,
    patched: PythonPatch,
    libraries: Mapping[str, bytes],
    origin: Provenance,
    report: Report,
) -> None:
    old, new = base.dist_info, f"{PROJECT}-{version}.dist-info"
    with (
        zipfile.ZipFile(base.path) as source,
        base.path.open("rb") as raw,
        zipcopy.ArchiveWriter(stream) as target,
    ):
        rows = {row.path: row for row in integrity.read_record(source)}
        metadata = source.getinfo(f"{old}/METADATA")
        replaced: dict[str, bytes | None] = {
            **patched.files,
            f"{old}/METADATA": _bumped(source.read(metadata), base, version),
            f"{old}/RECORD": None,
            **{f"{old}/{name}": None for name in _SIGNATURES},
        }
        advance = counter("write", sum(i.compress_size for i in source.infolist()), report)
        written: list[record.Row] = []

        def put(name: str, data: bytes, mode: int = zipcopy.REGULAR_FILE) -> None:
            # The base's own date: the result shall not depend on when it was made.
            target.add(name, data, when=metadata.date_time, mode=mode)
            written.append(record.row_of(name, data))

        def put_all(members: list[zipfile.ZipInfo]) -> None:
            for info in members:
                name = info.filename
                renamed = new + name[len(old) :] if name.startswith(f"{old}/") else name
                if name not in replaced:
                    target.copy(raw, info, renamed, advance)
                    if name in rows:
                        row = rows[name]
                        written.append(record.Row(path=renamed, hash=row.hash, size=row.size))
                elif (data := replaced[name]) is not None:
                    put(renamed, data, info.external_attr >> 16 or zipcopy.REGULAR_FILE)

        # dist-info goes last, as the wheel format recommends, and RECORD at its very end.
        members = source.infolist()
        put_all([info for info in members if not info.filename.startswith(f"{old}/")])
        present = {info.filename for info in members}
        for name in sorted(patched.files.keys() - present):
            if (data := patched.files[name]) is not None:
                put(name, data)
        for name, data in libraries.items():
            put(LIBRARY_FOLDER + name, data, zipcopy.SHARED_LIBRARY)
        put_all([info for info in members if info.filename.startswith(f"{old}/")])
        put(f"{new}/{provenance.FILE_NAME}", provenance.dump(origin))
        written.append(record.Row(path=f"{new}/RECORD"))
        target.add(
            f"{new}/RECORD", record.serialize(written).encode("utf-8"), when=metadata.date_time
        )


def _bumped(metadata: bytes, base: BaseWheel, version: str) -> bytes:
    """METADATA with the new version in its header."""
    # Only the header, which ends at the first empty line: the description may say the same.
    line = re.compile(
        rb"^Version:[ \t]*%s[ \t]*(\r?)$" % re.escape(str(base.version)).encode(), re.MULTILINE
    )
    header, separator, description = metadata.partition(b"\n\n")
    header, count = line.subn(b"Version: " + version.encode() + rb"\1", header)
    if count != 1:
        raise DamagedWheelError(
            f"{base.path.name}: METADATA names its version {count} times; download it again"
        )
    return header + separator + description


def _obtain(request: Request, report: Report) -> tuple[BaseWheel, str, str | None]:
    """The base wheel with its SHA-256, and the one that the index promised."""
    if request.base is not None:
        base = basewheel.identify(request.base)
        total = request.base.stat().st_size
        return base, sha256_of(request.base, counter("read", total, report)), None
    assert request.python is not None, "the caller chooses a Python where there is no base"
    target = Target(python=request.python, architecture=request.architecture)
    fetched = fetch.fetch_wheel(
        f"{PROJECT}=={request.tag.version}", target, request.cache, _renamed("download", report)
    )
    return basewheel.identify(fetched.path), fetched.sha256, fetched.index_sha256


def _reader(wheel: zipfile.ZipFile) -> Callable[[str], bytes | None]:
    def read(path: str) -> bytes | None:
        return wheel.read(path) if path in wheel.NameToInfo else None

    return read


def counter(stage: str, total: int, report: Report) -> Callable[[int], None]:
    """Turns increments into the running sum that ``report`` takes."""
    done = 0

    def advance(amount: int) -> None:
        nonlocal done
        done += amount
        report(stage, done, total)

    return advance


def _renamed(stage: str, report: Report) -> Progress:
    return lambda what, done, total: report(f"{stage} {what}", done, total)
