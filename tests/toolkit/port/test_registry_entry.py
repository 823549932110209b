"""A new entry in the registry of tags."""

from __future__ import annotations

import shutil
from dataclasses import replace
from difflib import ndiff
from pathlib import Path

import pytest

from lmsbuild.errors import RegistryError
from lmsbuild.port.registry_entry import with_entry
from lmsbuild.registry import load_registry
from lmsbuild.resources import patches_dir

FORMER = "v2.6.0"


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    """A folder with the project's registry, and nothing else."""
    for name in ("tags.toml", "tags.schema.json"):
        shutil.copyfile(patches_dir() / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("name", ["v0.9.0", "v2.6.9", "v99.0.0"])
def test_an_entry_is_added_and_nothing_else_changes(patches: Path, name: str) -> None:
    before = (patches / "tags.toml").read_text("utf-8")
    tag = replace(load_registry(patches).get(FORMER), name=name)
    after = with_entry(patches, tag).decode("utf-8")
    lines = list(ndiff(before.splitlines(), after.splitlines()))
    assert not [line for line in lines if line.startswith("-")]
    # The entry, and one empty line: it is set off from its neighbours as the others are.
    added = [line.removeprefix("+ ") for line in lines if line.startswith("+")]
    assert sorted(added) == sorted(["", *_entry(after, name)])
    assert after.endswith("}\n")
    assert "\n\n\n" not in after


def test_any_way_to_write_a_name_is_read(patches: Path) -> None:
    registry = patches / "tags.toml"
    registry.write_text(registry.read_text().replace(f'name = "{FORMER}"', f"name = '{FORMER}'"))
    tag = replace(load_registry(patches).get(FORMER), name="v2.5.9")
    text = with_entry(patches, tag).decode("utf-8")
    assert text.index('name = "v2.5.9"') < text.index(f"name = '{FORMER}'")


def test_a_tag_that_is_there_is_refused(patches: Path) -> None:
    with pytest.raises(RegistryError):
        with_entry(patches, load_registry(patches).get(FORMER))


def _entry(text: str, name: str) -> list[str]:
    (found,) = [entry for entry in text.split("\n\n") if f'\nname = "{name}"\n' in entry]
    return found.strip().splitlines()
