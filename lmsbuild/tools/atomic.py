"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from lmsbuild.errors import FileAccessError
from lmsbuild.tools.lock import exclusive

SUFFIX = ".unfinished"


@contextmanager
def draft(path: Path) -> Iterator[Path]:
    """A name beside ``path`` to write the file under: it takes its place when the block ends.

    When the block raises, nothing is left and ``path`` is as it was. A process that is killed
    leaves the draft; see remove_drafts.
    """
    unfinished = path.with_name(f".{path.name}{SUFFIX}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


@contextmanager
def copies(targets: Mapping[Path, Path]) -> Iterator[None]:
    """Copy files to names that are free; ``targets`` has them by source.

    When a copy fails or the block raises, none of them stays.

    Raises FileAccessError if a draft is its own source; OSError.
    """
    begun: list[Path] = []
    try:
        for source, target in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            begun.append(target)
            with draft(target) as unfinished:
                try:
                    shutil.copyfile(source, unfinished)
                except shutil.SameFileError as error:
                    raise FileAccessError(f"{source}: copied onto itself") from error
        yield
    except BaseException:
        for target in begun:
            target.unlink(missing_ok=True)
        raise


def remove_drafts(folder: Path) -> None:
    """Remove what a killed process left; whoever calls knows that nobody else writes there."""
    for stale in folder.glob(f".*{SUFFIX}"):
        stale.unlink()


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file so that a reader sees the old content or the new, never half.

    Several processes may write the same file. Its folder has to be there. Of a symbolic link, the
    target is replaced. What is no file, such as /dev/stdout or a pipe, is written to as it is.
    """
    if path.exists() and (path.absolute().is_relative_to("/dev") or not path.is_file()):
        path.write_bytes(data)
        return
    path = path.resolve()
    if not path.parent.exists():  # else the error would name a file that nobody asked for
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    unfinished = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        # mkstemp keeps its file private; this one is as public as any other new file.
        mask = os.umask(0)
        os.umask(mask)
        unfinished.chmod(0o666 & ~mask)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


@contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """A folder to make ``path`` in, on the same file system: what is finished is renamed.

    It is removed at the end.
    """
    path = path.absolute()
    with tempfile.TemporaryDirectory(
        prefix=f".{path.name}.partial-", dir=path.parent, ignore_cleanup_errors=True
    ) as name:
        yield Path(name)


def write_files(folder: Path, files: Mapping[str, bytes | None]) -> None:
    """Write or remove (None) files below ``folder``: all of them, or none.

    Raises BusyError; OSError when one cannot be written: the others are as they were.
    """
    with exclusive(folder / ".lmsbuild.lock", folder):
        scratch = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder))
        try:
            for path, content in files.items():
                for name in ("new", "old"):
                    (scratch / name / path).parent.mkdir(parents=True, exist_ok=True)
                if content is not None:
                    (scratch / "new" / path).write_bytes(content)
            _swap(folder, files, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _swap(folder: Path, files: Mapping[str, bytes | None], scratch: Path) -> None:
    done: list[str] = []
    try:
        for path, content in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            done.append(path)
            if target.exists():
                target.rename(scratch / "old" / path)
            if content is not None:
                (scratch / "new" / path).rename(target)
    except BaseException:
        for path in done:
            old = scratch / "old" / path
            if old.exists():
                old.replace(folder / path)
            elif not (scratch / "new" / path).exists():
                (folder / path).unlink(missing_ok=True)
        raise
    finally:
        # A folder that a removal emptied, or that was made for a file that did not come.
        for path in files:
            with suppress(OSError):
                (folder / path).parent.rmdir()
