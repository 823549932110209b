"""Hashes of files, remembered until the files change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lmsbuild.errors import ChangedPackageError
from lmsbuild.tools.cache import sha256_of

Signature = tuple[int, int, int, int]  # of a file: inode, bytes, and two times of change


class Hashes:
    """The SHA-256 of files. It is calculated again only for files that have changed, which their
    inode, size and times tell. A program can set the modification time, but not the other one."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Signature, str]] = {}

    def sha256(self, path: Path, advance: Callable[[int], None] | None = None) -> str:
        """Hexadecimal; ``advance`` is told the bytes read, if any are. Raises OSError."""
        signature = signature_of(path)
        known = self._known.get(path)
        if known is None or known[0] != signature:
            known = signature, sha256_of(path, advance)
            # If it changed while it was read, the hash is of no version of it.
            if signature_of(path) == signature:
                self._known[path] = known
        return known[1]


def signature_of(path: Path) -> Signature:
    """What changes when a file is written to or replaced. Raises OSError."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def once(targets: Mapping[Path, Path]) -> dict[Path, Path]:
    """Of several sources with the same target, the first. Raises ChangedPackageError if they
    differ."""
    sources: dict[Path, Path] = {}
    for source, target in targets.items():
        first = sources.setdefault(target, source)
        if first != source and sha256_of(first) != sha256_of(source):
            raise ChangedPackageError(
                f"{first} and {source} have the same name and other content; name one of them"
            )
    return {source: target for target, source in sources.items()}
