"""Graft LMS onto a conda package of PyTorch with CUDA. The result is a package of the same kind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmsbuild.conda import base as condabase
from lmsbuild.conda.base import PATHS, CondaBase
from lmsbuild.conda.writer import write_package
from lmsbuild.native.toolchain import find_compiler
from lmsbuild.registry import Tag
from lmsbuild.tools import lock
from lmsbuild.tools.atomic import remove_drafts
from lmsbuild.tools.cache import scratch, sha256_of
from lmsbuild.tools.download import Target
from lmsbuild.tools.report import Report, counter
from lmsbuild.wheel import record, runtime_library, unofficial_base
from lmsbuild.wheel.base import LIBRARY_FOLDER
from lmsbuild.wheel.builder import Origin, build
from lmsbuild.wheel.header_packages import newest_packages
from lmsbuild.wheel.integrity import is_binary
from lmsbuild.wheel.plan import LibraryPlan
from lmsbuild.wheel.request import (
    LOCK_FILE,
    GraftRequest,
    GraftResult,
    check_request,
)
from lmsbuild.wheel.version import mark_metadata


def build_package(request: GraftRequest, report: Report) -> GraftResult:
    """Graft LMS onto the conda package ``request.base``, and write the result to ``request.out``.

    On failure no file is left there. Raises as wheel.graft.build_wheel and base.check.
    """
    assert request.base is not None
    tag = request.tag
    check_request(tag, request.architecture, request.python, request.base)
    compiler = find_compiler(request.architecture)
    request.out.mkdir(parents=True, exist_ok=True)
    with lock.exclusive(request.out / LOCK_FILE, request.out), scratch(request.cache) as name:
        remove_drafts(request.out)
        report("unpack", 0, None)
        base = condabase.unpack(request.base, request.companions, Path(name) / "prefix")
        condabase.check(
            base,
            tag,
            architecture=request.architecture,
            python=request.python,
            advance=counter("check", sum(member.size for member in base.members), report),
        )
        target = Target(python=base.python, architecture=request.architecture)
        digests = [sha256_of(path) for path in (request.base, *request.companions)]
        parts = build(
            _PackageBase(package=base, digests=digests, cache=request.cache, target=target),
            tag,
            compiler,
            patches=request.patches,
            cache=request.cache,
            report=report,
        )
        changes = {f"{base.site}/{path}": data for path, data in parts.files.items()}
        changes |= {
            f"{base.site}/{LIBRARY_FOLDER}{name}": data for name, data in parts.libraries.items()
        }
        changes |= _metadata(base, changes)
        path = write_package(base, changes, parts.provenance, request.out, report)
    return GraftResult(path=path, provenance=parts.provenance)


@dataclass(frozen=True, kw_only=True)
class _PackageBase:
    """A conda package as a base; see builder.Base."""

    package: CondaBase
    digests: Sequence[str]  # of the package and its companions
    target: Target
    cache: Path

    portable = True

    @property
    def origin(self) -> Origin:
        rows = json.loads((self.package.folder / PATHS).read_bytes())["paths"]
        return Origin(
            base=self.package.path.name,
            sha256=self.digests[0],
            binaries={
                row["_path"]: row.get("sha256", "") for row in rows if is_binary(row["_path"])
            },
            pythons=(self.package.python,),
        )

    def read(self, path: str) -> bytes | None:
        return self.package.read(path)

    def adapt(self, tag: Tag) -> Tag:
        newest = newest_packages(self.target, self.cache)
        return unofficial_base.adapted(tag, self.package.path.name, self.read, newest)

    def libraries(self, plan: LibraryPlan, report: Report) -> dict[str, bytes]:
        identity = hashlib.sha256(" ".join(self.digests).encode()).hexdigest()
        return runtime_library.kept_or_built(
            plan, lambda _: self.package.torch, identity, self.cache, report
        )


def _metadata(base: CondaBase, changes: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    """METADATA with the new version, and the new RECORD, if the package has a dist-info folder."""
    names = [member.name for member in base.members if member.isfile()]
    found = [name for name in names if name.endswith("/METADATA") and "/torch-" in name]
    if len(found) != 1:
        return {}
    metadata = (base.folder / found[0]).read_bytes()
    result: dict[str, bytes | None] = {found[0]: mark_metadata(metadata, base.path.name)}
    listed = found[0].removesuffix("METADATA") + "RECORD"
    if listed in names:
        changed = {
            name.removeprefix(f"{base.site}/"): data for name, data in {**changes, **result}.items()
        }
        rows = record.parse((base.folder / listed).read_text("utf-8"))
        kept = [row for row in rows if row.path not in changed]
        new = [record.row_of(name, data) for name, data in changed.items() if data is not None]
        result[listed] = record.serialize([*kept, *new]).encode()
    return result
