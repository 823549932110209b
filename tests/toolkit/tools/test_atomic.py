"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from lmsbuild.tools import atomic


def no_rename(*_: object) -> None:
    raise OSError("no")


def test_a_draft_takes_the_place_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "wheel"
    path.write_bytes(b"old")
    with atomic.draft(path) as unfinished:
        unfinished.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_draft_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "wheel"

    def interrupted() -> None:
        with atomic.draft(path) as unfinished:
            unfinished.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / f".wheel{atomic.SUFFIX}").write_bytes(b"half")
    (tmp_path / "wheel").write_bytes(b"whole")
    atomic.remove_drafts(tmp_path)
    assert os.listdir(tmp_path) == ["wheel"]


def test_a_write_that_fails_keeps_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "note"
    atomic.write_bytes(path, b"old")
    monkeypatch.setattr(os, "replace", no_rename)
    with pytest.raises(OSError, match="no"):
        atomic.write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        atomic.write_bytes(tmp_path / "gone" / "file", b"new")
    assert raised.value.filename == str(tmp_path / "gone")


def test_a_written_file_is_as_public_as_any_other(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        atomic.write_bytes(tmp_path / "note", b"x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "note").stat().st_mode) == 0o640


def test_several_files_are_all_written_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    atomic.write_files(tmp_path, {"a": b"1", "deep/b": b"2"})
    rename = Path.rename

    def failing(path: Path, target: Path) -> Path:
        if target == tmp_path / "deep/b":
            raise OSError("no")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="no"):
        atomic.write_files(tmp_path, {"a": None, "c": b"3", "deep/b": b"4"})
    assert {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == {
        "a": b"1",
        "b": b"2",
    }


def test_a_folder_beside_goes_with_what_is_left_in_it(tmp_path: Path) -> None:
    with atomic.folder_beside(tmp_path / "tree") as work:
        assert work.parent == tmp_path
        (work / "tree").mkdir()
        (work / "rest").write_bytes(b"")
        (work / "tree").rename(tmp_path / "tree")
    assert os.listdir(tmp_path) == ["tree"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/note")
    for text in (b"one", b"two"):
        atomic.write_bytes(tmp_path / "link", text)
        assert (tmp_path / "real/note").read_bytes() == text
    assert (tmp_path / "link").is_symlink()


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    atomic.write_bytes(pipe, b"text")
    assert os.read(reader, 9) == b"text"
    os.close(reader)
    assert pipe.is_fifo()
    before = os.stat("/dev/null")
    atomic.write_bytes(Path("/dev/null"), b"text")
    assert os.stat("/dev/null").st_ino == before.st_ino
