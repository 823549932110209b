"""Add a tag's entry to tags.toml, sorted by version."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import cast

import tomlkit
from packaging.version import Version
from tomlkit.items import AoT, Table

from lmsbuild.errors import RegistryError
from lmsbuild.registry import Tag, load_registry, validate_registry

_SCHEMA = "tags.schema.json"


def entry_of(tag: Tag) -> Table:
    """The entry as a TOML table."""
    values = {
        "name": tag.name,
        "git_commit": tag.git_commit,
        "hooks": tag.hooks,
        "variant": tag.variant,
        "pythons": list(tag.pythons),
        "architectures": list(tag.architectures),
        "strategies": list(tag.strategies),
        "cuda": tag.cuda,
        "header_packages": list(tag.header_packages),
        "cxx_standard": tag.cxx_standard,
        "cxx11_abi": tag.cxx11_abi,
        "abi_version": tag.abi_version,
        "manylinux": tag.manylinux,
    }
    entry = tomlkit.table()
    for key, value in values.items():
        if value is not None:
            entry.add(key, value)
    proof = ", ".join(
        f"{key} = {tomlkit.item(getattr(tag.verified, key)).as_string()}"
        for key in ("hooks_wheel", "hooks_source", "simulated", "gpu")
    )
    # Written as text, because tomlkit's inline tables have no spaces inside the braces.
    entry.add("verified", tomlkit.value(f"{{ {proof} }}"))
    entry.add(tomlkit.nl())
    return entry


def with_entry(directory: Path, tag: Tag) -> bytes:
    """The content of the folder's tags.toml, with the tag's entry before the next newer one.

    Raises:
        RegistryError: the result does not match the schema, or the tag already has an entry.
    """
    text = (directory / "tags.toml").read_text("utf-8")
    document = tomlkit.parse(text.rstrip("\n") + "\n\n")
    entries = cast("AoT", document["tag"])
    newer = (
        place
        for place, entry in enumerate(entries)
        if Version(entry["name"].removeprefix("v")) > Version(tag.version)
    )
    entries.insert(next(newer, len(entries)), entry_of(tag))
    content = (tomlkit.dumps(document).rstrip("\n") + "\n").encode("utf-8")
    with tempfile.TemporaryDirectory(prefix="lmsbuild-") as folder:
        trial = Path(folder)
        (trial / "tags.toml").write_bytes(content)
        (trial / _SCHEMA).write_bytes((directory / _SCHEMA).read_bytes())
        validate_registry(trial)
        if load_registry(trial).get(tag.name) != tag:
            raise RegistryError(f"{tag.name} cannot be added to {directory / 'tags.toml'}")
    return content
