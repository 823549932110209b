"""What is asked for: the add-on of some releases for an architecture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lmsbuild.registry import Tag


@dataclass(frozen=True, kw_only=True)
class AddonRequest:
    """The wheel to build.

    Attributes:
        tags: the releases of PyTorch that it has a library for.
        architecture: such as "x86_64".
        out: folder of the new wheel.
        patches: the patches folder.
        cache: folder of what is fetched and built.
    """

    tags: tuple[Tag, ...]
    architecture: str
    out: Path
    patches: Path
    cache: Path
