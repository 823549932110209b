"""The parameters of a port."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lmsbuild.registry import Tag


@dataclass(frozen=True, kw_only=True)
class PortRequest:
    """What to port.

    Attributes:
        old: the tag to start from.
        name: the new tag.
        python: CPython version of the wheels ("3.11").
        architecture: of the wheels ("x86_64").
        old_base, base: official wheels of the old and the new release. If None, they are
            downloaded.
        old_source, given_source: sources of the two releases. If None, the Python files of the
            wheel are used.
        work: the new folder in which the hooks are merged.
        resumed: whether ``work`` exists, and its conflicts are resolved.
    """

    old: Tag
    name: str
    python: str
    architecture: str
    old_base: Path | None
    base: Path | None
    old_source: str | None
    given_source: str | None
    work: Path
    resumed: bool
    patches: Path
    cache: Path
