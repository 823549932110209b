"""Reading a tag's patches: series file, mails, diffs, runtime."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmsbuild.errors import SeriesError
from lmsbuild.patchset.diff import DiffError, blob_id, creation_diff, parse_diff
from lmsbuild.patchset.mail import MailError, parse_mail
from lmsbuild.patchset.runtime import runtime_files, runtime_mail
from lmsbuild.patchset.series import load_hooks, load_series
from lmsbuild.registry import load_registry
from toolkit.helpers.fake_upstream import MEMORY, Upstream, commit, git
from toolkit.helpers.fake_upstream import upstream as upstream

MAIL = """\
From 0123 Mon Sep 17 00:00:00 2001
From: A <a@example.org>
Date: Thu, 1 Jan 2026 00:00:00 +0000
Subject: [PATCH 3/7] a subject
 that is folded

Why it is done.
---
 x | 2 +-
 1 file changed

diff --git a/x b/x
index 1111111..2222222 100644
--- a/x
+++ b/x
@@ -1,3 +1,3 @@ def f():
 a
-b
+c

--
2.39.5

"""


def test_the_series_files_order_counts(upstream: Upstream) -> None:
    names = [mail.name for mail in load_hooks(upstream.tag, upstream.patches)]
    assert [name[:4] for name in names] == ["0001", "0002", "0003"]
    series = upstream.hooks / "series"
    series.write_text("\n".join(["# why", "", *reversed(names)]) + "  # last\n")
    again = [mail.name for mail in load_hooks(upstream.tag, upstream.patches)]
    assert again == names[::-1]


def test_the_runtime_comes_first(upstream: Upstream) -> None:
    series = load_series(upstream.tag, upstream.patches)
    assert [mail.name[:4] for mail in series.mails] == ["runt", "0001", "0002", "0003"]
    assert all(file.created for file in series.mails[0].files)
    assert len(set(series.ids)) == 4


def test_files_and_hunks(upstream: Upstream) -> None:
    first, second, third = load_hooks(upstream.tag, upstream.patches)
    (file,) = first.files
    assert (file.path, file.old_path, file.created, file.deleted) == (MEMORY, MEMORY, False, False)
    assert len(file.hunks) == 2
    content = (upstream.checkout / MEMORY).read_bytes()
    assert file.old_blob == blob_id(content)
    lines = content.decode().split("\n")
    for hunk in file.hunks:
        old = [line[1:] for line in hunk.lines if line[0] in " -"]
        assert lines[hunk.old_start - 1 :][: hunk.old_count] == old
    assert [file.path for file in second.files] == [MEMORY]
    assert [file.path for file in third.files] == ["torch/cuda/__init__.py"]


@pytest.mark.parametrize(
    ("series", "complaint"),
    [
        ("", "lists no hook"),
        ("# only a remark\n", "lists no hook"),
        ("missing.patch\n", "missing.patch: no such file"),
        ("../v9.8.7/0001.patch\n", "is not the name of a file beside it"),
    ],
)
def test_a_broken_series_file(upstream: Upstream, series: str, complaint: str) -> None:
    for path in upstream.hooks.glob("*.patch"):
        path.unlink()
    (upstream.hooks / "series").write_text(series)
    with pytest.raises(SeriesError, match=re.escape(complaint)):
        load_hooks(upstream.tag, upstream.patches)


def test_no_series_file(upstream: Upstream) -> None:
    (upstream.hooks / "series").unlink()
    with pytest.raises(SeriesError, match="series: no such file"):
        load_hooks(upstream.tag, upstream.patches)


def test_a_hook_listed_twice(upstream: Upstream) -> None:
    series = upstream.hooks / "series"
    series.write_text(series.read_text() * 2)
    with pytest.raises(SeriesError, match="twice"):
        load_hooks(upstream.tag, upstream.patches)


def test_a_hook_that_is_not_listed(upstream: Upstream) -> None:
    (upstream.hooks / "0009-forgotten.patch").write_text(MAIL)
    with pytest.raises(SeriesError, match=r"does not list 0009-forgotten\.patch"):
        load_hooks(upstream.tag, upstream.patches)


def test_a_mail_loses_what_no_commit_would_hold() -> None:
    mail = parse_mail("x.patch", MAIL.replace("--\n2.39", "-- \n2.39"))
    assert mail.subject == "a subject that is folded"
    assert mail.body == "Why it is done."
    assert mail.diff.endswith("+c\n") or mail.diff.endswith("+c\n\n")
    text = mail.render(number=1, total=2, trailers=(("Lms-Tag", "v1.2.3"),))
    assert "Subject: [PATCH 1/2] a subject that is folded\n" in text
    assert "1 file changed" not in text
    assert "2.39" not in text
    assert parse_mail("x.patch", text).files == mail.files


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("From: A <a@example.org>\n", "", "no From header"),
        ("Date: Thu, 1 Jan 2026 00:00:00 +0000\n", "", "no Date header"),
        ("Thu, 1 Jan 2026 00:00:00 +0000", "tomorrow", "malformed Date"),
        ("Subject: ", "Object: ", "no Subject header"),
        ("diff --git a/x b/x", "", "holds no diff"),
        ("+c\n\n--", "--", "cut short"),
        ("@@ -1,3 +1,3 @@", "@@ nonsense @@", "malformed hunk"),
        (" a\n", " a\r\n", "carriage returns"),
        ("Date:", "Content-Transfer-Encoding: base64\nDate:", "base64"),
        ("--- a/x", "GIT binary patch", "binary"),
    ],
)
def test_a_broken_mail(old: str, new: str, complaint: str) -> None:
    assert old in MAIL
    with pytest.raises(MailError, match=complaint):
        parse_mail("x.patch", MAIL.replace(old, new, 1))


def test_a_broken_hook_is_named(upstream: Upstream) -> None:
    hook = next(upstream.hooks.glob("0002-*"))
    hook.write_text("nothing\n")
    with pytest.raises(SeriesError, match=r"0002-.*is not a mail; write it with"):
        load_hooks(upstream.tag, upstream.patches)


def test_bytes_that_are_no_utf8_survive(upstream: Upstream, tmp_path: Path) -> None:
    (upstream.checkout / "latin.py").write_bytes(b"# caf\xe9\nx = 1\n")
    commit(upstream.checkout, "an old file")
    author = tmp_path / "latin"
    git(tmp_path, "clone", "--quiet", str(upstream.checkout), str(author))
    (author / "latin.py").write_bytes(b"# caf\xe9\nx = 2\n")
    commit(author, "change it")
    for path in upstream.hooks.iterdir():
        path.unlink()
    git(author, "format-patch", "--quiet", f"--output={upstream.hooks}/a.patch", "-1")
    (upstream.hooks / "series").write_text("a.patch\n")
    series = load_series(upstream.tag, upstream.patches)
    assert b"# caf\xe9\n" in series.mbox()


@given(st.text(alphabet=st.characters(exclude_characters="\0\r", codec="utf-8")))
def test_a_creation_diff_is_what_git_reads(text: str) -> None:
    content = text.encode()
    diff = creation_diff("some/file.py", content)
    (file,) = parse_diff(diff)
    assert file.created
    lines = [line[1:] for hunk in file.hunks for line in hunk.lines if line[0] == "+"]
    whole = "\n".join(lines) + ("" if "\\ No newline" in diff.split("\n")[-2] else "\n")
    assert (whole if file.hunks else "") == text


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"x", b"x\n", b"\n\nx", b"--- a\n+++ b\n@@ -1 +1 @@\n", b"\x0c\x85\n"]
)
def test_git_makes_the_same_file_of_a_creation_diff(tmp_path: Path, content: bytes) -> None:
    if content == b"\x0c\x85\n":
        content = "\x0c\x85\u2028\n".encode()
    diff = creation_diff("some/file.py", content)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=diff.encode(), check=True)
    made = tmp_path / "some/file.py"
    assert made.read_bytes() == content
    assert git(tmp_path, "hash-object", str(made)) == blob_id(content)
    assert blob_id(content) in diff


@pytest.mark.parametrize("content", [b"a\0b", b"a\r\n", b"\xff"])
def test_only_plain_text_goes_into_a_mail(content: bytes) -> None:
    with pytest.raises(DiffError):
        creation_diff("x", content)


def test_a_runtime_file_that_is_not_text_is_named(upstream: Upstream) -> None:
    (upstream.patches / "runtime/torch/lib.so").write_bytes(b"\x7fELF\0")
    with pytest.raises(SeriesError, match=r"lib\.so: not"):
        runtime_mail(upstream.patches)


def test_a_runtime_file_with_an_odd_name(upstream: Upstream) -> None:
    (upstream.patches / "runtime/torch/a b.py").write_text("")
    with pytest.raises(SeriesError, match=r"a b\.py: rename it"):
        runtime_files(upstream.patches)


def test_no_runtime(tmp_path: Path) -> None:
    with pytest.raises(SeriesError, match="holds no runtime"):
        runtime_files(tmp_path)


def test_a_variant_of_the_runtime_replaces_files_and_adds_some(upstream: Upstream) -> None:
    plain = runtime_files(upstream.patches)
    variant = upstream.patches / "runtime-old"
    (variant / "torch/cuda").mkdir(parents=True)
    (variant / "torch/cuda/lms.py").write_text("old = True\n")
    (variant / "c10").mkdir()
    (variant / "c10/lms.h").write_text("// old\n")
    files = runtime_files(upstream.patches, "runtime-old")
    assert list(files) == sorted({*plain, "c10/lms.h"})
    replaced = {name for name in plain if files[name] != plain[name]}
    assert replaced == {"torch/cuda/lms.py"}
    assert files["torch/cuda/lms.py"].read_text() == "old = True\n"
    assert runtime_files(upstream.patches) == plain
    tag = dataclasses.replace(upstream.tag, variant="runtime-old")
    runtime = load_series(tag, upstream.patches).mails[0]
    assert {file.path for file in runtime.files} == set(files)
    assert "+old = True\n" in runtime.diff


def test_a_variant_that_is_missing(upstream: Upstream) -> None:
    with pytest.raises(SeriesError, match="runtime-gone: holds no runtime"):
        runtime_files(upstream.patches, "runtime-gone")


@pytest.mark.parametrize("tag", load_registry().tags, ids=lambda tag: tag.name)
def test_the_projects_own_patches_can_be_read(tag: object) -> None:
    series = load_series(tag)  # type: ignore[arg-type]
    assert len(series.mails) >= 2
    for mail in series.mails[1:]:
        assert mail.body, f"{mail.name} does not say why it exists"
        for file in mail.files:
            assert not file.created, f"{mail.name}: new files belong to patches/runtime"
