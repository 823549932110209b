"""What a grafted wheel was made from, recorded in its dist-info."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import lmsbuild
from lmsbuild.tools.git_variables import SURROUNDINGS

FILE_NAME = "lms.json"
_FORMAT = 1  # of the JSON document; increased when old readers would misunderstand it


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Everything a grafted wheel was made from. All hashes are hexadecimal SHA-256.

    Attributes:
        tag: the registry's tag.
        base: file name of the official wheel.
        base_sha256: hash of that file.
        base_index_sha256: the hash that the package index lists, None if it lists none.
        base_binaries: hashes of the base's shared libraries as its RECORD writes them.
        runtime_sha256, hooks_sha256: hashes of the patches.
        hooks: names of the hooks, in order.
        skipped: files of the hooks that a wheel does not contain.
        compiler: first line of the compiler's --version.
        flags: compiler flags.
        header_packages: pinned requirement to hash of its wheel.
        manylinux: policy that the library was linked for.
        pythons: CPython versions that the wheel is for.
        lmsbuild, commit: the toolkit's version and git commit ("unknown" outside git).
    """

    tag: str
    base: str
    base_sha256: str
    base_index_sha256: str | None
    base_binaries: Mapping[str, str]
    runtime_sha256: str
    hooks_sha256: str
    hooks: tuple[str, ...]
    skipped: tuple[str, ...]
    compiler: str
    flags: tuple[str, ...]
    header_packages: Mapping[str, str]
    manylinux: str
    pythons: tuple[str, ...]
    lmsbuild: str
    commit: str


class ProvenanceError(ValueError):
    """The document is not a provenance that this version can read."""


def dump(provenance: Provenance) -> bytes:
    """The JSON document; equal provenances produce equal bytes."""
    document = {"format": _FORMAT, **asdict(provenance)}
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def load(data: bytes) -> Provenance:
    """Read what dump wrote. Raises ProvenanceError."""
    try:
        document = json.loads(data)
        if document.pop("format") != _FORMAT:
            raise ProvenanceError(f"{FILE_NAME} is of a format that this lmsbuild does not know")
        lists = {key: tuple(value) for key, value in document.items() if isinstance(value, list)}
        return Provenance(**{**document, **lists})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ProvenanceError(f"{FILE_NAME} cannot be read: {error}") from error


def toolkit_commit() -> str:
    """Commit of the checkout that lmsbuild runs from, "-dirty" when it has changes.

    "unknown" when it is installed, or git is not there.
    """
    root = Path(lmsbuild.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return "unknown"
    command = [
        "git",
        "-C",
        str(root),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    own = {name: value for name, value in os.environ.items() if name not in SURROUNDINGS}
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True, env=own)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return result.stdout.strip()
