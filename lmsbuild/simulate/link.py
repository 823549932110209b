"""Links between GPU and host, by name: data/links.toml."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from lmsbuild._compat import tomllib
from lmsbuild.errors import RegistryError
from lmsbuild.resources import data_file

_REACHED = 0.9
"""What the kernels that compress reach of the link's rate, on an H200: kLinkShare in
move/packing.cpp, from docs/results/2026-11-23-codec.md."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link between GPU and host.

    Attributes:
        title: what it is; for one without a name, its rate.
        out_rate: bytes per second to the host.
        in_rate: bytes per second to the GPU.
        compressed: the share of the bytes that compression leaves, above 0 and up to 1. Planned
            transfers are compressed, and those on demand are not.
    """

    title: str
    out_rate: float
    in_rate: float
    compressed: float = 1.0

    @property
    def planned_speedup(self) -> float:
        """How many times as fast planned transfers are."""
        return 1 / min(1.0, self.compressed / _REACHED)


@functools.cache
def links() -> dict[str, Link]:
    """All of them by name. Raises RegistryError when the data is malformed."""
    path = data_file("links.toml")
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8"))
        return {
            name: Link(title=row["title"], out_rate=row["out"] * 1e9, in_rate=row["in"] * 1e9)
            for name, row in rows.items()
        }
    except (KeyError, TypeError, ValueError) as error:
        raise RegistryError(f"{path}: malformed ({error!r}); reinstall lmsbuild") from error
