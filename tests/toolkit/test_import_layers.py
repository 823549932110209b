"""The packages of the toolkit: each imports from those below it alone."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import lmsbuild
from toolkit.helpers.import_layers import imports_of, layers, wrong

PACKAGE = Path(lmsbuild.__file__).parent
ROOT = Path(__file__).parents[2]
ORDER = list(layers())


def test_no_module_imports_from_above() -> None:
    hint = "import from the packages below only: import_layers.toml has their order"
    assert wrong(imports_of(PACKAGE), ORDER) == [], hint


def test_every_package_is_looked_at() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages == set(ORDER[1:])
    imports = imports_of(PACKAGE)
    assert len(imports) > 90
    # One that is imported within a function, and one by way of its package.
    assert "lmsbuild.conda.graft" in imports["lmsbuild.cli.commands.wheel"]
    assert "lmsbuild.tools.git" in imports["lmsbuild.checkout.apply"]


def test_every_package_has_its_folder_of_tests() -> None:
    folders = {path.parent.name for path in Path(__file__).parent.glob("*/__init__.py")}
    assert folders == {*ORDER[1:], "ci", "helpers"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(
        shutil.copytree(PACKAGE, tmp_path / "lmsbuild", ignore=shutil.ignore_patterns("patches"))
    )


@pytest.mark.parametrize(
    ("module", "line", "problem"),
    [
        (
            "tools/lock.py",
            "from lmsbuild.wheel import record",
            "lmsbuild.tools.lock imports lmsbuild.wheel.record from above",
        ),
        (
            "errors.py",
            "def later() -> None:\n    import lmsbuild.cli.main",
            "lmsbuild.errors imports lmsbuild.cli.main from above",
        ),
        (
            "wheel/base.py",
            "from ..conda.channel import Channel",
            "lmsbuild.wheel.base imports lmsbuild.conda.channel from above",
        ),
        (
            "registry.py",
            "from lmsbuild import tools",
            "lmsbuild.registry imports lmsbuild.tools.__init__ from above",
        ),
    ],
)
def test_a_step_upwards_is_seen(copy: Path, module: str, line: str, problem: str) -> None:
    with (copy / module).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    assert problem in wrong(imports_of(copy), ORDER)


def test_a_circle_between_packages_is_seen(copy: Path) -> None:
    with (copy / "tools/lock.py").open("a", encoding="utf-8") as file:
        file.write("\nfrom lmsbuild.wheel import record\n")
    assert "circle: native tools wheel native" in wrong(imports_of(copy), ORDER)


def test_a_circle_within_a_package_is_seen(copy: Path) -> None:
    with (copy / "tools/lock.py").open("a", encoding="utf-8") as file:
        file.write("\nfrom . import atomic\n")
    circle = "circle: lmsbuild.tools.atomic lmsbuild.tools.lock lmsbuild.tools.atomic"
    assert wrong(imports_of(copy), ORDER) == [circle]


def test_a_package_without_a_place_is_seen(copy: Path) -> None:
    (copy / "attic").mkdir()
    (copy / "attic/old.py").write_text("")
    assert wrong(imports_of(copy), ORDER) == ["attic has no place in the order"]


def test_the_guide_prints_every_package_and_no_other() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    tree = re.search(r"^lmsbuild/ +(.*)\n((?: +\w+/ .*\n)+)", guide, re.MULTILINE)
    assert tree is not None, "CONTRIBUTING.md prints no tree of lmsbuild/"
    rows = re.findall(r"^ +(\w+)/ +(.*)$", tree[2], re.MULTILINE)
    assert [("lmsbuild", tree[1]), *rows] == list(layers().items())


def test_the_guide_prints_every_folder_of_the_project() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    printed = set(re.findall(r"^(\w+)/ +", guide, re.MULTILINE))
    if not (ROOT / ".git").exists():
        pytest.skip("only git knows which folders are the project's")
    listing = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True
    ).stdout
    assert printed == set(re.findall(r"^(\w+)/", listing, re.MULTILINE))
