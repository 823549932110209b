"""Applying hunks exactly where they belong."""

from __future__ import annotations

import difflib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmsbuild.patchset.apply_hunks import HunkError, apply_file_patch
from lmsbuild.patchset.diff import FilePatch, parse_diff


def patch_of(text: str) -> FilePatch:
    (patch,) = parse_diff(text)
    return patch


def diff_of(before: str, after: str, context: int) -> str:
    def lines(text: str) -> list[str]:
        return [f"{line}\n" for line in text.split("\n")[:-1]] + (
            [text.split("\n")[-1]] if text.split("\n")[-1] else []
        )

    out = ["diff --git a/f b/f\n", "index 1111111..2222222 100644\n"]
    for line in difflib.unified_diff(lines(before), lines(after), "a/f", "b/f", n=context):
        out.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(out)


texts = st.lists(st.sampled_from(["a", "b", "", "\x0b", "\r"]), max_size=8).map("\n".join)


@settings(max_examples=300, deadline=None)
@given(before=texts, after=texts, context=st.integers(0, 3))
def test_a_diff_turns_one_text_into_the_other(before: str, after: str, context: int) -> None:
    if before == after:
        return
    patch = patch_of(diff_of(before, after, context))
    assert apply_file_patch(patch, before.encode()) == after.encode()


def test_the_result_is_gits(tmp_path: Path) -> None:
    before = "".join(f"line {n}\n" for n in range(40))
    after = before.replace("line 3\n", "").replace("line 20\n", "new\nlines\n") + "end"
    diff = diff_of(before, after, 1)
    (tmp_path / "f").write_text(before)
    subprocess.run(
        ["git", "apply", "--unidiff-zero", "-"], input=diff, text=True, cwd=tmp_path, check=True
    )
    assert apply_file_patch(patch_of(diff), before.encode()) == (tmp_path / "f").read_bytes()


DIFF = diff_of("a\nb\nc\nd\ne\nf\ng\nh\ni\n", "a\nB\nc\nd\ne\nf\ng\nH\ni\n", 1)


def test_the_hunk_and_line_that_differ_are_named() -> None:
    with pytest.raises(HunkError, match="line 8 ") as caught:
        apply_file_patch(patch_of(DIFF), b"a\nb\nc\nd\ne\nf\ng\nX\ni\n")
    assert caught.value.number == 2


def test_a_hunk_does_not_move() -> None:
    with pytest.raises(HunkError) as caught:
        apply_file_patch(patch_of(DIFF), b"inserted\na\nb\nc\nd\ne\nf\ng\nh\ni\n")
    assert caught.value.number == 1


def test_a_short_file_is_refused() -> None:
    with pytest.raises(HunkError, match="line 2 "):
        apply_file_patch(patch_of(DIFF), b"a\n")


def test_an_insertion_beyond_the_end_is_refused() -> None:
    diff = diff_of("a\n" * 9, "a\n" * 10, 0)
    with pytest.raises(HunkError):
        apply_file_patch(patch_of(diff), b"a\n" * 3)


def test_files_are_created_and_deleted() -> None:
    created = patch_of(
        "diff --git a/f b/f\nnew file mode 100644\nindex 0000000..1111111\n"
        "--- /dev/null\n+++ b/f\n@@ -0,0 +1,2 @@\n+a\n+b\n"
    )
    assert apply_file_patch(created, None) == b"a\nb\n"
    with pytest.raises(HunkError, match="exists already"):
        apply_file_patch(created, b"")
    deleted = patch_of(
        "diff --git a/f b/f\ndeleted file mode 100644\nindex 1111111..0000000\n"
        "--- a/f\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n"
    )
    assert apply_file_patch(deleted, b"a\nb\n") is None
    with pytest.raises(HunkError, match="no such file"):
        apply_file_patch(deleted, None)


def test_bytes_that_are_no_utf8_pass_through() -> None:
    assert apply_file_patch(patch_of(DIFF), b"a\nb\nc\nd\n\xff\nf\ng\nh\ni\n") == (
        b"a\nB\nc\nd\n\xff\nf\ng\nH\ni\n"
    )
