"""A port as it is asked for."""

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
        old_base, base: official wheels of the two; None fetches them.
        old_source, given_source: sources of the two; None takes the wheel's Python files.
        work: folder to make, where the hooks are merged.
        resumed: ``work`` is there, and its conflicts are resolved.
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
