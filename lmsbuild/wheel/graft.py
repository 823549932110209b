"""Grafting LMS onto an official wheel.

Nothing of upstream's compiled code changes: members are copied as they are, still compressed.
Python files that the hooks touch are replaced, the runtime is added, name, version and RECORD
follow.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable

from lmsbuild.native.toolchain import find_compiler
from lmsbuild.tools import fetch, lock
from lmsbuild.tools.atomic import remove_drafts
from lmsbuild.tools.cache import sha256_of
from lmsbuild.tools.download import Target
from lmsbuild.tools.report import Report, counter, prefixed
from lmsbuild.wheel import base as basewheel
from lmsbuild.wheel import integrity, runtime_library, unofficial_base
from lmsbuild.wheel.base import PROJECT, BaseWheel
from lmsbuild.wheel.header_packages import newest_packages
from lmsbuild.wheel.integrity import is_binary
from lmsbuild.wheel.patch_python import patch_python
from lmsbuild.wheel.plan import plan_for, provenance_of
from lmsbuild.wheel.request import LOCK_FILE, GraftRequest, GraftResult, check_request
from lmsbuild.wheel.writer import write_wheel


def build_wheel(request: GraftRequest, report: Report) -> GraftResult:
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
        plan = plan_for(
            tag, compiler, target, patches=request.patches, cache=request.cache, report=report
        )
        identity = (
            runtime_library.release_identity(tag, request.architecture, rows)
            if official
            else digest
        )
        libraries = runtime_library.library_for(plan, base, identity, request.cache, report)
        provenance = provenance_of(
            plan,
            patched,
            base=base.path.name,
            sha256=digest,
            index_sha256=index_digest,
            binaries={row.path: row.hash for row in rows if is_binary(row.path)},
            pythons=(base.python,),
        )
        path = write_wheel(base, patched, libraries, provenance, request.out, report)
    return GraftResult(path=path, provenance=provenance)


def _obtain(request: GraftRequest, report: Report) -> tuple[BaseWheel, str, str | None]:
    """The base wheel with its SHA-256, and the one that the index promised."""
    if request.base is not None:
        base = basewheel.identify(request.base)
        total = request.base.stat().st_size
        return base, sha256_of(request.base, counter("read", total, report)), None
    assert request.python is not None, "the caller chooses a Python where there is no base"
    target = Target(python=request.python, architecture=request.architecture)
    fetched = fetch.fetch_wheel(
        f"{PROJECT}=={request.tag.version}", target, request.cache, prefixed("download", report)
    )
    return basewheel.identify(fetched.path), fetched.sha256, fetched.index_sha256


def _reader(wheel: zipfile.ZipFile) -> Callable[[str], bytes | None]:
    def read(path: str) -> bytes | None:
        return wheel.read(path) if path in wheel.NameToInfo else None

    return read
