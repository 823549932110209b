"""The runtime: files that are new to PyTorch, one copy for every tag, laid out as in its tree.

Old releases of PyTorch need other files. They have a variant: a second tree, whose files replace
or extend those of the first one.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from lmsbuild.errors import SeriesError
from lmsbuild.patchset.diff import DiffError, creation_diff, parse_diff
from lmsbuild.patchset.mail import UTF8, Mail

# Fixed, so that the same patches always become the same commits.
AUTHOR = "lmsbuild contributors <lmsbuild@lmsbuild.invalid>"
DATE = "Thu, 1 Jan 2026 00:00:00 +0000"
_SUBJECT = "Large Model Support: the runtime"
_BODY = """\
The library that swaps tensors between GPU and host memory, and its Python
face. Every file is new to PyTorch; the patches that follow hook it in."""
_PLAIN_NAME = re.compile(r"^[A-Za-z0-9_+./-]+$")


def runtime_files(patches: Path, variant: str | None = None) -> dict[str, Path]:
    """Every file of the runtime: its path in PyTorch's tree (with "/"), and its location.

    Hidden files and Python's caches are not included. ``variant`` names the directory whose files
    replace others with the same path.

    Raises:
        SeriesError: there is no runtime, or a name in it needs quoting.
    """
    files = _files(patches / "runtime")
    if variant is not None:
        files = dict(sorted({**files, **_files(patches / variant)}.items()))
    return files


def lay_out(patches: Path, variant: str | None, folder: Path) -> Path:
    """The root of the runtime's tree. With a variant, it is a merged copy in ``folder``.

    Raises SeriesError.
    """
    if variant is None:
        return patches / "runtime"
    for name, path in runtime_files(patches, variant).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)
    return folder


def _files(root: Path) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        skipped = any(part.startswith(".") or part == "__pycache__" for part in relative.parts)
        if skipped or not path.is_file():
            continue
        name = relative.as_posix()
        if not _PLAIN_NAME.match(name):
            raise SeriesError(f"{path}: rename it to letters, digits and ._+- only")
        files[name] = path
    if not files:
        raise SeriesError(f"{root}: holds no runtime; reinstall lmsbuild")
    return files


def runtime_mail(patches: Path, variant: str | None = None) -> Mail:
    """The runtime as one patch mail.

    Raises:
        SeriesError: there is no runtime, or a file of it is not plain text.
    """
    return runtime_mail_of(
        {name: path.read_bytes() for name, path in runtime_files(patches, variant).items()},
        patches / "runtime",
    )


def runtime_mail_of(files: Mapping[str, bytes], where: Path) -> Mail:
    """A runtime that consists of ``files``, by path in PyTorch's tree, as one patch mail.

    Raises:
        SeriesError: a file is not plain text; the message calls it a file of ``where``.
    """
    diffs = []
    for name, content in sorted(files.items()):
        try:
            diffs.append(creation_diff(name, content))
        except DiffError as error:
            raise SeriesError(f"{where / name}: {error}") from error
    diff = "".join(diffs)
    return Mail(
        name="runtime",
        author=AUTHOR,
        date=DATE,
        subject=_SUBJECT,
        mime=UTF8,
        body=_BODY,
        diff=diff,
        files=parse_diff(diff),
    )
