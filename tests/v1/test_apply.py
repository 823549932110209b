"""`lmsbuild apply` on the release's own files."""

from __future__ import annotations

import subprocess
from pathlib import Path

from lmsbuild.checkout.state import Outcome
from lmsbuild.patchset.export import export
from lmsbuild.patchset.runtime import runtime_files
from lmsbuild.patchset.series import load_series
from lmsbuild.registry import Tag
from lmsbuild.resources import patches_dir


def git(where: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=T", "-c", "user.email=t@example.org", *arguments]
    return subprocess.run(
        command, cwd=where, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_every_patch_is_a_commit(tag: Tag, patched: Outcome) -> None:
    subjects = git(patched.directory, "log", "--reverse", "--format=%s").splitlines()
    expected = [mail.subject for mail in load_series(tag).mails]
    assert subjects[-len(expected) :] == expected


def test_the_hooks_were_made_against_these_very_files(patched: Outcome) -> None:
    assert patched.drifted == ()


def test_few_lines_of_upstream_change(tag: Tag, patched: Outcome) -> None:
    base = f"HEAD~{len(load_series(tag).mails) - 1}"
    changed = git(patched.directory, "diff", "--numstat", base, "HEAD", "--", ".", ":!test")
    added, removed = (
        sum(int(line.split()[column]) for line in changed.splitlines()) for column in (0, 1)
    )
    assert 0 < removed <= added <= 40, changed


def test_the_runtime_is_the_shared_one(tag: Tag, patched: Outcome) -> None:
    shared = runtime_files(patches_dir())
    own = runtime_files(patches_dir(), tag.variant)
    assert len([name for name in own if own[name] == shared.get(name)]) > len(shared) / 2
    for name, path in own.items():
        assert (patched.directory / name).read_bytes() == path.read_bytes()


def test_the_exported_patch_gives_the_same_tree(tag: Tag, patched: Outcome, tmp_path: Path) -> None:
    output = tmp_path / "all.patch"
    export(tag, output)
    plain = tmp_path / "plain"
    base = f"HEAD~{len(load_series(tag).mails)}"
    git(patched.directory, "worktree", "add", "--quiet", "--detach", str(plain), base)
    try:
        git(plain, "am", "--quiet", str(output))
        assert git(plain, "rev-parse", "HEAD^{tree}") == git(
            patched.directory, "rev-parse", "HEAD^{tree}"
        )
    finally:
        git(patched.directory, "worktree", "remove", "--force", str(plain))
