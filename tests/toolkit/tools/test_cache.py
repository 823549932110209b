"""The cache folder."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from lmsbuild.errors import FileAccessError
from lmsbuild.tools import cache


def test_the_cache_follows_the_xdg_specification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.default_cache() == tmp_path / "lmsbuild"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache.default_cache() == tmp_path / "home/.cache/lmsbuild"


def test_a_user_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Path:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr(cache, "user_cache_path", fail)
    with pytest.raises(FileAccessError, match="set XDG_CACHE_HOME"):
        cache.default_cache()


def test_only_old_leftovers_are_removed(tmp_path: Path) -> None:
    old, young, other = (tmp_path / name for name in ("scratch-old", "scratch-young", "wheels"))
    for folder in (old, young, other):
        folder.mkdir()
        (folder / "file").write_bytes(b"x")
    day_ago = time.time() - 25 * 60 * 60
    for folder in (old, other):
        os.utime(folder, (day_ago, day_ago))
    with cache.scratch(tmp_path) as name:
        assert Path(name).parent == tmp_path
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scratch-young", "wheels"]


def test_hashes(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1")
    two.write_bytes(b"2")
    read: list[int] = []
    assert cache.sha256_of(one, read.append) == hashlib.sha256(b"1").hexdigest()
    assert read == [1]
    both = cache.sha256_of_files({"a": one, "b": two})
    assert both == cache.sha256_of_files({"b": two, "a": one})
    # Names count, and so does which content has which name.
    assert both != cache.sha256_of_files({"a": two, "b": one})
    assert both != cache.sha256_of_files({"a": one, "c": two})
