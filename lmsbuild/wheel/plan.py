"""The inputs of a build (the final tag, the compiler, the headers), and its provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import lmsbuild
from lmsbuild import console
from lmsbuild.native import compile
from lmsbuild.native.manylinux import ManylinuxPolicy, load_policy
from lmsbuild.native.toolchain import Compiler
from lmsbuild.registry import Tag
from lmsbuild.tools.download import Target
from lmsbuild.tools.fetch import Fetched
from lmsbuild.tools.report import Report
from lmsbuild.wheel.header_packages import fetch_headers
from lmsbuild.wheel.patch_python import PythonPatch
from lmsbuild.wheel.provenance import Provenance, toolkit_commit


@dataclass(frozen=True, kw_only=True)
class LibraryPlan:
    """What determines the library's bytes, besides the torch that it is compiled against.

    Attributes:
        headers: unpacked CUDA header packages by requirement.
        policy: the systems that it has to run on; None means only this one.
    """

    tag: Tag
    compiler: Compiler
    headers: dict[str, Fetched]
    patches: Path
    policy: ManylinuxPolicy | None


def plan_for(
    tag: Tag,
    compiler: Compiler,
    target: Target,
    *,
    patches: Path,
    cache: Path,
    report: Report,
    portable: bool = True,
) -> LibraryPlan:
    """How the library of a release is built. Raises as fetch_headers.

    If ``portable``, it meets the tag's manylinux policy; otherwise it is for this system.
    """
    headers = fetch_headers(tag, target, cache, report)
    for name, found in headers.items():
        console.detail(f"CUDA headers: {name}, {found.path}")
    return LibraryPlan(
        tag=tag,
        compiler=compiler,
        headers=headers,
        patches=patches,
        policy=load_policy(tag.manylinux, target.architecture) if portable else None,
    )


def provenance_of(
    plan: LibraryPlan,
    patched: PythonPatch,
    *,
    base: str,
    sha256: str = "",
    index_sha256: str | None = None,
    binaries: Mapping[str, str] | None = None,
    pythons: tuple[str, ...] = (),
) -> Provenance:
    """Where a build of this plan on this base comes from."""
    return Provenance(
        tag=plan.tag.name,
        base=base,
        base_sha256=sha256,
        base_index_sha256=index_sha256,
        base_binaries=binaries or {},
        runtime_sha256=patched.runtime_sha256,
        hooks_sha256=patched.hooks_sha256,
        hooks=patched.hooks,
        skipped=patched.skipped,
        compiler=plan.compiler.version,
        flags=tuple(compile.flags(plan.tag)),
        header_packages={name: found.sha256 for name, found in plan.headers.items()},
        manylinux=plan.policy.name if plan.policy else "",
        pythons=pythons,
        lmsbuild=lmsbuild.__version__,
        commit=toolkit_commit(),
    )
