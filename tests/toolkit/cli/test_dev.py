"""lmsbuild dev: in a checkout, or on patches that are named; never on those of an installation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import lmsbuild
from lmsbuild import resources
from lmsbuild.cli.main import main
from lmsbuild.errors import TargetExistsError

PACKAGE = Path(lmsbuild.__file__).parent
ROOT = PACKAGE.parent
COMMANDS = (["port", "v2.6.0", "v9.9.0"], ["refresh", "checkout"], ["matrix"])


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site-packages folder with lmsbuild installed as its wheel does."""
    site = tmp_path / "site-packages"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, site / "lmsbuild", ignore=ignored)
    shutil.copytree(ROOT / "patches", site / "lmsbuild/patches", ignore=ignored)
    return site


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lmsbuild", "dev", *arguments],
        cwd=site.parent,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_installed_copys_patches_are_never_changed(site: Path) -> None:
    patches = site / "lmsbuild/patches"
    before = content(patches)
    (site.parent / "link").symlink_to(patches)
    for command in COMMANDS:
        done = run(site, *command)
        assert done.returncode == 2
        assert "from a checkout of lmsbuild, or name the patches with --patches" in done.stderr
        for given in (str(patches), "link"):
            done = run(site, *command, "--patches", given)
            assert done.returncode == 2
            assert "belongs to an installed lmsbuild" in done.stderr
    assert content(patches) == before


def test_an_installed_copy_works_on_patches_that_are_named(site: Path, tmp_path: Path) -> None:
    shutil.copytree(site / "lmsbuild/patches", tmp_path / "mine")
    # That it got as far as to the registry of these patches.
    done = run(site, "port", "v2.6.0", "v2.6.0", "--patches", "mine")
    assert done.returncode == TargetExistsError.exit_code
    assert "v2.6.0 is already in the registry" in done.stderr
    (tmp_path / "mine/tags.toml").unlink()
    assert "has no tags.toml" in run(site, "matrix", "--patches", "mine").stderr
    assert run(site, "matrix", "--patches", "gone").returncode == 2


def test_a_checkout_needs_no_option() -> None:
    result = CliRunner().invoke(main, ["dev", "port", "v2.6.0", "v2.6.0"])
    assert result.exit_code == TargetExistsError.exit_code


def test_help_lists_them_below_dev_alone() -> None:
    top, dev = (CliRunner().invoke(main, [*name, "--help"]).stdout for name in ([], ["dev"]))
    for name, *_ in COMMANDS:
        assert f"\n  {name} " in dev
        assert f"\n  {name} " not in top


@pytest.mark.parametrize("name", ["port", "refresh"])
def test_the_old_name_says_where_it_is_now(name: str, tmp_path: Path) -> None:
    arguments = {"port": ["v2.6.0", "v2.6.0"], "refresh": [str(tmp_path)]}[name]
    old, new = (CliRunner().invoke(main, [*at, name, *arguments]) for at in ([], ["dev"]))
    warning, *rest = old.stderr.splitlines()
    assert warning.startswith("warning: ")
    assert f"it is `lmsbuild dev {name}` now" in warning
    assert rest == new.stderr.splitlines()
    assert old.exit_code == new.exit_code > 2


def test_matrix_runs_the_checkouts_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "lmsbuild")
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches/tags.toml").touch()
    missing = CliRunner().invoke(main, ["dev", "matrix"])
    assert missing.exit_code == 2
    assert "is no checkout of lmsbuild" in missing.stderr
    for name in ("checkout/test_round_trip.py", "port/test_wheel_facts.py"):
        path = tmp_path / "tests/toolkit" / name
        path.parent.mkdir(parents=True)
        path.write_text(
            "import os\ndef test_it():\n    assert os.environ['LMS_EVERY_TAG'] == '1'\n"
        )
    program = tmp_path / "ci/torch_tests.py"
    program.parent.mkdir()
    program.write_text("import sys, pathlib\npathlib.Path(sys.argv[2]).write_text('done')\n")
    result = CliRunner().invoke(main, ["dev", "matrix"])
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{tmp_path}/build/matrix.md\n"
    assert (tmp_path / "build/matrix.md").read_text() == "done"
    program.write_text("raise SystemExit(3)\n")
    assert CliRunner().invoke(main, ["dev", "matrix"]).exit_code == 1
