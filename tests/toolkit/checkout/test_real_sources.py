"""The patches on the real sources of a release, as Debian's source package carries them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.refresh import refresh
from lmsbuild.checkout.reverse import reverse
from lmsbuild.checkout.state import Outcome
from lmsbuild.patchset.export import export
from lmsbuild.patchset.series import load_series
from lmsbuild.registry import Tag, load_registry
from lmsbuild.tools.cache import default_cache
from toolkit.ci.test_debian_source import debian_source
from toolkit.helpers.fake_upstream import git, tree

PACKAGE = "pytorch"
# Which Debian release packages which PyTorch release.
SUITES = {"1.13.1": "bookworm", "2.6.0": "trixie"}

pytestmark = pytest.mark.network


@pytest.fixture(scope="module", params=SUITES)
def tag(request: pytest.FixtureRequest) -> Tag:
    return load_registry().get(request.param)


@pytest.fixture(scope="module")
def tarball(tag: Tag) -> Path:
    suite = SUITES[tag.version]
    try:
        mirror = debian_source.find_mirror()
        path: Path = debian_source.fetch(
            PACKAGE, suite, default_cache() / f"debian-{suite}", mirror
        )
    except debian_source.Unavailable as error:
        pytest.skip(f"the real sources cannot be had: {error}")
    assert path.name.startswith(f"{PACKAGE}_{tag.version}+")
    return path


@pytest.fixture(scope="module")
def patched(tag: Tag, tarball: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    into = tmp_path_factory.mktemp("real") / "pytorch"
    yield apply(tag, upstream_url="", given_source=str(tarball), into=into)
    # 250 MB that pytest would otherwise keep for three runs.
    shutil.rmtree(into)


def test_every_patch_is_a_commit(tag: Tag, patched: Outcome) -> None:
    series = load_series(tag)
    subjects = git(patched.directory, "log", "--reverse", "--format=%s", "HEAD").splitlines()
    assert subjects[1:] == [mail.subject for mail in series.mails]


def test_the_hooks_were_made_against_these_very_files(patched: Outcome) -> None:
    assert patched.drifted == ()


def test_the_files_are_the_patched_ones(tag: Tag, patched: Outcome) -> None:
    for mail in load_series(tag).mails:
        for file in mail.files:
            assert (patched.directory / file.path).is_file()
            changed = git(patched.directory, "log", "--format=%s", "HEAD", "--", file.path)
            assert mail.subject in changed.splitlines()


def test_python_still_reads_what_the_hooks_touch(tag: Tag, patched: Outcome) -> None:
    touched = {file.path for mail in load_series(tag).mails for file in mail.files}
    python = sorted(path for path in touched if path.endswith(".py"))
    assert python
    for path in python:
        compile((patched.directory / path).read_text("utf-8"), path, "exec")


def test_the_exported_patch_gives_the_same_tree(tag: Tag, patched: Outcome, tmp_path: Path) -> None:
    output = tmp_path / "all.patch"
    export(tag, output)
    count = len(load_series(tag).mails)
    plain = tmp_path / "plain"
    git(patched.directory, "worktree", "add", "--quiet", "--detach", str(plain), f"HEAD~{count}")
    try:
        git(plain, "am", "--quiet", str(output))
        assert tree(plain) == tree(patched.directory)
    finally:
        git(patched.directory, "worktree", "remove", "--force", str(plain))


def test_back_and_forth_again(tag: Tag, patched: Outcome) -> None:
    before = git(patched.directory, "rev-parse", "HEAD")
    reverse(tag, patched.directory)
    assert git(patched.directory, "rev-parse", "HEAD") != before
    assert git(patched.directory, "status", "--porcelain") == ""
    again = apply(tag, upstream_url="", given_source=str(patched.directory))
    assert again.commit == before


def test_no_patch_file_is_stale(tag: Tag, patched: Outcome) -> None:
    assert refresh(load_registry(), patched.directory, check=True).changed == ()
