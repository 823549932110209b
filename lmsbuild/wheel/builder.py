"""The build steps that wheels, conda packages and overlays share.

A wheel, a conda package or an installed torch is the base. This module builds the parts that LMS
adds. The module of each kind of base reads it, and writes the output.
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
    """The origin of a base, for the provenance.

    Attributes:
        base: file name of the wheel or package, or the folder of the installation.
        sha256: of that file; empty for an installation.
        index_sha256: the hash that the package index lists, if it was asked.
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
        """Whether the library meets the tag's manylinux policy; otherwise it is for this system."""

    @property
    def origin(self) -> Origin: ...

    def read(self, path: str) -> bytes | None:
        """Content of a file of torch ("torch/version.py"), None when there is none."""

    def adapt(self, tag: Tag) -> Tag:
        """The tag's entry, with the values of this base where they differ from the registry's."""

    def libraries(self, plan: LibraryPlan, report: Report) -> dict[str, bytes]:
        """The compiled runtime by file name, from the cache if it was built before."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The files in which an output differs from its base.

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
