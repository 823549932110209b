"""What the add-on has for one release of PyTorch: the library, and the edits of its hooks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from packaging.version import Version

from lmsbuild.addon.edits import Edit, derive
from lmsbuild.errors import AddonHookError, AddonTagError
from lmsbuild.registry import Registry, Tag
from lmsbuild.wheel import provenance
from lmsbuild.wheel.builder import Parts
from lmsbuild.wheel.version import VERSION_MEMBER

# The first release whose `import torch` loads the packages that name themselves torch.backends.
LOADS_PACKAGES = Version("2.5")

RELEASE_FILE = "release.json"


@dataclass(frozen=True, kw_only=True)
class Release:
    """One release of PyTorch in the add-on.

    Attributes:
        files: what goes into its own folder, by name.
        modules: the runtime's Python files, which are the same for each release, by path
            ("torch/cuda/lms/__init__.py").
        extends: the packages of PyTorch that the modules are in ("torch.cuda").
    """

    tag: Tag
    files: dict[str, bytes]
    modules: dict[str, bytes]
    extends: frozenset[str]


def suitable(registry: Registry, architecture: str) -> list[Tag]:
    """The tags that the add-on can be made for, oldest first."""
    return [tag for tag in registry if not _problem(tag, architecture)]


def check(tag: Tag, architecture: str) -> None:
    """Raise AddonTagError unless the add-on can be made for a tag."""
    if problem := _problem(tag, architecture):
        raise AddonTagError(f"torch-lms cannot be made for {tag.name}: {problem}")


def _problem(tag: Tag, architecture: str) -> str:
    if "graft" not in tag.strategies:
        return "there, LMS is inside of PyTorch's own libraries; build it from source (docs/v1.md)"
    if Version(tag.version) < LOADS_PACKAGES:
        return f"PyTorch loads no such package before {LOADS_PACKAGES}; take `lmsbuild wheel`"
    if tag.variant:
        return f"it has a runtime of its own ({tag.variant}); take `lmsbuild wheel`"
    if architecture not in tag.architectures:
        return f"it has no official CUDA wheel for {architecture}"
    return ""


def release_of(tag: Tag, parts: Parts, read: Callable[[str], bytes | None]) -> Release:
    """What a release gets. ``read`` gives the content of a file in the official wheel.

    Raises AddonHookError for a hook whose changes cannot be made at import.
    """
    modules: dict[str, bytes] = {}
    edits: list[tuple[str, list[Edit]]] = []
    for path, content in parts.files.items():
        old = read(path)
        if content is None:
            raise AddonHookError(
                f"{path}: the hooks of {tag.name} remove it, which torch-lms cannot"
            )
        if old is None:
            modules[path] = content
        elif path != VERSION_MEMBER:
            edits.append((_module(path), derive(path, old, content)))
    document = {"cuda": tag.cuda, "cxx11_abi": tag.cxx11_abi, "modules": edits}
    return Release(
        tag=tag,
        files={
            **parts.libraries,
            RELEASE_FILE: (json.dumps(document, indent=1, sort_keys=True) + "\n").encode(),
            provenance.FILE_NAME: provenance.dump(parts.provenance),
        },
        modules=modules,
        extends=frozenset(_extended(path, read) for path in modules),
    )


def _module(path: str) -> str:
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _extended(path: str, read: Callable[[str], bytes | None]) -> str:
    """PyTorch's package that a new file is in, or that the file's own package is in."""
    folders = PurePosixPath(path).parents
    found = next(folder for folder in folders if read(f"{folder}/__init__.py") is not None)
    return ".".join(found.parts)
