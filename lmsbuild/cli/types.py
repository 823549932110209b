"""Types of options and arguments: what a shell may complete, and which files have to be there."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from lmsbuild.errors import LmsbuildError

# Only newer releases of click have a generic class.
if TYPE_CHECKING:
    from lmsbuild.simulate.gpu import Gpu
    from lmsbuild.simulate.link import Link

    _GpuType = click.ParamType[Gpu]
    _IntType = click.ParamType[int]
    _LinkType = click.ParamType[Link]
else:
    _GpuType = _IntType = _LinkType = click.ParamType

# A missing one is wrong usage: click says so, and exits with 2.
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


class NewFileType(click.Path):
    """A file to be written, in a folder that exists: the work that comes first may take long."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not path.absolute().parent.is_dir():
            self.fail(f"there is no folder {path.parent}", param, ctx)
        return path


NEW_FILE = NewFileType()


class _Completed(click.types.StringParamType):
    """Text that a shell can complete. Whether it is right is found out by who uses it."""

    def choices(self) -> list[str]:
        raise NotImplementedError

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            found = self.choices()
        except LmsbuildError:
            return []  # a shell has nowhere to show it
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]


class BytesType(_IntType):
    """A number of bytes: 16G is 16 * 10**9, 16GiB is 16 * 2**30. At least ``least``.

    As the variables of torch.cuda.lms, in its environment.py, which is not imported without torch.
    """

    name = "bytes"

    def __init__(self, least: int = 1) -> None:
        self.least = least

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B?", str(value).strip())
        if not found or (found[3] and not found[2]):
            self.fail(f"{value!r} is not a number of bytes such as 16G or 512MiB", param, ctx)
        power = "KMGT".index(found[2].upper()) + 1 if found[2] else 0
        size = int(float(found[1]) * (1024 if found[3] else 1000) ** power)
        if size < self.least:
            self.fail(f"{value!r} has to be at least {self.least}", param, ctx)
        return size


class LinkType(_LinkType):
    """A link between GPU and host: a name of data/links.toml, or bytes per second."""

    name = "link"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Link:
        from lmsbuild.simulate.link import Link, links

        known = links()
        if value in known:
            return known[str(value)]
        try:
            rate = BYTES.convert(value, None, None)
        except click.BadParameter:
            rate = 0
        if rate <= 0:
            names = ", ".join(known)
            self.fail(
                f"{value!r} is neither a link ({names}) nor bytes per second such as 25G",
                param,
                ctx,
            )
        return Link(title=f"{rate / 1e9:g} GB/s", out_rate=rate, in_rate=rate)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from lmsbuild.simulate.link import links

        return [
            CompletionItem(name, help=link.title)
            for name, link in links().items()
            if name.startswith(incomplete)
        ]


class GpuType(_GpuType):
    """A GPU of data/gpus.toml."""

    name = "gpu"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Gpu:
        from lmsbuild.simulate.gpu import gpus

        known = gpus()
        if value not in known:
            self.fail(f"{value!r} is no GPU that is known ({', '.join(known)})", param, ctx)
        return known[str(value)]

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from lmsbuild.simulate.gpu import gpus

        return [
            CompletionItem(name, help=gpu.title)
            for name, gpu in gpus().items()
            if name.startswith(incomplete)
        ]


class FunctionType(click.types.StringParamType):
    """``module:function``, as entry points have it."""

    name = "function"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        text = str(value)
        if not re.fullmatch(r"(?!.*\.py:)\w+(\.\w+)*:\w+(\.\w+)*", text):
            self.fail(f"{text!r} is not MODULE:FUNCTION, such as train:make", param, ctx)
        return text


class TagType(_Completed):
    """A tag of the registry; with or without its "v"."""

    name = "tag"

    def choices(self) -> list[str]:
        from lmsbuild.registry import load_registry

        return [tag.name for tag in load_registry()]


class ArchitectureType(_Completed):
    """An architecture that lmsbuild knows."""

    name = "architecture"

    def choices(self) -> list[str]:
        from lmsbuild.architecture import architectures

        return sorted(architectures())


class PythonType(_Completed):
    """A CPython version that a tag has."""

    name = "python"

    def choices(self) -> list[str]:
        from lmsbuild.registry import load_registry

        return sorted({python for tag in load_registry() for python in tag.pythons}, key=_number)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


TAG = TagType()
ARCHITECTURE = ArchitectureType()
PYTHON = PythonType()
BYTES = BytesType()
LINK = LinkType()
GPU = GpuType()
FUNCTION = FunctionType()
