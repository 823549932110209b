"""Links between GPU and host, by name: data/links.toml."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

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
    """

    title: str
    out_rate: float
    in_rate: float

    def compressed(self, share: float) -> Link:
        """The same link for bytes of which this share is left, above 0 and up to 1."""
        left = min(1.0, share / _REACHED)
        return replace(self, out_rate=self.out_rate / left, in_rate=self.in_rate / left)


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
