"""`lmsbuild apply`: what it leaves behind, and what it refuses."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from lmsbuild.checkout import origin
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.rehearsal import Rehearsal
from lmsbuild.checkout.reverse import reverse
from lmsbuild.checkout.state import Outcome
from lmsbuild.errors import (
    BusyError,
    DirtySourceError,
    HookError,
    LmsbuildError,
    NetworkError,
    NoSpaceError,
    NotAppliedError,
    OtherPatchesError,
    SourceError,
    TargetExistsError,
    UnsafeMemberError,
    WrongSourceError,
)
from lmsbuild.tools import git as lmsgit
from lmsbuild.tools.lock import exclusive
from toolkit.helpers.damage import flipped
from toolkit.helpers.fake_upstream import (
    MEMORY,
    NAME,
    VERSION,
    Upstream,
    commit,
    converting_clone,
    git,
    make_tag,
    snapshot,
    tree,
)
from toolkit.helpers.fake_upstream import upstream as upstream


def applied(upstream: Upstream, source: object = None, **options: object) -> Outcome:
    return apply(
        upstream.tag,
        upstream_url=upstream.checkout.as_uri(),
        given_source=str(source) if source is not None else None,
        patches=upstream.patches,
        **options,  # type: ignore[arg-type]
    )


def tarball(upstream: Upstream, path: Path, top: str = "any-top-1.0") -> Path:
    git(
        upstream.checkout,
        "archive",
        f"--prefix={top}/",
        f"--output={path}.tar",
        "HEAD",
    )
    mode = "w:xz" if path.suffix == ".xz" else "w:gz"
    with tarfile.open(f"{path}.tar") as old, tarfile.open(path, mode) as new:  # type: ignore[call-overload]
        for member in old:
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return path


# --- checkouts as people have them ----------------------------------------------------------


def test_local_commits_on_top_of_the_tag(upstream: Upstream) -> None:
    text = (upstream.checkout / MEMORY).read_text()
    (upstream.checkout / MEMORY).write_text("import os\n" + text)
    commit(upstream.checkout, "local: mine")
    outcome = applied(upstream, upstream.checkout)
    assert len(outcome.commits) == 4
    assert {path for _, path in outcome.drifted} == {MEMORY}
    assert git(upstream.checkout, "log", "--format=%s", "-1", "HEAD~4") == "local: mine"


def test_a_local_commit_in_the_way_is_named(upstream: Upstream) -> None:
    text = (upstream.checkout / MEMORY).read_text()
    (upstream.checkout / MEMORY).write_text(text.replace("return 3\n", "return 4711\n"))
    commit(upstream.checkout, "local: mine")
    short = git(upstream.checkout, "rev-parse", "--short=12", "HEAD")
    refused(
        upstream,
        HookError,
        rf"hunk 1 of 2 .*, because your commit {short} \('local: mine'\) changes it",
    )


def test_upstreams_own_commits_before_the_tag_are_not_yours(upstream: Upstream) -> None:
    # An official wheel can be older than its tag.
    text = (upstream.checkout / MEMORY).read_text()
    (upstream.checkout / MEMORY).write_text(text.replace("return 3\n", "return 4711\n"))
    commit(upstream.checkout, "the release's last one")
    git(upstream.checkout, "tag", "--force", NAME)
    with pytest.raises(HookError, match="hunk 1 of 2") as caught:
        applied(upstream, upstream.checkout)
    assert "your commit" not in str(caught.value)


def test_sources_with_foreign_line_ends(upstream: Upstream) -> None:
    for name in (MEMORY, "torch/cuda/__init__.py"):
        path = upstream.checkout / name
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    commit(upstream.checkout, "unpacked elsewhere")
    refused(upstream, HookError, "because its lines end in CRLF")


def test_files_with_foreign_line_ends(upstream: Upstream) -> None:
    path = upstream.checkout / MEMORY
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    refused(
        upstream,
        DirtySourceError,
        r"by their line ends, CRLF \(torch/cuda/memory.py\)",
    )
    git(upstream.checkout, "checkout", "--force", "HEAD", "--", ".")
    assert len(applied(upstream, upstream.checkout).commits) == 4


def test_line_ends_and_a_change_are_a_change(upstream: Upstream) -> None:
    path = upstream.checkout / MEMORY
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n").replace(b"return 3", b"return 4"))
    refused(upstream, DirtySourceError, "not committed")


def test_a_mode_is_a_change(upstream: Upstream) -> None:
    (upstream.checkout / MEMORY).chmod(0o755)
    refused(upstream, DirtySourceError, "not committed")


def test_a_shallow_clone(upstream: Upstream, tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=1", upstream.checkout.as_uri(), str(shallow))
    assert applied(upstream, shallow).commit == applied(upstream, upstream.checkout).commit
    # And as the source of another.
    git(shallow, "reset", "--quiet", "--hard", "HEAD~4")
    assert len(applied(upstream, shallow, into=tmp_path / "other").commits) == 4


@pytest.mark.parametrize("folder", ["empty", "missing"])
def test_a_submodule_that_was_not_fetched(upstream: Upstream, folder: str) -> None:
    checkout = upstream.checkout
    (checkout / ".gitmodules").write_text(
        '[submodule "x"]\n\tpath = third_party/x\n\turl = https://example.invalid/x\n'
    )
    git(checkout, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},third_party/x")
    git(checkout, "add", ".gitmodules")
    git(checkout, "commit", "--quiet", "--message", "submodule")
    if folder == "empty":
        (checkout / "third_party/x").mkdir(parents=True)
    outcome = applied(upstream, checkout)
    assert len(outcome.commits) == 4
    assert git(checkout, "ls-tree", "HEAD", "third_party/x").startswith("160000 ")
    reverse(upstream.tag, checkout)


def test_a_path_that_names_a_variable_leads_nowhere_else(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "a $place"
    git(tmp_path, "clone", "--quiet", str(upstream.checkout), str(odd))
    monkeypatch.setenv("place", "nowhere")
    with pytest.raises(SourceError, match="rename the directory"):
        applied(upstream, odd)
    monkeypatch.delenv("place")
    assert len(applied(upstream, odd).commits) == 4


def test_a_path_with_spaces_and_quotes(upstream: Upstream, tmp_path: Path) -> None:
    odd = tmp_path / 'it\'s a "path": with $everything'
    git(tmp_path, "clone", "--quiet", str(upstream.checkout), str(odd))
    assert len(applied(upstream, odd).commits) == 4
    reverse(upstream.tag, odd)
    other = odd.with_name("made from it")
    assert len(applied(upstream, odd, into=other).commits) == 4


# --- what it does ---------------------------------------------------------------------------


def test_in_place_makes_one_commit_for_the_runtime_and_one_for_each_hook(
    upstream: Upstream,
) -> None:
    outcome = applied(upstream, upstream.checkout)
    subjects = git(upstream.checkout, "log", "--reverse", "--format=%s", f"{NAME}..").split("\n")
    assert subjects == [
        "Large Model Support: the runtime",
        "cuda: change two functions",
        "cuda: change one of them again",
        "cuda: import the new module",
    ]
    assert outcome.commits == tuple(subjects)
    assert outcome.commit == git(upstream.checkout, "rev-parse", "HEAD")
    assert "return 333\n" in (upstream.checkout / MEMORY).read_text()
    runtime = upstream.patches / "runtime"
    for path in runtime.rglob("*.*"):
        patched = upstream.checkout / path.relative_to(runtime)
        assert patched.read_bytes() == path.read_bytes()
    assert git(upstream.checkout, "status", "--porcelain", "--ignored") == ""
    assert git(upstream.checkout, "rev-parse", "--abbrev-ref", "HEAD") == "main"


def test_the_same_base_gives_the_same_commits_whatever_the_configuration(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    git(tmp_path, "clone", "--quiet", str(upstream.checkout), str(other))
    archive = tarball(upstream, tmp_path / "s.tar.gz")
    first = applied(upstream, upstream.checkout)
    unpacked = applied(upstream, archive, into=tmp_path / "first")

    # Everything that a user's configuration could do to a commit.
    trap = tmp_path / "trap"
    trap.mkdir()
    for hook in ("applypatch-msg", "pre-applypatch", "commit-msg", "post-commit"):
        (trap / hook).write_text("#!/bin/sh\nexit 1\n")
        (trap / hook).chmod(0o755)
    configuration = tmp_path / "gitconfig"
    configuration.write_text(
        "[user]\nname = Someone Else\nemail = else@example.org\n"
        "[commit]\ngpgSign = true\n[gpg]\nprogram = /bin/false\n"
        f"[core]\nhooksPath = {trap}\nautocrlf = true\nwhitespace = trailing-space\n"
        "[apply]\nwhitespace = fix\nignoreWhitespace = change\n"
        "[am]\nthreeWay = true\nkeepcr = true\nmessageId = true\n"
        "[i18n]\ncommitEncoding = ISO-8859-1\n[mailinfo]\nscissors = true\n"
        "[color]\nui = always\n[status]\nshowUntrackedFiles = all\nshowStash = true\n"
    )
    (other / "version.txt").write_text("work in progress\n")
    git(other, "-c", "user.name=A", "-c", "user.email=a@example.org", "stash", "--quiet")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(configuration))
    monkeypatch.setenv("GIT_AUTHOR_DATE", "2001-01-01T00:00:00Z")
    monkeypatch.setenv("GIT_COMMITTER_NAME", "Nobody")
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    assert applied(upstream, other).commit == first.commit
    assert applied(upstream, archive, into=tmp_path / "second").commit == unpacked.commit


def test_no_identity_at_all_is_enough(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = tmp_path / "gitconfig"
    configuration.write_text("[user]\nuseConfigOnly = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(configuration))
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    for variable in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "EMAIL", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    outcome = applied(upstream, tarball(upstream, tmp_path / "s.tar.gz"), into=tmp_path / "new")
    assert len(outcome.commits) == 4


def test_inherited_git_variables_do_not_lead_elsewhere(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    git(elsewhere, "init", "--quiet")
    monkeypatch.setenv("GIT_DIR", str(elsewhere / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(elsewhere))
    monkeypatch.setenv("GIT_INDEX_FILE", str(elsewhere / "index"))
    outcome = applied(upstream, upstream.checkout)
    assert git(upstream.checkout, "rev-parse", "HEAD") == outcome.commit
    assert os.environ["GIT_DIR"] == str(elsewhere / ".git")
    assert sorted(os.listdir(elsewhere)) == [".git"]


@pytest.mark.parametrize("autocrlf", ["true", "input", "false"])
def test_a_checkout_with_converted_line_ends(
    upstream: Upstream, tmp_path: Path, autocrlf: str
) -> None:
    plain = applied(upstream, tarball(upstream, tmp_path / "s.tar.gz"), into=tmp_path / "plain")
    other = converting_clone(upstream, tmp_path / "other", autocrlf)
    applied(upstream, other)
    assert tree(other) == tree(plain.directory)
    assert git(other, "status", "--porcelain") == ""


@pytest.mark.parametrize("kind", ["checkout", "bare", "url", "tar.gz", "tar.xz", "nothing"])
def test_every_kind_of_source_gives_the_same_files(
    upstream: Upstream, tmp_path: Path, kind: str
) -> None:
    into = tmp_path / "with a space" / "new"
    into.parent.mkdir()
    source: object = None
    if kind == "checkout":
        # Its own changes stay out of it: what counts is the tag.
        (upstream.checkout / MEMORY).write_text("changed\n")
        source = upstream.checkout
    elif kind == "bare":
        source = tmp_path / "mirror.git"
        git(tmp_path, "clone", "--quiet", "--mirror", str(upstream.checkout), str(source))
    elif kind == "url":
        source = upstream.checkout.as_uri()
    elif kind.startswith("tar"):
        source = tarball(upstream, tmp_path / f"source.{kind}")
    outcome = applied(upstream, source, into=into)
    assert outcome.directory == into
    git(upstream.checkout, "reset", "--quiet", "--hard")
    applied(upstream, upstream.checkout)
    assert tree(into) == tree(upstream.checkout)
    assert git(into, "status", "--porcelain", "--ignored") == ""
    assert os.listdir(into.parent) == ["new"]


def test_without_a_directory_a_tarball_goes_to_one_named_after_the_tag(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workplace = tmp_path / "workplace"
    workplace.mkdir()
    monkeypatch.chdir(workplace)
    source = tarball(upstream, tmp_path / "source.tar.gz")
    assert applied(upstream, source).directory == Path(f"pytorch-{NAME}")
    assert applied(upstream).nothing_to_do
    reverse(upstream.tag, Path(f"pytorch-{NAME}"))
    assert len(applied(upstream).commits) == 4


def test_a_checkout_without_the_tag_is_taken_as_it_is(upstream: Upstream, tmp_path: Path) -> None:
    git(upstream.checkout, "tag", "--delete", NAME)
    outcome = applied(upstream, upstream.checkout, into=tmp_path / "new")
    assert len(outcome.commits) == 4


def test_a_partial_clone_where_the_server_offers_one(upstream: Upstream, tmp_path: Path) -> None:
    git(upstream.checkout, "config", "uploadpack.allowFilter", "true")
    (upstream.checkout / MEMORY).write_text("old\n")
    git(upstream.checkout, "commit", "--quiet", "--all", "--amend", "--message=old")
    git(upstream.checkout, "reset", "--quiet", "--hard", NAME)
    outcome = applied(upstream, upstream.checkout.as_uri(), into=tmp_path / "new")
    assert git(tmp_path / "new", "config", "remote.origin.partialclonefilter") == "blob:none"
    assert git(tmp_path / "new", "rev-list", "--count", "HEAD") == "5"
    reverse(upstream.tag, tmp_path / "new")
    again = applied(upstream, tmp_path / "new")
    assert again.commit == outcome.commit


def test_a_detached_head_and_a_linked_worktree(upstream: Upstream, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    git(upstream.checkout, "worktree", "add", "--quiet", "--detach", str(linked), NAME)
    outcome = applied(upstream, linked)
    assert git(linked, "rev-parse", "HEAD") == outcome.commit
    assert git(upstream.checkout, "rev-parse", "HEAD") == upstream.tag.git_commit


def test_one_tarball_becomes_the_same_commit_wherever_it_is_unpacked(
    upstream: Upstream, tmp_path: Path
) -> None:
    first = applied(upstream, tarball(upstream, tmp_path / "a.tar.gz"), into=tmp_path / "1")
    other = tarball(upstream, tmp_path / "b.tar.xz", top="pytorch")
    assert applied(upstream, other, into=tmp_path / "2").commit == first.commit


def test_a_tarball_keeps_files_that_its_own_ignore_rules_name(
    upstream: Upstream, tmp_path: Path
) -> None:
    (upstream.checkout / "kept.log").write_text("kept\n")
    git(upstream.checkout, "add", "--force", "kept.log")
    commit(upstream.checkout, "an ignored file under git")
    applied(upstream, tarball(upstream, tmp_path / "s.tar.gz"), into=tmp_path / "new")
    assert git(tmp_path / "new", "ls-files", "kept.log") == "kept.log"


def test_twice_says_so_and_does_nothing(upstream: Upstream) -> None:
    first = applied(upstream, upstream.checkout)
    before = snapshot(upstream.checkout)
    second = applied(upstream, upstream.checkout)
    assert second.nothing_to_do
    assert second.commit == first.commit
    assert snapshot(upstream.checkout) == before


def test_check_changes_nothing(upstream: Upstream) -> None:
    before = snapshot(upstream.checkout)
    outcome = applied(upstream, upstream.checkout, check=True)
    assert len(outcome.commits) == 4
    assert snapshot(upstream.checkout) == before
    assert git(upstream.checkout, "fsck", "--unreachable", "--no-reflogs") == ""


def test_check_does_not_even_refresh_the_index(upstream: Upstream) -> None:
    os.utime(upstream.checkout / MEMORY, (0, 0))
    index = upstream.checkout / ".git/index"
    before = index.read_bytes()
    applied(upstream, upstream.checkout, check=True)
    assert index.read_bytes() == before


def test_check_of_a_tarball_leaves_nothing(upstream: Upstream, tmp_path: Path) -> None:
    source = tarball(upstream, tmp_path / "s.tar.gz")
    place = tmp_path / "place"
    place.mkdir()
    assert len(applied(upstream, source, into=place / "new", check=True).commits) == 4
    assert os.listdir(place) == []


def test_a_file_that_drifted_is_told_when_the_hooks_still_apply(upstream: Upstream) -> None:
    path = upstream.checkout / MEMORY
    path.write_text("# a line of upstream's\n" + path.read_text())
    commit(upstream.checkout, "drift")
    outcome = applied(upstream, upstream.checkout)
    assert [path for _, path in outcome.drifted] == [MEMORY, MEMORY]
    assert "return 333\n" in path.read_text()


def test_no_drift_is_told_when_there_is_none(upstream: Upstream) -> None:
    assert applied(upstream, upstream.checkout).drifted == ()


# --- taking it back -------------------------------------------------------------------------


def test_reverse_restores_the_checkout(upstream: Upstream) -> None:
    before = snapshot(upstream.checkout)
    before.pop("in .git")
    applied(upstream, upstream.checkout)
    outcome = reverse(upstream.tag, upstream.checkout)
    after = snapshot(upstream.checkout)
    after.pop("in .git")
    assert len(outcome.commits) == 4
    assert after == before
    assert not (upstream.checkout / "torch/csrc").exists()


def test_reverse_keeps_untracked_files(upstream: Upstream) -> None:
    applied(upstream, upstream.checkout)
    (upstream.checkout / "notes.txt").write_text("mine\n")
    reverse(upstream.tag, upstream.checkout)
    assert (upstream.checkout / "notes.txt").read_text() == "mine\n"


def test_reverse_check_changes_nothing(upstream: Upstream) -> None:
    applied(upstream, upstream.checkout)
    before = snapshot(upstream.checkout)
    assert len(reverse(upstream.tag, upstream.checkout, check=True).commits) == 4
    assert snapshot(upstream.checkout) == before


def test_reverse_of_a_plain_checkout(upstream: Upstream) -> None:
    with pytest.raises(NotAppliedError, match="carries no LMS patches"):
        reverse(upstream.tag, upstream.checkout)


def test_reverse_with_commits_on_top(upstream: Upstream) -> None:
    applied(upstream, upstream.checkout)
    (upstream.checkout / "mine.txt").write_text("mine\n")
    commit(upstream.checkout, "mine")
    before = snapshot(upstream.checkout)
    with pytest.raises(NotAppliedError, match="1 commit on top"):
        reverse(upstream.tag, upstream.checkout)
    assert snapshot(upstream.checkout) == before


def test_reverse_of_a_clone_that_does_not_reach_the_base(
    upstream: Upstream, tmp_path: Path
) -> None:
    applied(upstream, upstream.checkout)
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=4", upstream.checkout.as_uri(), str(shallow))
    with pytest.raises(NotAppliedError, match="git fetch --deepen=1"):
        reverse(upstream.tag, shallow)
    git(shallow, "fetch", "--quiet", "--deepen=1")
    assert reverse(upstream.tag, shallow).commit == upstream.tag.git_commit


def test_reverse_of_another_tags_patches(upstream: Upstream) -> None:
    applied(upstream, upstream.checkout)
    with pytest.raises(NotAppliedError, match=f"carries the patches of {NAME}, not of v9"):
        reverse(make_tag("v9.9.9"), upstream.checkout)


def test_reverse_of_a_dirty_checkout(upstream: Upstream) -> None:
    applied(upstream, upstream.checkout)
    (upstream.checkout / MEMORY).write_text("mine\n")
    with pytest.raises(DirtySourceError, match=MEMORY):
        reverse(upstream.tag, upstream.checkout)
    assert (upstream.checkout / MEMORY).read_text() == "mine\n"


# --- what it refuses ------------------------------------------------------------------------


def refused(upstream: Upstream, error: type[LmsbuildError], match: str, **options: object) -> None:
    """In place: fails, and leaves the checkout as it was."""
    before = snapshot(upstream.checkout)
    with pytest.raises(error, match=match):
        applied(upstream, upstream.checkout, **options)
    assert snapshot(upstream.checkout) == before


def test_another_version(upstream: Upstream) -> None:
    (upstream.checkout / "version.txt").write_text("9.9.0a0\n")
    commit(upstream.checkout, "next")
    refused(upstream, WrongSourceError, rf"is PyTorch 9\.9\.0a0, not {NAME}")


def test_another_release_of_the_same_branch(upstream: Upstream) -> None:
    (upstream.checkout / "README").write_text("x\n")
    commit(upstream.checkout, "next")
    git(upstream.checkout, "tag", "v9.8.8")
    refused(upstream, WrongSourceError, rf"is PyTorch v9\.8\.8, not {NAME}")


def test_a_branch_whose_version_file_stays_at_its_first_release(upstream: Upstream) -> None:
    (upstream.checkout / "version.txt").write_text("9.8.0a0\n")
    commit(upstream.checkout, "as upstream's release branches have it")
    assert len(applied(upstream, upstream.checkout).commits) == 4


def version_in_setup(upstream: Upstream, version: str) -> None:
    """As releases before 1.4 have it."""
    git(upstream.checkout, "rm", "--quiet", "version.txt")
    (upstream.checkout / "setup.py").write_text(f"name = 'torch'\nversion = '{version}'\n")
    commit(upstream.checkout, "before 1.4")


def test_the_version_is_in_setup(upstream: Upstream, tmp_path: Path) -> None:
    version_in_setup(upstream, f"{VERSION}a0")
    new = applied(upstream, tarball(upstream, tmp_path / "s.tar.gz"), into=tmp_path / "new")
    assert len(new.commits) == 4
    assert len(applied(upstream, upstream.checkout).commits) == 4


def test_another_version_in_setup(upstream: Upstream) -> None:
    version_in_setup(upstream, "9.9.0a0")
    refused(upstream, WrongSourceError, rf"is PyTorch 9\.9\.0a0, not {NAME}")


def test_not_pytorch(upstream: Upstream) -> None:
    git(upstream.checkout, "rm", "--quiet", "version.txt")
    commit(upstream.checkout, "something else")
    refused(upstream, WrongSourceError, "is not PyTorch")


@pytest.mark.parametrize("staged", [False, True])
def test_a_dirty_checkout(upstream: Upstream, staged: bool) -> None:
    (upstream.checkout / MEMORY).write_text("mine\n")
    if staged:
        git(upstream.checkout, "add", MEMORY)
    refused(upstream, DirtySourceError, rf"not committed \({MEMORY}\)")


def test_untracked_files_elsewhere_are_no_obstacle(upstream: Upstream) -> None:
    (upstream.checkout / "notes.txt").write_text("mine\n")
    assert len(applied(upstream, upstream.checkout).commits) == 4


def test_a_file_of_the_users_where_the_runtime_goes(upstream: Upstream) -> None:
    (upstream.checkout / "torch/cuda/lms.py").write_text("mine\n")
    refused(upstream, DirtySourceError, "torch/cuda/lms.py")


def test_an_unfinished_merge(upstream: Upstream) -> None:
    (upstream.checkout / ".git/MERGE_HEAD").write_text(f"{upstream.tag.git_commit}\n")
    refused(upstream, DirtySourceError, "middle of a merge")


@pytest.mark.parametrize("check", [False, True])
def test_a_hook_that_no_longer_applies_names_file_and_hunk(upstream: Upstream, check: bool) -> None:
    path = upstream.checkout / MEMORY
    path.write_text(path.read_text().replace("return 15\n", "return 16 - 1\n"))
    commit(upstream.checkout, "drift")
    refused(
        upstream,
        HookError,
        rf"^0001-.*\.patch does not apply to {MEMORY}, hunk 2 of 2 \(line \d+.*; .* was left",
        check=check,
    )


def test_a_hook_whose_file_is_gone(upstream: Upstream) -> None:
    git(upstream.checkout, "rm", "--quiet", "torch/cuda/__init__.py")
    commit(upstream.checkout, "drift")
    refused(upstream, HookError, r"0003-.*torch/cuda/__init__\.py \(does not exist\)")


def test_a_runtime_file_that_upstream_has_too(upstream: Upstream) -> None:
    (upstream.checkout / "torch/cuda/lms.py").write_text("upstream's\n")
    commit(upstream.checkout, "upstream has one now")
    refused(upstream, HookError, r"runtime does not apply to torch/cuda/lms\.py \(already exists\)")


def test_a_hook_that_fails_on_a_new_checkout_leaves_nothing(
    upstream: Upstream, tmp_path: Path
) -> None:
    (upstream.checkout / MEMORY).write_text("all new\n")
    commit(upstream.checkout, "drift")
    source = tarball(upstream, tmp_path / "s.tar.gz")
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(HookError, match=f"{place / 'new'} was left as it was"):
        applied(upstream, source, into=place / "new")
    assert os.listdir(place) == []


def test_git_am_that_fails_on_its_way_is_undone(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(upstream.checkout)
    real = lmsgit.apply_mails

    def broken(repo: object, mbox: bytes, committer: object) -> None:
        # The last mail is cut in the middle, as when the disk fills up.
        real(repo, mbox[: mbox.rindex(b"@@ -")] + b"@@ -1 +1 @@\n-x\n+y\n", committer)  # type: ignore[arg-type]

    monkeypatch.setattr(lmsgit, "apply_mails", broken)
    with pytest.raises(LmsbuildError, match="git am failed"):
        applied(upstream, upstream.checkout)
    after = snapshot(upstream.checkout)
    before.pop("in .git")
    listing = after.pop("in .git")
    assert after == before
    assert b"rebase-apply" not in listing


def test_other_files_than_rehearsed_are_not_kept(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(upstream.checkout)
    other = Rehearsal(tree="0" * 40, drifted=((),) * 4)
    monkeypatch.setattr("lmsbuild.checkout.apply.rehearse", lambda *_: other)
    with pytest.raises(HookError, match="made other files than"):
        applied(upstream, upstream.checkout)
    after = snapshot(upstream.checkout)
    before.pop("in .git")
    after.pop("in .git")
    assert after == before


def test_interrupted_in_the_middle_of_git_am(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(upstream.checkout)
    real = lmsgit.run

    def interrupted(repo: object, *arguments: str, **options: object) -> str:
        output = real(repo, *arguments, **options)  # type: ignore[arg-type]
        if arguments[0] == "am" and "--abort" not in arguments:
            raise KeyboardInterrupt
        return output

    monkeypatch.setattr(lmsgit, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        applied(upstream, upstream.checkout)
    after = snapshot(upstream.checkout)
    assert after["HEAD"] == before["HEAD"]
    assert after["status"] == b""
    assert not (upstream.checkout / "torch/csrc").exists()


def test_other_patches_are_there_already(upstream: Upstream) -> None:
    applied(upstream, upstream.checkout)
    (upstream.patches / "runtime/torch/cuda/lms.py").write_text("# newer\n")
    refused(upstream, OtherPatchesError, f"lmsbuild apply {NAME} --reverse --source")


def test_the_target_exists(upstream: Upstream, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "mine.txt").write_text("mine\n")
    with pytest.raises(TargetExistsError, match="exists already"):
        applied(upstream, upstream.checkout, into=target)
    assert os.listdir(target) == ["mine.txt"]


def test_an_empty_target_is_filled(upstream: Upstream, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    applied(upstream, upstream.checkout, into=target)
    assert (target / "version.txt").is_file()


def test_a_patched_target_is_done_already(upstream: Upstream, tmp_path: Path) -> None:
    applied(upstream, upstream.checkout, into=tmp_path / "new")
    assert applied(upstream, upstream.checkout, into=tmp_path / "new").nothing_to_do


def test_the_targets_parent_is_missing(upstream: Upstream, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        applied(upstream, upstream.checkout, into=tmp_path / "no" / "new")


def test_no_such_source(upstream: Upstream) -> None:
    with pytest.raises(SourceError, match="no such directory or file, and not a URL"):
        applied(upstream, "nowhere")


def test_a_directory_without_git(upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(SourceError, match="not a git repository"):
        applied(upstream, tmp_path / "plain")


def test_a_repository_without_a_commit(upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    git(tmp_path / "new", "init", "--quiet")
    with pytest.raises(SourceError, match="no commit yet"):
        applied(upstream, tmp_path / "new")


def test_a_url_without_a_repository(upstream: Upstream, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(SourceError, match="cannot clone"):
        applied(upstream, f"file://{tmp_path}/nowhere.git", into=place / "new")
    assert os.listdir(place) == []


def test_a_url_without_the_tag(upstream: Upstream, tmp_path: Path) -> None:
    git(upstream.checkout, "tag", "--delete", NAME)
    with pytest.raises(SourceError, match=f"has no tag {NAME}"):
        applied(upstream, upstream.checkout.as_uri(), into=tmp_path / "new")


def test_a_url_that_would_run_a_command(upstream: Upstream, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot clone"):
        applied(upstream, "ext::sh -c touch% /tmp/never", into=tmp_path / "new")


def test_a_truncated_tarball(upstream: Upstream, tmp_path: Path) -> None:
    for kind in ("tar.gz", "tar.xz"):
        whole = tarball(upstream, tmp_path / f"s.{kind}")
        whole.write_bytes(whole.read_bytes()[:-200])
        place = tmp_path / kind
        place.mkdir()
        with pytest.raises(SourceError, match=r"truncated or damaged|not a readable tarball"):
            applied(upstream, whole, into=place / "new")
        assert os.listdir(place) == []


@pytest.mark.parametrize("kind", ["tar.gz", "tar.xz", "tar.bz2"])
def test_a_tarball_with_a_wrong_byte(kind: str, upstream: Upstream, tmp_path: Path) -> None:
    """What is unpacked is what was packed: each format ends with a checksum."""
    path = tarball(upstream, tmp_path / f"s.{kind}")
    whole = path.read_bytes()
    origin.unpack(path, tmp_path / "whole")
    for number, at in enumerate(range(20, len(whole), len(whole) // 25)):
        path.write_bytes(flipped(whole, at))
        into = tmp_path / str(number)
        try:
            origin.classify(str(path))
            origin.unpack(path, into)
        except (SourceError, UnsafeMemberError):
            continue
        assert contents(into) == contents(tmp_path / "whole")
    path.write_bytes(whole[:41])
    with pytest.raises(SourceError):
        origin.classify(str(path))


def contents(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_a_file_that_is_no_tarball(upstream: Upstream, tmp_path: Path) -> None:
    path = tmp_path / "page.tar.gz"
    path.write_text("<html>404</html>")
    with pytest.raises(SourceError, match="not a readable tarball"):
        applied(upstream, path, into=tmp_path / "new")


def test_a_tarball_of_something_else(upstream: Upstream, tmp_path: Path) -> None:
    git(upstream.checkout, "rm", "--quiet", "version.txt")
    commit(upstream.checkout, "something else")
    with pytest.raises(SourceError, match=r"holds no version\.txt"):
        applied(upstream, tarball(upstream, tmp_path / "s.tar.gz"), into=tmp_path / "new")


@pytest.mark.parametrize(
    "member",
    [
        ("top/../../evil", tarfile.REGTYPE, ""),
        ("/etc/evil", tarfile.REGTYPE, ""),
        ("top/link", tarfile.SYMTYPE, "../../evil"),
        ("top/link", tarfile.SYMTYPE, "/etc/passwd"),
        ("top/link", tarfile.LNKTYPE, "top/../../evil"),
        ("top/device", tarfile.CHRTYPE, ""),
    ],
)
def test_a_tarball_that_leads_out_of_its_folder(
    upstream: Upstream, tmp_path: Path, member: tuple[str, bytes, str]
) -> None:
    path = tmp_path / "evil.tar.gz"
    name, kind, link = member
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, link
        archive.addfile(info, io.BytesIO())
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(UnsafeMemberError):
        applied(upstream, path, into=place / "new")
    assert os.listdir(place) == []


def test_git_files_in_a_tarball_are_left_out(upstream: Upstream, tmp_path: Path) -> None:
    path = tmp_path / "s.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(upstream.checkout, arcname="top")
        info = tarfile.TarInfo("top/third_party/x/.git")
        info.size = 4
        archive.addfile(info, io.BytesIO(b"evil"))
    applied(upstream, path, into=tmp_path / "new")
    assert git(tmp_path / "new", "rev-list", "--count", "HEAD") == "5"
    assert not (tmp_path / "new/third_party").exists()


def test_links_in_a_tarball_are_kept(upstream: Upstream, tmp_path: Path) -> None:
    (upstream.checkout / "link.py").symlink_to(MEMORY)
    commit(upstream.checkout, "a link")
    path = tmp_path / "s.tar.gz"
    with tarfile.open(tarball(upstream, path)) as archive:
        members = {member.name: member for member in archive}
    assert members["any-top-1.0/link.py"].issym()
    applied(upstream, path, into=tmp_path / "new")
    assert os.readlink(tmp_path / "new/link.py") == MEMORY


def test_a_disk_that_fills_up_while_unpacking(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tarball(upstream, tmp_path / "s.tar.gz")
    place = tmp_path / "place"
    place.mkdir()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "extract", full)
    with pytest.raises(OSError, match="No space left"):
        applied(upstream, source, into=place / "new")
    assert os.listdir(place) == []


def test_git_on_a_full_disk(upstream: Upstream, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    git_itself = shutil.which("git")
    # A git whose `am` finds the disk full.
    (tools / "git").write_text(
        f"#!/bin/sh\n"
        f'case " $* " in *" am --quiet "*)\n'
        f'  echo "fatal: write error: No space left on device" >&2; exit 128;;\n'
        f'esac\nexec {git_itself} "$@"\n'
    )
    (tools / "git").chmod(0o755)
    before = snapshot(upstream.checkout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        with pytest.raises(NoSpaceError, match="no disk space left"):
            applied(upstream, upstream.checkout)
    after = snapshot(upstream.checkout)
    assert b"rebase-apply" not in after.pop("in .git")
    before.pop("in .git")
    assert after == before


def test_a_network_that_fails_while_cloning(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing listens on the discard port of this machine.
    for proxy in ("http_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(NetworkError, match="check the network"):
        applied(upstream, "http://127.0.0.1:9/pytorch.git", into=place / "new")
    assert os.listdir(place) == []


def test_two_at_once_in_one_checkout(upstream: Upstream) -> None:
    lock = upstream.checkout / ".git/lmsbuild.lock"
    with exclusive(lock, upstream.checkout), pytest.raises(BusyError, match="another lmsbuild"):
        applied(upstream, upstream.checkout)
    assert not lock.exists()
    assert len(applied(upstream, upstream.checkout).commits) == 4


def test_two_at_once_on_one_new_directory(upstream: Upstream, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with (
        exclusive(place / ".new.lmsbuild.lock", place),
        pytest.raises(BusyError, match=str(place / "new")),
    ):
        applied(upstream, upstream.checkout, into=place / "new")
    assert os.listdir(place) == []


def test_a_lock_whose_owner_died_holds_nobody_up(upstream: Upstream) -> None:
    lock = upstream.checkout / ".git/lmsbuild.lock"
    lock.write_text("")
    assert len(applied(upstream, upstream.checkout).commits) == 4


def test_plain_git_can_undo_what_was_applied(upstream: Upstream) -> None:
    applied(upstream, upstream.checkout)
    done = subprocess.run(
        ["git", "-C", str(upstream.checkout), "fsck", "--strict"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
