"""Where lmsbuild keeps what it fetched and built, and how it writes there without half files."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from platformdirs import user_cache_path

from lmsbuild.errors import FileAccessError

_SCRATCH = "scratch-"
_STALE_SECONDS = 24 * 60 * 60  # no build takes that long
_HASH_CHUNK = 4 << 20  # bytes per read while hashing


def default_cache() -> Path:
    """``lmsbuild`` in the user's cache folder: XDG_CACHE_HOME, or ~/.cache.

    Raises FileAccessError if the user has no folder.
    """
    try:
        return user_cache_path("lmsbuild", appauthor=False)
    except RuntimeError as error:
        raise FileAccessError(f"{error}; set XDG_CACHE_HOME to a folder for the cache") from error


def scratch(cache: Path) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder on the cache's own file system, so that results can be renamed.

    What a killed lmsbuild left there is removed when it is a day old.
    """
    cache.mkdir(parents=True, exist_ok=True)
    for folder in stale_scratch(cache):
        shutil.rmtree(folder, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=cache)


def stale_scratch(cache: Path) -> list[Path]:
    """Temporary folders that a killed lmsbuild left, by name."""
    found = []
    for folder in sorted(cache.glob(f"{_SCRATCH}*")):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - folder.lstat().st_mtime > _STALE_SECONDS:
                found.append(folder)
    return found


def sha256_of(path: Path, advance: Callable[[int], None] | None = None) -> str:
    """Hexadecimal SHA-256 of a file; ``advance`` is told the bytes read."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_HASH_CHUNK):
            digest.update(chunk)
            if advance:
                advance(len(chunk))
    return digest.hexdigest()


def sha256_of_files(files: Mapping[str, Path]) -> str:
    """Hexadecimal SHA-256 over names and contents of files, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{sha256_of(files[name])}\n".encode())
    return digest.hexdigest()
