"""data/architectures.toml is the one list of architectures; every other table follows it."""

from __future__ import annotations

import ast
import json
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lmsbuild._compat import tomllib

ROOT = Path(__file__).parents[2]
LIST = "lmsbuild/data/architectures.toml"
MANYLINUX = "lmsbuild/data/manylinux.toml"
SOURCE = "lmsbuild/data/source.toml"

Known = Mapping[str, Mapping[str, str]]
# The architectures that a file's text names, by the place in the file.
Read = Callable[[str, Known], Mapping[str, set[str]]]


@dataclass(frozen=True)
class Table:
    """A file that names architectures.

    Attributes:
        complete: it has to have every architecture.
        without: an architecture that it need not have.
    """

    file: str
    read: Read
    complete: bool = True
    without: str = ""


def policies(text: str, _: Known) -> dict[str, set[str]]:
    return {
        policy: {name for name, value in rows.items() if isinstance(value, dict)}
        for policy, rows in tomllib.loads(text).items()
    }


def top_level(text: str, _: Known) -> dict[str, set[str]]:
    return {"": set(tomllib.loads(text))}


def schema_of_tags(text: str, _: Known) -> dict[str, set[str]]:
    row = json.loads(text)["$defs"]["tag"]["properties"]["architectures"]
    return {"": set(row["items"]["enum"])}


def releases(text: str, _: Known) -> dict[str, set[str]]:
    return {row["name"]: set(row["architectures"]) for row in tomllib.loads(text)["tag"]}


def builds_from_source(text: str, _: Known) -> dict[str, set[str]]:
    data = tomllib.loads(text)
    return {
        "last_cuda": set(data["last_cuda"]),
        "estimate": {row["architecture"] for row in data["estimate"]},
    }


def compilers(text: str, known: Known) -> dict[str, set[str]]:
    """The architectures of the cross compilers that a text names."""
    names = {row["compiler_package"]: name for name, row in known.items()}
    found = re.findall(r"g\+\+-[a-z0-9-]+-linux-gnu", text)
    return {"": {names.get(package, package) for package in found}}


HOST = "x86_64"  # which the tests run on, without an emulator
TABLES = (
    # A policy's own rows are those of x86_64.
    Table(MANYLINUX, policies, without="x86_64"),
    Table(SOURCE, builds_from_source, complete=False),
    Table("patches/tags.schema.json", schema_of_tags),
    Table("patches/tags.toml", releases, complete=False),
    Table("ci/sysroots.toml", top_level, without=HOST),
    Table(".ci/run", compilers, without=HOST),
    Table("CONTRIBUTING.md", compilers, without=HOST),
    Table("ci/README.md", compilers, without=HOST),
)


def problems(root: Path) -> Iterator[str]:
    """What is wrong in the tables of a tree: "FILE: …", with the architecture."""
    known = tomllib.loads((root / LIST).read_text("utf-8"))
    for table in TABLES:
        for place, named in table.read((root / table.file).read_text("utf-8"), known).items():
            where = f"{table.file}: {place}: " if place else f"{table.file}: "
            if table.complete:
                yield from (
                    f"{where}lacks {name}" for name in known.keys() - {table.without} - named
                )
            yield from (f"{where}{name} is not in {LIST}" for name in named - known.keys())


def test_every_table_has_every_architecture_and_no_other() -> None:
    assert sorted(problems(ROOT)) == [], "docs/adding-an-architecture.md lists the tables"


def test_the_page_lists_every_table() -> None:
    page = (ROOT / "docs/adding-an-architecture.md").read_text("utf-8")
    assert [table.file for table in TABLES if f"`{table.file}`" not in page] == []


def test_the_example_of_the_page_follows_the_schema() -> None:
    page = (ROOT / "docs/adding-an-architecture.md").read_text("utf-8")
    example = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    assert example is not None
    schema = (ROOT / LIST).with_suffix(".schema.json").read_text("utf-8")
    jsonschema.validate(tomllib.loads(textwrap.dedent(example[1])), json.loads(schema))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (LIST, *(table.file for table in TABLES)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_a_new_architecture_is_missed_in_every_table_that_is_complete(tree: Path) -> None:
    with (tree / LIST).open("a", encoding="utf-8") as file:
        file.write('\n[riscv64]\ncompiler_package = "g++-riscv64-linux-gnu"\n')
    found = set(problems(tree))
    assert {line.split(": ")[0] for line in found} == {t.file for t in TABLES if t.complete}
    assert "ci/sysroots.toml: lacks riscv64" in found
    assert "lmsbuild/data/manylinux.toml: manylinux_2_34: lacks riscv64" in found
    assert all(line.endswith(": lacks riscv64") for line in found)


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        (MANYLINUX, "[manylinux_2_28.ppc64le]", "", "manylinux_2_28: lacks ppc64le"),
        (SOURCE, '= "ppc64le"', '= "ppc64"', "estimate: ppc64 is not in " + LIST),
        ("patches/tags.schema.json", '"aarch64", ', "", "lacks aarch64"),
        ("patches/tags.toml", '["x86_64"]', '["i386"]', "v1.1.0: i386 is not in " + LIST),
        ("ci/sysroots.toml", "[aarch64]", "[arm64]", "lacks aarch64"),
        ("ci/sysroots.toml", "[aarch64]", "[arm64]", "arm64 is not in " + LIST),
        (".ci/run", "g++-powerpc64le-linux-gnu", "", "lacks ppc64le"),
        ("CONTRIBUTING.md", "g++-aarch64-linux-gnu", "g++-sparc64-linux-gnu", "lacks aarch64"),
        ("ci/README.md", "g++-aarch64-linux-gnu", "", "lacks aarch64"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_seen(tree: Path, file: str, old: str, new: str, problem: str) -> None:
    text = (tree / file).read_text("utf-8")
    assert old in text
    (tree / file).write_text(text.replace(old, new), "utf-8")
    assert f"{file}: {problem}" in set(problems(tree))


def test_every_table_was_broken_once() -> None:
    (mark,) = test_a_wrong_table_is_seen.pytestmark  # type: ignore[attr-defined]
    assert {case[0] for case in mark.args[1]} == {table.file for table in TABLES}


# --- no name of an architecture in the programs ---------------------------------------------


def named_in(source: str, names: set[str]) -> set[str]:
    """The names that a module has as strings, other than in docstrings."""
    strings = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return {value for value in strings if isinstance(value, str) and value in names}


def names_of_architectures() -> set[str]:
    rows: dict[str, dict[str, Any]] = tomllib.loads((ROOT / LIST).read_text("utf-8"))
    return {*rows, *(value for row in rows.values() for value in row.values())}


def test_no_program_names_an_architecture() -> None:
    names = names_of_architectures()
    files = [*(ROOT / "lmsbuild").rglob("*.py"), *(ROOT / "ci").glob("*.py")]
    assert len(files) > 100
    found = {
        str(path.relative_to(ROOT)): named_in(path.read_text("utf-8"), names) for path in files
    }
    assert {path: named for path, named in found.items() if named} == {}
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert not names & set(re.findall(r"[\w.+-]+", makefile))


def test_a_name_in_a_program_is_seen() -> None:
    names = names_of_architectures()
    assert named_in('SUBDIRS = {"x86_64": "linux-64"}', names) == {"x86_64", "linux-64"}
    assert named_in('"""Such as x86_64."""\nX = "an aarch64 wheel"', names) == set()
