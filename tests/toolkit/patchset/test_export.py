"""`lmsbuild export`: one plain patch that gives the same files as `lmsbuild apply`."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from lmsbuild.checkout.apply import apply
from lmsbuild.errors import SeriesError
from lmsbuild.patchset.export import default_file, export
from toolkit.helpers.fake_upstream import NAME, Upstream, git, tree
from toolkit.helpers.fake_upstream import upstream as upstream


def test_git_am_gives_the_same_commits_messages_and_files(
    upstream: Upstream, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    git(tmp_path, "clone", "--quiet", str(upstream.checkout), str(plain))
    output = tmp_path / default_file(upstream.tag)
    export(upstream.tag, output, patches=upstream.patches)
    git(plain, "am", "--quiet", str(output))

    source = str(upstream.checkout)
    apply(upstream.tag, upstream_url="", given_source=source, patches=upstream.patches)
    assert tree(plain) == tree(upstream.checkout)
    fields = "--format=%s%n%b%n%an <%ae> %ad"
    log = git(plain, "log", fields, f"{NAME}..")
    assert log == git(upstream.checkout, "log", fields, f"{NAME}..")
    assert "größer" in log


def test_apply_knows_what_git_am_has_applied(upstream: Upstream, tmp_path: Path) -> None:
    output = tmp_path / "all.patch"
    export(upstream.tag, output, patches=upstream.patches)
    git(upstream.checkout, "am", "--quiet", str(output))
    source = str(upstream.checkout)
    outcome = apply(upstream.tag, upstream_url="", given_source=source, patches=upstream.patches)
    assert outcome.nothing_to_do


def test_the_same_bytes_each_time(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    size = export(upstream.tag, first, patches=upstream.patches)
    # Modes and times of the files are nothing that git records here.
    for path in upstream.patches.rglob("*.cpp"):
        path.chmod(0o700)
        os.utime(path, (0, 0))
    (upstream.patches / "runtime/torch/__pycache__").mkdir()
    (upstream.patches / "runtime/torch/__pycache__/x.pyc").write_bytes(b"\0")
    (upstream.patches / "runtime/torch/.hidden").write_text("x")
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Someone Else")
    assert export(upstream.tag, second, patches=upstream.patches) == size
    assert first.read_bytes() == second.read_bytes()
    assert len(first.read_bytes()) == size


def test_nothing_of_the_machine_is_in_it(upstream: Upstream, tmp_path: Path) -> None:
    output = tmp_path / "out"
    export(upstream.tag, output, patches=upstream.patches)
    text = output.read_text("utf-8")
    starts = [line for line in text.splitlines() if line.startswith("From ")]
    assert starts == ["From " + "0" * 40 + " Mon Sep 17 00:00:00 2001"] * 4
    assert str(tmp_path) not in text
    assert "\n-- \n" not in text


def test_the_file_is_as_public_as_any_other(upstream: Upstream, tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        export(upstream.tag, tmp_path / "out", patches=upstream.patches)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o644


def test_failure_leaves_the_old_file_and_nothing_else(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    output = place / "out"
    output.write_text("old\n")

    def full(path: Path, mode: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "chmod", full)
    with pytest.raises(OSError, match="No space"):
        export(upstream.tag, output, patches=upstream.patches)
    assert output.read_text() == "old\n"
    assert os.listdir(place) == ["out"]


def test_broken_patches_write_nothing(upstream: Upstream, tmp_path: Path) -> None:
    (upstream.hooks / "series").unlink()
    with pytest.raises(SeriesError, match="no such file"):
        export(upstream.tag, tmp_path / "out", patches=upstream.patches)
    assert not (tmp_path / "out").exists()
