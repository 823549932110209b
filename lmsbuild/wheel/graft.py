"""Graft LMS onto an official wheel.

Upstream's compiled code stays unchanged: the members are copied without decompression. The Python
files that the hooks change are replaced, the runtime is added, and the name, the version and RECORD
are updated.
"""

from __future__ import annotations

import shlex
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmsbuild import console
from lmsbuild.native.toolchain import Compiler, find_compiler
from lmsbuild.registry import Tag
from lmsbuild.tools import fetch, lock
from lmsbuild.tools.atomic import remove_drafts
from lmsbuild.tools.cache import sha256_of
from lmsbuild.tools.download import Target
from lmsbuild.tools.report import Report, counter, prefixed
from lmsbuild.wheel import base as basewheel
from lmsbuild.wheel import integrity, runtime_library, unofficial_base
from lmsbuild.wheel.base import PROJECT, BaseWheel
from lmsbuild.wheel.builder import Origin, Parts, build
from lmsbuild.wheel.header_packages import newest_packages
from lmsbuild.wheel.integrity import is_binary
from lmsbuild.wheel.plan import LibraryPlan
from lmsbuild.wheel.record import Row
from lmsbuild.wheel.request import LOCK_FILE, GraftRequest, GraftResult, check_request
from lmsbuild.wheel.writer import write_wheel


def build_wheel(request: GraftRequest, report: Report) -> GraftResult:
    """Make the LMS wheel of a request in its out folder. If this fails, no file is left there.

    Raises a subclass of LmsbuildError for each way to fail; OSError for the file system's.
    """
    tag = request.tag
    check_request(tag, request.architecture, request.python, request.base)
    # Checked before half a gigabyte is downloaded.
    compiler = find_compiler(request.architecture)
    console.detail(f"cache: {request.cache}")
    console.detail(f"compiler: {shlex.join(compiler.command)} ({compiler.version})")
    request.out.mkdir(parents=True, exist_ok=True)
    with lock.exclusive(request.out / LOCK_FILE, request.out):
        remove_drafts(request.out)
        base, parts = make_parts(request, compiler, report)
        path = write_wheel(
            base, parts.files, parts.libraries, parts.provenance, request.out, report
        )
    return GraftResult(path=path, provenance=parts.provenance)


def make_parts(
    request: GraftRequest, compiler: Compiler, report: Report
) -> tuple[BaseWheel, Parts]:
    """The base of a request, and what a graft adds to it. Nothing is written to the out folder.

    Raises as build_wheel.
    """
    tag = request.tag
    official = request.architecture in tag.architectures
    base, digest, index_digest = _obtain(request, report)
    console.detail(f"base: {base.path} (SHA-256 {digest})")
    with integrity.open_wheel(base.path) as wheel:
        parts = build(
            _WheelBase(
                wheel=base,
                archive=wheel,
                rows=integrity.read_record(wheel),
                official=official,
                sha256=digest,
                index_sha256=index_digest,
                target=Target(python=base.python, architecture=request.architecture),
                cache=request.cache,
            ),
            tag,
            compiler,
            patches=request.patches,
            cache=request.cache,
            report=report,
        )
    return base, parts


@dataclass(frozen=True, kw_only=True)
class _WheelBase:
    """A wheel as a base; see builder.Base."""

    wheel: BaseWheel
    archive: zipfile.ZipFile
    rows: Sequence[Row]
    official: bool
    sha256: str
    index_sha256: str | None
    target: Target
    cache: Path

    portable = True

    @property
    def origin(self) -> Origin:
        return Origin(
            base=self.wheel.path.name,
            sha256=self.sha256,
            index_sha256=self.index_sha256,
            binaries={row.path: row.hash for row in self.rows if is_binary(row.path)},
            pythons=(self.wheel.python,),
        )

    def read(self, path: str) -> bytes | None:
        return self.archive.read(path) if path in self.archive.NameToInfo else None

    def adapt(self, tag: Tag) -> Tag:
        if not self.official:
            newest = newest_packages(self.target, self.cache)
            tag = unofficial_base.adapted(tag, self.wheel.path.name, self.read, newest)
        return unofficial_base.within(tag, self.wheel.platform_tag, self.target.architecture)

    def libraries(self, plan: LibraryPlan, report: Report) -> dict[str, bytes]:
        identity = (
            runtime_library.release_identity(plan.tag, self.target.architecture, self.rows)
            if self.official
            else self.sha256
        )
        return runtime_library.library_for(plan, self.wheel, identity, self.cache, report)


def _obtain(request: GraftRequest, report: Report) -> tuple[BaseWheel, str, str | None]:
    """The base wheel, checked, with its SHA-256, and the SHA-256 that the index lists."""
    if request.base is not None:
        base = _checked(request, request.base, report)
        total = request.base.stat().st_size
        return base, sha256_of(request.base, counter("read", total, report)), None
    assert request.python is not None, "the caller chooses a Python where there is no base"
    target = Target(python=request.python, architecture=request.architecture)
    requirement = f"{PROJECT}=={request.tag.version}"
    fetched = fetch.fetch_wheel(requirement, target, request.cache, prefixed("download", report))
    with fetch.forgotten_if_unfit(requirement, target, request.cache):
        base = _checked(request, fetched.path, report)
    return base, fetched.sha256, fetched.index_sha256


def _checked(request: GraftRequest, path: Path, report: Report) -> BaseWheel:
    base = basewheel.identify(path)
    total = sum(info.file_size for info in zipfile.ZipFile(path).infolist())
    basewheel.check(
        base,
        request.tag,
        architecture=request.architecture,
        python=request.python,
        official=request.architecture in request.tag.architectures,
        advance=counter("check", total, report),
    )
    return base
