"""A tag's entry in tags.toml, written where it belongs by age."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from packaging.version import Version

from lmsbuild.errors import RegistryError
from lmsbuild.registry import Tag, load_registry, validate_registry

_ENTRY = re.compile(r"^\[\[tag\]\]\n(?:(?!\[).*\n)*?name = \"v?([^\"]+)\"", re.MULTILINE)
_SCHEMA = "tags.schema.json"


def entry_text(tag: Tag) -> str:
    """The entry as TOML."""
    verified = tag.verified
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
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None]
    proof = ", ".join(
        f"{key} = {json.dumps(getattr(verified, key))}"
        for key in ("hooks_wheel", "hooks_source", "simulated", "gpu")
    )
    return "\n".join(["[[tag]]", *lines, f"verified = {{ {proof} }}", ""])


def with_entry(directory: Path, tag: Tag) -> bytes:
    """Content of the directory's tags.toml with the tag's entry, before the next newer one.

    Raises:
        RegistryError: the result would break the schema, or the tag is there already.
    """
    text = (directory / "tags.toml").read_text("utf-8")
    place = len(text)
    for found in _ENTRY.finditer(text):
        if Version(found[1]) > Version(tag.version):
            place = found.start()
            break
    before = text[:place].rstrip("\n") + "\n\n"
    after = f"\n{text[place:]}" if text[place:] else ""
    content = (before + entry_text(tag) + after).encode("utf-8")
    with tempfile.TemporaryDirectory(prefix="lmsbuild-") as folder:
        trial = Path(folder)
        (trial / "tags.toml").write_bytes(content)
        (trial / _SCHEMA).write_bytes((directory / _SCHEMA).read_bytes())
        validate_registry(trial)
        if load_registry(trial).get(tag.name) != tag:
            raise RegistryError(f"{tag.name} cannot be entered in {directory / 'tags.toml'}")
    return content
