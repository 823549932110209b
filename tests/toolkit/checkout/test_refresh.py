"""`lmsbuild dev refresh`: patch files from a maintainer's commits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lmsbuild.checkout import refresh as refresh_module
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.refresh import Refreshed, refresh
from lmsbuild.errors import (
    DirtySourceError,
    LmsbuildError,
    NotAppliedError,
    RefreshError,
    StalePatchError,
    UnknownTagError,
)
from lmsbuild.registry import load_registry
from toolkit.helpers.fake_upstream import (
    MEMORY,
    NAME,
    Upstream,
    commit,
    converting_clone,
    git,
    make_tag,
    snapshot,
    write_registry,
)
from toolkit.helpers.fake_upstream import upstream as upstream

LMS_CPP = "torch/csrc/cuda/lms/lms.cpp"
SECOND = "0002-cuda-change-one-of-them-again.patch"


def files(upstream: Upstream) -> dict[str, bytes]:
    root = upstream.patches
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def refreshed(upstream: Upstream, checkout: Path | None = None, **options: object) -> Refreshed:
    return refresh(
        load_registry(upstream.patches),
        checkout or upstream.checkout,
        patches=upstream.patches,
        **options,  # type: ignore[arg-type]
    )


def put_on(upstream: Upstream, into: Path | None = None) -> Path:
    """A checkout with the patches: upstream's own, or a new one."""
    apply(
        upstream.tag,
        upstream_url=upstream.checkout.as_uri(),
        given_source=str(upstream.checkout),
        into=into,
        patches=upstream.patches,
    )
    return into or upstream.checkout


@pytest.fixture
def checkout(upstream: Upstream) -> Path:
    """A patched checkout whose patch files are in refresh's own form."""
    put_on(upstream)
    refreshed(upstream)
    git(upstream.checkout, "reset", "--quiet", "--hard", NAME)
    return put_on(upstream)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def hook_names(upstream: Upstream) -> list[str]:
    return (upstream.hooks / "series").read_text().splitlines()[1:]


# --- what it writes -------------------------------------------------------------------------


def test_apply_and_refresh_leave_every_byte(upstream: Upstream, checkout: Path) -> None:
    before = files(upstream)
    assert refreshed(upstream).changed == ()
    assert files(upstream) == before


def test_noise_of_format_patch_is_taken_out(upstream: Upstream) -> None:
    put_on(upstream)
    changed = refreshed(upstream).changed
    assert {how for _, how in changed} == {"changed"}
    first = (upstream.hooks / hook_names(upstream)[0]).read_text()
    assert first.startswith(f"From {'0' * 40} Mon Sep 17 00:00:00 2001\nFrom: A <a@example.org>\n")
    assert "Subject: [PATCH] cuda: change two functions\n" in first
    assert "Because a test wants them changed: größer.\n\ndiff --git" in first
    assert first.endswith("\n")
    for noise in ("Lms-", "\n-- \n", " | ", "file changed"):
        assert noise not in first


def test_an_amended_commit(upstream: Upstream, checkout: Path) -> None:
    edit(checkout / MEMORY, "return 7\n", "return 77\n")
    git(checkout, "stash", "--quiet")
    git(checkout, "checkout", "--quiet", "HEAD~1")
    git(checkout, "stash", "pop", "--quiet")
    git(checkout, "commit", "--quiet", "--all", "--amend", "--no-edit")
    git(checkout, "cherry-pick", "main")
    before = files(upstream)
    assert refreshed(upstream).changed == ((f"{NAME}/{SECOND}", "changed"),)
    text = (upstream.hooks / SECOND).read_text()
    assert "+    return 77\n" in text
    assert "+    return 333\n" in text
    # Who commits, and when, is in no patch.
    assert text.splitlines()[1:3] == before[f"{NAME}/{SECOND}"].decode().splitlines()[1:3]
    assert apply_again(upstream, checkout)


def apply_again(upstream: Upstream, checkout: Path) -> bool:
    """Whether the patch files make the files of the checkout."""
    wanted = git(checkout, "rev-parse", "HEAD^{tree}")
    git(checkout, "reset", "--quiet", "--hard", NAME)
    put_on(upstream, None)
    return git(checkout, "rev-parse", "HEAD^{tree}") == wanted


def test_a_new_commit_an_order_and_a_dropped_one(upstream: Upstream, checkout: Path) -> None:
    names = hook_names(upstream)
    picks = git(checkout, "log", "--reverse", "--format=%H", f"{NAME}..").split()
    git(checkout, "reset", "--quiet", "--hard", picks[0])
    git(checkout, "cherry-pick", picks[3])
    (checkout / "README.md").write_text("Read me.\n")
    subject = "docs: say more [see below], and say it in quite a long subject of a commit"
    commit(checkout, f"{subject}\n\nNobody knew.\n\nSigned-off-by: A <a@example.org>")
    git(checkout, "cherry-pick", picks[1])
    new = "0002-docs-say-more-see-below-and-say-it-in-quite-a-long-s.patch"
    changed = dict(refreshed(upstream).changed)
    assert changed == {
        f"{NAME}/{names[1]}": "gone",
        f"{NAME}/{new}": "new",
        f"{NAME}/series": "changed",
    }
    assert hook_names(upstream) == [names[2], new, names[0]]
    text = (upstream.hooks / new).read_text()
    assert "From: lmsbuild contributors <lmsbuild@lmsbuild.invalid>\n" in text
    assert "Date: Thu, 1 Jan 2026 00:00:00 +0000\n" in text
    assert "\nSigned-off-by: A <a@example.org>\n\ndiff" in text
    assert apply_again(upstream, checkout)


def test_new_hooks_have_one_line_of_context_and_short_ids(
    upstream: Upstream, checkout: Path
) -> None:
    edit(checkout / MEMORY, "return 9\n", "return 99\n")
    commit(checkout, "cuda: nine\n\nWhy.")
    refreshed(upstream)
    diff = (upstream.hooks / hook_names(upstream)[-1]).read_text().split("diff --git")[1]
    body = [line for line in diff.splitlines() if not line.startswith(("+++", "---"))]
    assert [line[0] for line in body[-4:]] == [" ", "-", "+", " "]
    assert len(body[1].split()[1]) == len("1234567..1234567")


def test_a_new_subject_is_a_new_name(upstream: Upstream, checkout: Path) -> None:
    names = hook_names(upstream)
    message = git(checkout, "log", "-1", "--format=%B").replace("import", "really import")
    git(checkout, "commit", "--quiet", "--amend", "--message", message)
    refreshed(upstream)
    assert hook_names(upstream) == [*names[:2], "0003-cuda-really-import-the-new-module.patch"]
    assert sorted(path.name for path in upstream.hooks.glob("*.patch")) == sorted(
        hook_names(upstream)
    )


def test_a_subject_in_another_script(upstream: Upstream, checkout: Path) -> None:
    edit(checkout / MEMORY, "return 9\n", "return 99\n")
    commit(checkout, "cuda: größer\n\nWarum: größer ist besser.")
    refreshed(upstream)
    assert apply_again(upstream, checkout)
    assert git(checkout, "log", "-1", "--format=%s") == "cuda: größer"
    assert refreshed(upstream).changed == ()


def test_remarks_of_the_series_stay(upstream: Upstream, checkout: Path) -> None:
    edit(checkout / MEMORY, "return 9\n", "return 99\n")
    commit(checkout, "cuda: nine\n\nWhy.")
    refreshed(upstream)
    assert (upstream.hooks / "series").read_text().startswith("# in this order\n0001-")


def test_whatever_the_configuration_the_bytes_are_the_same(
    upstream: Upstream, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attributes = tmp_path / "attributes"
    attributes.write_text("*.py diff=python\n*.py -text\n")
    configuration = tmp_path / "gitconfig"
    configuration.write_text(
        "[diff]\nnoprefix = true\nmnemonicPrefix = true\nalgorithm = patience\ncontext = 9\n"
        "interHunkContext = 40\nrenames = copies\nexternal = /bin/false\norderFile = /nowhere\n"
        "suppressBlankEmpty = true\nindentHeuristic = false\nrelative = true\n"
        "[color]\nui = always\ndiff = always\n[format]\npretty = raw\n"
        f"[core]\nattributesFile = {attributes}\nabbrev = 20\nquotePath = true\nautocrlf = true\n"
        "[log]\nshowSignature = true\n[user]\nuseConfigOnly = true\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(configuration))
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    monkeypatch.setenv("LC_ALL", "C")
    other = put_on(upstream, tmp_path / "a path with spaces")
    assert refreshed(upstream, other).changed == ()


# --- the runtime ----------------------------------------------------------------------------


def test_changes_to_the_runtime_go_back_to_it(upstream: Upstream, checkout: Path) -> None:
    edit(checkout / LMS_CPP, "int lms = 1", "int lms = 2")
    (checkout / "torch/csrc/cuda/lms/new.h").write_text("// new\n")
    (checkout / "torch/csrc/cuda/lms/empty.h").unlink()
    edit(checkout / MEMORY, "return 9\n", "return 99\n")
    commit(checkout, "cuda: nine, and two\n\nBoth belong together.")
    changed = dict(refreshed(upstream).changed)
    runtime = upstream.patches / "runtime"
    assert changed == {
        f"runtime/{LMS_CPP}": "changed",
        "runtime/torch/csrc/cuda/lms/new.h": "new",
        "runtime/torch/csrc/cuda/lms/empty.h": "gone",
        f"{NAME}/0004-cuda-nine-and-two.patch": "new",
        f"{NAME}/series": "changed",
    }
    assert (runtime / LMS_CPP).read_bytes() == (checkout / LMS_CPP).read_bytes()
    assert "csrc" not in (upstream.hooks / "0004-cuda-nine-and-two.patch").read_text()
    assert refreshed(upstream).changed == ()
    assert apply_again(upstream, checkout)


def test_a_commit_of_the_runtime_alone_is_no_hook(upstream: Upstream, checkout: Path) -> None:
    names = hook_names(upstream)
    edit(checkout / LMS_CPP, "int lms = 1", "int lms = 2")
    commit(checkout, "runtime: two\n\nOne is not enough.")
    assert refreshed(upstream).changed == ((f"runtime/{LMS_CPP}", "changed"),)
    assert hook_names(upstream) == names
    # And back again, without applying anew.
    edit(checkout / LMS_CPP, "int lms = 2", "int lms = 1")
    commit(checkout, "runtime: one\n\nTwo were too many.")
    assert refreshed(upstream).changed == ((f"runtime/{LMS_CPP}", "changed"),)


def test_a_variant_of_the_runtime_gets_its_own_changes(upstream: Upstream) -> None:
    old = upstream.patches / "runtime-old"
    for name in (LMS_CPP, "c10/lms.h"):
        (old / name).parent.mkdir(parents=True, exist_ok=True)
        (old / name).write_text("// an old release's\n")
    upstream = replace(upstream, tag=replace(upstream.tag, variant=old.name))
    write_registry(upstream.patches, [upstream.tag])
    checkout = put_on(upstream)
    refreshed(upstream)
    git(checkout, "reset", "--quiet", "--hard", NAME)
    put_on(upstream)
    assert refreshed(upstream).changed == ()
    for name in (LMS_CPP, "c10/lms.h", "c10/new.h", "torch/cuda/lms.py"):
        (checkout / name).write_text("# changed\n")
    commit(checkout, "runtime: change it\n\nIt was wrong.")
    assert dict(refreshed(upstream).changed) == {
        "runtime-old/c10/lms.h": "changed",
        "runtime-old/c10/new.h": "new",
        f"runtime-old/{LMS_CPP}": "changed",
        "runtime/torch/cuda/lms.py": "changed",
    }


def test_an_amended_runtime_commit(upstream: Upstream, checkout: Path) -> None:
    git(checkout, "checkout", "--quiet", "HEAD~3")
    edit(checkout / LMS_CPP, "int lms = 1", "int lms = 5")
    git(checkout, "commit", "--quiet", "--all", "--amend", "--no-edit")
    git(checkout, "cherry-pick", "main~3..main")
    assert refreshed(upstream).changed == ((f"runtime/{LMS_CPP}", "changed"),)


def test_a_runtime_that_moved_on_stays(upstream: Upstream, checkout: Path) -> None:
    path = upstream.patches / "runtime" / LMS_CPP
    path.write_text("// somebody else's\n")
    edit(checkout / MEMORY, "return 9\n", "return 99\n")
    commit(checkout, "cuda: nine\n\nWhy.")
    refreshed(upstream)
    assert path.read_text() == "// somebody else's\n"
    edit(checkout / LMS_CPP, "int lms = 1", "int lms = 2")
    commit(checkout, "runtime: two\n\nWhy.")
    refused(upstream, RefreshError, "changed both")
    assert path.read_text() == "// somebody else's\n"


def test_a_branch_with_older_patches_takes_nothing_back(upstream: Upstream, checkout: Path) -> None:
    git(checkout, "checkout", "--quiet", "-b", "newer", NAME)
    path = upstream.patches / "runtime" / LMS_CPP
    path.write_text("// newer\n")
    put_on(upstream)
    git(checkout, "checkout", "--quiet", "main")
    edit(checkout / MEMORY, "return 9\n", "return 99\n")
    commit(checkout, "cuda: nine\n\nWhy.")
    assert f"runtime/{LMS_CPP}" not in dict(refreshed(upstream).changed)
    assert path.read_text() == "// newer\n"


def test_a_checkout_from_the_exported_patch(upstream: Upstream, checkout: Path) -> None:
    # Without what `lmsbuild apply` notes.
    git(checkout, "update-ref", "-d", "refs/worktree/lmsbuild/synced")
    edit(checkout / LMS_CPP, "int lms = 1", "int lms = 2")
    commit(checkout, "runtime: two\n\nWhy.")
    assert refreshed(upstream).changed == ((f"runtime/{LMS_CPP}", "changed"),)


# --- the dry run ----------------------------------------------------------------------------


def test_check_changes_nothing_and_tells(upstream: Upstream, checkout: Path) -> None:
    edit(checkout / MEMORY, "return 9\n", "return 99\n")
    commit(checkout, "cuda: nine\n\nWhy.")
    before, state = files(upstream), snapshot(checkout)
    assert dict(refreshed(upstream, check=True).changed) == {
        f"{NAME}/0004-cuda-nine.patch": "new",
        f"{NAME}/series": "changed",
    }
    assert files(upstream) == before
    assert snapshot(checkout) == state
    # Nor does it count as a refresh.
    (upstream.hooks / SECOND).write_text((upstream.hooks / SECOND).read_text() + "\n")
    assert (f"{NAME}/{SECOND}", "changed") in refreshed(upstream, check=True).changed


# --- what it refuses ------------------------------------------------------------------------


def refused(upstream: Upstream, kind: type[LmsbuildError], match: str, **options: object) -> None:
    before, state = files(upstream), snapshot(upstream.checkout)
    with pytest.raises(kind, match=match) as caught:
        refreshed(upstream, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert files(upstream) == before
    assert snapshot(upstream.checkout) == state


@pytest.mark.parametrize(
    ("message", "match"),
    [
        ("cuda: nine", "does not say why it is needed"),
        ("cuda: nine\n\nSigned-off-by: A <a@example.org>", "does not say why it is needed"),
        ("fixup! cuda: import the new module\n\nWhy.", "autosquash"),
        ("[cuda] nine\n\nWhy.", "begins with a bracket"),
        ("cuda: nine\n\nWhy:\n---\nbecause", "would not survive `git am`"),
    ],
)
def test_messages_that_make_no_patch(
    upstream: Upstream, checkout: Path, message: str, match: str
) -> None:
    edit(checkout / MEMORY, "return 9\n", "return 99\n")
    commit(checkout, message)
    refused(upstream, RefreshError, match)


def test_a_commit_that_changes_nothing(upstream: Upstream, checkout: Path) -> None:
    git(checkout, "commit", "--quiet", "--allow-empty", "--message", "cuda: x\n\nWhy.")
    refused(upstream, RefreshError, "changes nothing")


def test_a_merge(upstream: Upstream, checkout: Path) -> None:
    git(checkout, "checkout", "--quiet", "-b", "side", "HEAD~1")
    edit(checkout / MEMORY, "return 9\n", "return 99\n")
    commit(checkout, "cuda: nine\n\nWhy.")
    git(checkout, "checkout", "--quiet", "main")
    git(checkout, "merge", "--quiet", "--no-ff", "--message", "merge", "side")
    refused(upstream, RefreshError, "is a merge")


@pytest.mark.parametrize(
    ("content", "match"),
    [(b"a\r\nb\r\n", "carriage returns"), (b"\0\1\2", "binary")],
)
def test_files_that_no_mail_carries(
    upstream: Upstream, checkout: Path, content: bytes, match: str
) -> None:
    (checkout / "new.txt").write_bytes(content)
    commit(checkout, "new: file\n\nWhy.")
    refused(upstream, RefreshError, match)


def test_a_submodule_that_moved(upstream: Upstream, checkout: Path) -> None:
    git(checkout, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},third_party/x")
    git(checkout, "commit", "--quiet", "--message", "third_party: x\n\nWhy.")
    # The diff of a submodule is text that `git am` applies.
    assert (f"{NAME}/0004-third_party-x.patch", "new") in refreshed(upstream, check=True).changed


def test_the_runtimes_commit_with_upstreams_files_in_it(upstream: Upstream, checkout: Path) -> None:
    git(checkout, "reset", "--quiet", "--soft", "HEAD~3")
    git(checkout, "commit", "--quiet", "--all", "--amend", "--no-edit")
    refused(upstream, RefreshError, f"changes upstream's {MEMORY}|torch/cuda/__init__.py")


def test_the_runtimes_commit_without_its_line(upstream: Upstream, checkout: Path) -> None:
    git(checkout, "checkout", "--quiet", "HEAD~3")
    git(checkout, "commit", "--quiet", "--amend", "--message", "runtime\n\nWhy.")
    git(checkout, "cherry-pick", "main~3..main")
    refused(upstream, RefreshError, "give the runtime's commit its line back")


def test_a_dirty_checkout(upstream: Upstream, checkout: Path) -> None:
    edit(checkout / MEMORY, "return 9\n", "return 99\n")
    refused(upstream, DirtySourceError, "not committed")


def test_a_plain_checkout(upstream: Upstream) -> None:
    refused(upstream, NotAppliedError, "no LMS patches")


def test_another_tags_checkout(upstream: Upstream, checkout: Path) -> None:
    write_registry(upstream.patches, [upstream.tag, make_tag("v9.9.9")])
    refused(upstream, RefreshError, f"patches of {NAME}", tag_name="v9.9.9")
    write_registry(upstream.patches, [make_tag("v9.9.9")])
    refused(upstream, UnknownTagError, NAME)


def test_a_patch_that_changed_meanwhile(upstream: Upstream, checkout: Path) -> None:
    path = upstream.hooks / SECOND
    path.write_text(path.read_text().replace("Once was", "Twice was"))
    edit(checkout / MEMORY, "return 9\n", "return 99\n")
    commit(checkout, "cuda: nine\n\nWhy.")
    refused(upstream, RefreshError, "has changed since")


def test_local_changes_below_the_patches(upstream: Upstream, checkout: Path) -> None:
    git(checkout, "reset", "--quiet", "--hard", NAME)
    edit(checkout / MEMORY, "return 12\n", "return 1212\n")
    commit(checkout, "local: mine")
    put_on(upstream)
    refused(upstream, RefreshError, "a commit below the patches changes it")


def test_local_commits_below_that_touch_nothing_of_ours(upstream: Upstream, checkout: Path) -> None:
    git(checkout, "reset", "--quiet", "--hard", NAME)
    (checkout / "mine.txt").write_text("mine\n")
    commit(checkout, "local: mine")
    put_on(upstream)
    assert refreshed(upstream).changed == ()


def test_a_clone_that_does_not_reach_the_tag(
    upstream: Upstream, checkout: Path, tmp_path: Path
) -> None:
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=4", checkout.as_uri(), str(shallow))
    with pytest.raises(NotAppliedError, match="git fetch --deepen=1"):
        refreshed(upstream, shallow)
    git(shallow, "fetch", "--quiet", "--deepen=1")
    assert refreshed(upstream, shallow).changed == ()


@pytest.mark.parametrize("autocrlf", ["true", "input", "false"])
def test_a_checkout_with_converted_line_ends(
    upstream: Upstream, checkout: Path, tmp_path: Path, autocrlf: str
) -> None:
    other = converting_clone(upstream, tmp_path / "other", autocrlf)
    text = (other / MEMORY).read_bytes().replace(b"return 9", b"return 99")
    assert (b"\r\n" in text) == (autocrlf == "true")
    (other / MEMORY).write_bytes(text)
    commit(other, "cuda: nine\n\nWhy.")
    changed = dict(refreshed(upstream, other).changed)
    assert set(changed) == {f"{NAME}/0004-cuda-nine.patch", f"{NAME}/series"}
    assert b"\r" not in (upstream.hooks / "0004-cuda-nine.patch").read_bytes()


def test_a_write_that_fails_leaves_every_file_as_it_was(
    upstream: Upstream, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(checkout / LMS_CPP, "int lms = 1", "int lms = 2")
    edit(checkout / MEMORY, "return 9\n", "return 99\n")
    commit(checkout, "cuda: nine\n\nWhy.")
    rename, calls = Path.rename, []

    def failing(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == 5:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(refresh_module.Path, "rename", failing)
    refused(upstream, OSError, "No space")  # type: ignore[arg-type]
    assert len(calls) == 5
    assert not list(upstream.patches.glob(".*"))


# --- the command ----------------------------------------------------------------------------


def test_the_command(upstream: Upstream, checkout: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    shutil.copytree(Path(refresh_module.__file__).parents[1], package / "lmsbuild")
    shutil.copytree(upstream.patches, package / "patches")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "lmsbuild", "dev", "refresh", *arguments],
            env={**os.environ, "PYTHONPATH": str(package)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    assert run("--check", str(checkout)).returncode == 0
    edit(checkout / MEMORY, "return 9\n", "return 99\n")
    commit(checkout, "cuda: nine\n\nWhy.")
    stale = run(NAME, str(checkout), "--check")
    assert stale.returncode == StalePatchError.exit_code
    assert stale.stdout.splitlines() == [
        f"would be new: {NAME}/0004-cuda-nine.patch",
        f"would be changed: {NAME}/series",
    ]
    assert stale.stderr.count("\n") == 1
    written = run(str(checkout))
    assert written.returncode == 0
    assert (package / "patches" / NAME / "0004-cuda-nine.patch").is_file()
    assert run("--check", str(checkout)).returncode == 0
    assert run("a", "b", "c").returncode == 2
