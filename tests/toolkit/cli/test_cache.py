"""lmsbuild cache: dir, list, clean."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lmsbuild.cli.main import main
from lmsbuild.errors import BusyError
from lmsbuild.tools.cache_content import clean, in_use

DAY = 86400


def age(path: Path, days: float) -> None:
    os.utime(path, (time.time() - days * DAY,) * 2, follow_symlinks=False)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one thing of each kind; the library is ten days old."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = tmp_path / "lmsbuild"
    for folder in (
        *("wheels", "packages/headers", "libraries/1a2b", "logs"),
        *("sim/3c4d", "sysroots/aarch64-5e6f/usr", "debian-trixie/apt"),
    ):
        (cache / folder).mkdir(parents=True)
    (cache / "wheels/torch.whl").write_bytes(bytes(2_000_000))
    note = {"file": "torch.whl", "sha256": "", "index_sha256": None}
    (cache / "wheels/torch-1-cp312.json").write_text(json.dumps(note))
    (cache / "packages/headers/cuda.h").write_bytes(bytes(1_000_000))
    (cache / "libraries/1a2b/libtorch_lms.so").write_bytes(b"x")
    (cache / "logs/compile.log").write_text("")
    (cache / "sim/3c4d/libcudart.so.13").write_bytes(b"x")
    (cache / "sim/3c4d.lock").write_text("")
    (cache / "sysroots/aarch64-5e6f/usr/python").write_bytes(b"x")
    (cache / "debian-trixie/pytorch.tar.xz").write_bytes(bytes(3_000_000))
    age(cache / "libraries/1a2b", 10)
    return cache


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["cache", *arguments])


def test_dir(cache: Path) -> None:
    assert run("dir").stdout == f"{cache}\n"


def test_list(cache: Path) -> None:
    result = run("list")
    assert result.exit_code == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines()]
    assert [row for row in rows if row] == [
        ["wheels", "torch.whl", "2.0", "0"],
        ["packages", "headers", "1.0", "0"],
        ["libraries", "1a2b", "0.0", "10"],
        ["logs", "compile.log", "0.0", "0"],
        ["sim", "3c4d", "0.0", "0"],
        ["sysroots", "aarch64-5e6f", "0.0", "0"],
        ["sources", "debian-trixie", "3.0", "0"],
    ]
    assert "7 entries, 6.0 MB" in result.stderr


def test_without_a_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "elsewhere"))
    assert "0 entries" in run("list").stderr
    assert run("clean").stdout == "removed: 0 entries, 0.0 MB\n"
    assert not (cache / "elsewhere").exists()


def test_clean(cache: Path) -> None:
    assert run("clean").stdout == "removed: 7 entries, 6.0 MB\n"
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_clean_what_is_old(cache: Path) -> None:
    assert run("clean", "--older-than", "9").stdout == "removed: 1 entry, 0.0 MB\n"
    assert not (cache / "libraries/1a2b").exists()
    assert (cache / "wheels/torch.whl").exists()
    assert run("clean", "--older-than", "-1").exit_code == 2


def test_clean_leaves_what_is_not_lmsbuilds(cache: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    (cache / "packages/link").symlink_to(precious)
    (cache / "libraries/1a2b/link").symlink_to(precious)
    (cache / "mine.txt").write_text("mine")
    (cache / "logs").rename(tmp_path / "logs")
    (cache / "logs").symlink_to(tmp_path / "logs")
    assert run("clean").exit_code == 0
    assert (precious / "file").read_text() == "mine"
    assert (cache / "mine.txt").exists()
    assert (tmp_path / "logs/compile.log").exists()
    assert not (cache / "packages/link").is_symlink()


def test_clean_leaves_the_scratch_of_a_running_build(cache: Path) -> None:
    for name, days in (("scratch-new", 0.5), ("scratch-old", 1.5)):
        (cache / name).mkdir()
        age(cache / name, days)
    assert "8 entries" in run("clean").stdout
    assert [path.name for path in cache.glob("scratch-*")] == ["scratch-new"]


def test_clean_while_a_build_runs(cache: Path) -> None:
    with in_use(cache), in_use(cache):
        result = run("clean")
    assert result.exit_code == BusyError.exit_code
    assert (cache / "wheels/torch.whl").exists()
    assert run("clean").exit_code == 0


def test_what_is_removed_is_gone_at_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unpacked package counts as whole if its folder is there."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    monkeypatch.setattr(shutil, "_rmtree_safe_fd", interrupted, raising=False)
    (folder,) = [path for path in (cache / "packages").iterdir() if path.is_dir()]
    with contextlib.suppress(KeyboardInterrupt):
        clean(cache)
    assert not folder.exists()
