"""What lies in lmsbuild's cache, how large and how old it is, and how it is removed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lmsbuild.tools import lock
from lmsbuild.tools.cache import scratch, stale_scratch

# Folders of the cache, and the entries in each. Anything else in the cache is not lmsbuild's, and
# stays. The programs in ci/ and the simulated device keep the last three.
_FOLDERS = {
    "wheels": "wheels/*",
    "packages": "packages/*",
    "libraries": "libraries/*",
    "logs": "logs/*",
    "sim": "sim/*",
    "sysroots": "sysroots/*",
    "sources": "debian-*",
}
_LOCK_FILE = ".lock"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One thing in the cache.

    Attributes:
        kind: the folder that it lies in, "sources" for Debian's source packages, or "scratch" for
            what a killed lmsbuild left.
        paths: the file or folder itself, then the notes and the lock file that belong to it.
        size: bytes.
        modified: when it was put there, in seconds since 1970.
    """

    kind: str
    paths: tuple[Path, ...]
    size: int
    modified: float

    @property
    def name(self) -> str:
        return self.paths[0].name

    def days(self, now: float | None = None) -> float:
        """Its age."""
        return max(0.0, (time.time() if now is None else now) - self.modified) / 86400


def entries(cache: Path) -> list[Entry]:
    """What lies in a cache, by kind and name. Links are not followed."""
    found = []
    for kind, pattern in _FOLDERS.items():
        paths = sorted(path for path in cache.glob(pattern) if not path.parent.is_symlink())
        found += [_entry(kind, group) for group in _groups(paths)]
    return [*found, *(_entry("scratch", (path,)) for path in stale_scratch(cache))]


@contextmanager
def in_use(cache: Path) -> Iterator[Path]:
    """Keeps a cache from being cleaned; waits while it is. Gives the cache."""
    cache.mkdir(parents=True, exist_ok=True)
    with lock.shared(cache / _LOCK_FILE):
        yield cache


def clean(cache: Path, *, older_than: float | None = None) -> list[Entry]:
    """Remove all that lies in a cache, or what is older than some days. Returns what was removed.

    Raises:
        BusyError: a build uses the cache.
    """
    if not cache.is_dir():
        return []
    with lock.exclusive(cache / _LOCK_FILE, cache):
        chosen = [
            entry for entry in entries(cache) if older_than is None or entry.days() > older_than
        ]
        for entry in chosen:
            # Notes first: what has lost its note is fetched anew.
            for path in reversed(entry.paths):
                if path.is_dir() and not path.is_symlink():
                    _remove_folder(path, cache)
                else:
                    path.unlink(missing_ok=True)
    return chosen


def _remove_folder(path: Path, cache: Path) -> None:
    """Whole, as far as others can see: half of an unpacked package would be taken for all of it."""
    # An old scratch folder is removed by making a new one.
    with scratch(cache) as grave, suppress(FileNotFoundError):
        os.rename(path, Path(grave) / "removed")


def _groups(paths: Sequence[Path]) -> Iterator[tuple[Path, ...]]:
    """Each file or folder, with the notes (JSON) that name it and its lock file."""
    belonging: dict[str, list[Path]] = {}
    for path in paths:
        if path.suffix in (".json", ".lock"):
            owner = path.stem if path.suffix == ".lock" else _named_by(path)
            belonging.setdefault(owner, []).append(path)
    for path in paths:
        if path.suffix not in (".json", ".lock"):
            yield (path, *belonging.pop(path.name, []))
    for orphans in belonging.values():
        yield from ((path,) for path in orphans)


def _named_by(note: Path) -> str:
    try:
        return str(json.loads(note.read_text(encoding="utf-8"))["file"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _entry(kind: str, paths: tuple[Path, ...]) -> Entry:
    return Entry(
        kind=kind,
        paths=paths,
        size=sum(map(_size, paths)),
        modified=paths[0].lstat().st_mtime,
    )


def _size(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(
        os.lstat(os.path.join(folder, name)).st_size
        for folder, _, names in os.walk(path)
        for name in names
    )
