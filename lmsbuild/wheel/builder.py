"""The one way to build. A base is read, a plan has the final tag, and an output is written.

A wheel, a conda package and an installed torch are bases. Each writes the parts that are built here
into an output of its own kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lmsbuild.native.toolchain import Compiler
from lmsbuild.registry import Tag
from lmsbuild.tools.download import Target
from lmsbuild.tools.report import Report
from lmsbuild.wheel.patch_python import patch_python
from lmsbuild.wheel.plan import LibraryPlan, plan_for, provenance_of
from lmsbuild.wheel.provenance import Provenance


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a base comes from, for the provenance.

    Attributes:
        base: file name of the wheel or package, or the folder of the installation.
        sha256: of that file; empty for an installation.
        index_sha256: what the package index promised, if it was asked.
        binaries: hashes of the base's compiled files by path.
        pythons: such as "3.12".
    """

    base: str
    sha256: str = ""
    index_sha256: str | None = None
    binaries: Mapping[str, str] = field(default_factory=dict)
    pythons: tuple[str, ...] = ()


class Base(Protocol):
    """A PyTorch with CUDA that LMS is added to."""

    @property
    def target(self) -> Target:
        """The Python and the architecture that it is for."""

    @property
    def portable(self) -> bool:
        """Whether the library keeps to the tag's manylinux policy, or is for this system."""

    @property
    def origin(self) -> Origin: ...

    def read(self, path: str) -> bytes | None:
        """Content of a file of torch ("torch/version.py"), None when there is none."""

    def adapt(self, tag: Tag) -> Tag:
        """The tag's entry with what this base has otherwise than the registry says."""

    def libraries(self, plan: LibraryPlan, report: Report) -> dict[str, bytes]:
        """The compiled runtime by file name, from the cache when it was built before."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What an output has that its base has not.

    Attributes:
        files: new content by path; None for a file that is left out.
        libraries: those of torch/lib, by name.
    """

    plan: LibraryPlan
    files: dict[str, bytes | None]
    libraries: dict[str, bytes]
    provenance: Provenance


def build(
    base: Base, tag: Tag, compiler: Compiler, *, patches: Path, cache: Path, report: Report
) -> Parts:
    """Patch the base's Python files and compile the runtime for it.

    Raises HookError, CompileError, HeadersError and others for the ways to fail.
    """
    patched = patch_python(tag, patches, base.read)
    plan = plan_for(
        base.adapt(tag),
        compiler,
        base.target,
        patches=patches,
        cache=cache,
        report=report,
        portable=base.portable,
    )
    libraries = base.libraries(plan, report)
    origin = base.origin
    provenance = provenance_of(
        plan,
        patched,
        base=origin.base,
        sha256=origin.sha256,
        index_sha256=origin.index_sha256,
        binaries=origin.binaries,
        pythons=origin.pythons,
    )
    return Parts(plan=plan, files=patched.files, libraries=libraries, provenance=provenance)
