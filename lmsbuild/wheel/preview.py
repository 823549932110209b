"""What a graft would do: nothing is fetched, compiled or written."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from lmsbuild.native.toolchain import Compiler, find_compiler
from lmsbuild.wheel.base import PROJECT
from lmsbuild.wheel.request import GraftRequest, check_request


@dataclass(frozen=True, kw_only=True)
class GraftPreview:
    """A graft as it would be.

    Attributes:
        base: the given base, or the requirement that the official wheel is fetched by.
        headers: the CUDA header packages; None where they are found out from the base.
    """

    request: GraftRequest
    compiler: Compiler
    base: str
    headers: tuple[str, ...] | None

    def document(self) -> dict[str, object]:
        """As JSON has it."""
        return {
            "tag": self.request.tag.name,
            "strategy": "graft",
            "architecture": self.request.architecture,
            "python": self.request.python,
            "out": str(self.request.out),
            "base": self.base,
            "header_packages": self.headers and list(self.headers),
            "compiler": shlex.join(self.compiler.command),
            "compiler_version": self.compiler.version,
        }

    def lines(self) -> list[str]:
        """In words."""
        request = self.request
        python = f"CPython {request.python}" if request.python else "the base's Python"
        rows = [
            ("base", self.base),
            ("headers", ", ".join(self.headers) if self.headers else "those of the base's CUDA"),
            ("compiler", f"{shlex.join(self.compiler.command)} ({self.compiler.version})"),
            ("out", str(request.out)),
        ]
        title = f"{request.tag.name} for {python} on {request.architecture}, by graft"
        return [title, *(f"  {name:<10} {text}" for name, text in rows)]


def preview(request: GraftRequest) -> GraftPreview:
    """What build_wheel would do with a request.

    Raises as check_request and find_compiler; what is wrong with the base itself shows later.
    """
    tag, given = request.tag, request.base
    check_request(tag, request.architecture, request.python, given)
    return GraftPreview(
        request=request,
        compiler=find_compiler(request.architecture),
        base=f"{PROJECT}=={tag.version}" if given is None else str(given),
        headers=tag.header_packages if request.architecture in tag.architectures else None,
    )
