"""Wheels of torch-lms for any releases and architecture, without compiling the runtime."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from lmsbuild.addon.metadata import DIST_INFO, RELEASES, dist_info, wheel_name
from toolkit.helpers.fake_conda import for_machine
from toolkit.helpers.fake_torch import MACHINE, FakeTorch, Wheel, shared_library

# CUDA version and C++ ABI of each release.
RELEASED = {
    "8.8.0": ("12.4", 0),
    "8.10.0": ("12.8", 1),
    "8.9.0": ("12.8", 1),
    "9.1.0": ("13.0", 1),
}


def addon_wheel(
    fake: FakeTorch,
    folder: Path,
    *,
    architecture: str = MACHINE,
    released: Mapping[str, tuple[str, int]] = RELEASED,
    changes: Mapping[str, bytes] | None = None,
) -> Path:
    """A wheel with a library for each release; ``changes`` are contents of members by path."""
    folder.mkdir(parents=True, exist_ok=True)
    library = shared_library(
        folder / "build" / "libtorch_lms.so", "#include <new>\nint* f() { return new int; }"
    )
    platform = f"manylinux_2_28_{architecture}"
    tag = dataclasses.replace(fake.tag, pythons=("3.10", "3.14"))
    tags = [dataclasses.replace(tag, name=f"v{version}") for version in released] or [tag]
    members = {"torch_lms/__init__.py": b"def autoload(): ...\n", **dist_info(tags, platform)}
    for version, (cuda, abi) in released.items():
        document = {"cuda": cuda, "cxx11_abi": abi, "modules": []}
        members[f"{RELEASES}/{version}/release.json"] = json.dumps(document).encode()
        members[f"{RELEASES}/{version}/libtorch_lms.so"] = for_machine(library, architecture)
    return Wheel({**members, **(changes or {})}, DIST_INFO).write(folder / wheel_name(platform))
