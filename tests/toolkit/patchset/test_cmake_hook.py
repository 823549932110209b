"""Hooks for CMake's files: no wheel carries those, and of some releases only the wheel is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.state import Outcome
from lmsbuild.cli.main import main
from lmsbuild.errors import HookError
from lmsbuild.patchset.cmake_hook import is_unproven, unproven
from lmsbuild.patchset.export import export
from lmsbuild.patchset.series import load_hooks, load_series
from lmsbuild.registry import load_registry
from toolkit.checkout.test_refresh import files, refreshed
from toolkit.helpers.fake_release import NEW, OLD, Releases, git
from toolkit.helpers.fake_release import releases as releases
from toolkit.helpers.fake_torch import CUDA_INIT
from toolkit.helpers.fake_torch import fake as fake
from toolkit.helpers.fake_torch import offline as offline
from toolkit.helpers.fake_upstream import Upstream, commit, tree
from toolkit.helpers.fake_upstream import upstream as upstream
from toolkit.port.test_port import ported, source_tree

CMAKE = "torch/CMakeLists.txt"
ANCHOR = "install(TARGETS torch_python)"
SUBJECT = "torch: build the runtime"
NAME = "0004-torch-build-the-runtime.patch"
HOOK = f"""\
From {"0" * 40} Mon Sep 17 00:00:00 2001
From: A <a@example.org>
Date: Thu, 1 Jan 2026 00:00:00 +0000
Subject: [PATCH] {SUBJECT}

Why.

diff --git a/{CMAKE} b/{CMAKE}
--- a/{CMAKE}
+++ b/{CMAKE}
@@ -70,2 +70,3 @@
 {ANCHOR}
+include(lms.cmake)
 last()
"""


@pytest.fixture
def whole(upstream: Upstream) -> Upstream:
    """The stand-in with files of the build, and a hook for one that nobody has compared."""
    (upstream.checkout / "CMakeLists.txt").write_text("project(x)\n")
    (upstream.checkout / CMAKE).write_text(f"first()\n{ANCHOR}\nlast()\n")
    commit(upstream.checkout, "upstream: cmake")
    add_hook(upstream)
    return upstream


def add_hook(upstream: Upstream) -> None:
    (upstream.hooks / NAME).write_text(HOOK)
    with (upstream.hooks / "series").open("a") as series:
        series.write(f"{NAME}\n")


def put_on(upstream: Upstream, **options: object) -> Outcome:
    return apply(
        upstream.tag,
        upstream_url="",
        given_source=str(upstream.checkout),
        patches=upstream.patches,
        **options,  # type: ignore[arg-type]
    )


def hook_of(upstream: Upstream) -> str:
    return (upstream.hooks / NAME).read_text()


def test_it_is_applied_where_it_fits(whole: Upstream) -> None:
    outcome = put_on(whole)
    assert outcome.commits[-1] == SUBJECT
    assert outcome.left_out == ()
    assert f"{ANCHOR}\ninclude(lms.cmake)\n" in (whole.checkout / CMAKE).read_text()
    assert put_on(whole).nothing_to_do


def test_the_release_proves_it(whole: Upstream) -> None:
    put_on(whole)
    refreshed(whole)
    (hook,) = (hook for hook in load_hooks(whole.tag, whole.patches) if hook.name == NAME)
    assert not is_unproven(hook)
    assert [hunk.old_start for hunk in hook.files[0].hunks] == [2]
    assert git(whole.checkout, "rev-parse", f"HEAD~4:{CMAKE}").startswith(hook.files[0].old_blob)


@pytest.mark.parametrize("check", [True, False])
def test_it_is_left_out_where_it_does_not_fit(whole: Upstream, check: bool) -> None:
    (whole.checkout / CMAKE).write_text("another()\n")
    commit(whole.checkout, "upstream: moved")
    outcome = put_on(whole, check=check)
    assert SUBJECT not in outcome.commits
    assert len(outcome.commits) == 4
    assert outcome.left_out == ((NAME, "it does not fit this release's files"),)
    if check:
        return
    assert (whole.checkout / CMAKE).read_text() == "another()\n"
    # What was left out is neither missing nor stale.
    assert put_on(whole).nothing_to_do
    refreshed(whole)
    assert hook_of(whole) == HOOK
    assert refreshed(whole, check=True).changed == ()


def test_a_proven_one_has_to_fit(whole: Upstream) -> None:
    (whole.hooks / NAME).write_text(HOOK.replace("--- a/", "index 1234567..89abcde\n--- a/", 1))
    (whole.checkout / CMAKE).write_text("another()\n")
    commit(whole.checkout, "upstream: moved")
    with pytest.raises(HookError, match=f"{NAME} does not apply to {CMAKE}"):
        put_on(whole)


def test_another_hook_that_does_not_fit_is_told(whole: Upstream) -> None:
    (whole.checkout / "torch/cuda/memory.py").write_text("another = 1\n")
    commit(whole.checkout, "upstream: moved")
    with pytest.raises(HookError, match=r"does not apply to torch/cuda/memory\.py"):
        put_on(whole)


@pytest.mark.parametrize("proven", [False, True])
def test_a_checkout_made_of_a_wheel(upstream: Upstream, proven: bool) -> None:
    add_hook(upstream)
    if proven:
        text = HOOK.replace("--- a/", "index 1234567..89abcde\n--- a/", 1)
        (upstream.hooks / NAME).write_text(text)
    before = hook_of(upstream)
    outcome = put_on(upstream)
    assert outcome.left_out == ((NAME, "this checkout has no files of the build"),)
    assert put_on(upstream).nothing_to_do
    refreshed(upstream)
    assert hook_of(upstream) == before
    assert refreshed(upstream, check=True).changed == ()
    assert files(upstream)


def test_the_exported_patch_has_proven_ones_only(whole: Upstream, tmp_path: Path) -> None:
    output = tmp_path / "all.patch"
    export(whole.tag, output, patches=whole.patches)
    assert SUBJECT not in output.read_text()
    put_on(whole)
    refreshed(whole)
    export(whole.tag, output, patches=whole.patches)
    plain = tmp_path / "plain"
    git(tmp_path, "clone", "--quiet", str(whole.checkout), str(plain))
    git(plain, "reset", "--quiet", "--hard", "HEAD~5")
    git(plain, "am", "--quiet", str(output))
    assert tree(plain) == tree(whole.checkout)


@pytest.mark.parametrize("with_source", [True, False])
def test_it_goes_to_the_next_release(releases: Releases, tmp_path: Path, with_source: bool) -> None:
    """Even if the old release's sources are there: the new one's are not."""
    folder = releases.patches / f"v{OLD}"
    (folder / NAME).write_text(HOOK)
    with (folder / "series").open("a") as series:
        series.write(f"{NAME}\n")
    sources = {}
    if with_source:
        old = source_tree(tmp_path / "old", OLD, CUDA_INIT)
        (old / "CMakeLists.txt").write_text("project(x)\n")
        (old / CMAKE).write_text(f"{ANCHOR}\nlast()\n")
        commit(old, "cmake")
        sources["old_source"] = str(old)
    result = ported(releases, tmp_path, **sources)
    assert [name for name, _ in result.hooks] == ["0001-offer-LMS.patch", NAME]
    assert result.skipped == (CMAKE,)
    assert (releases.patches / f"v{NEW}" / NAME).read_text() == HOOK


def test_the_command_says_what_is_not_in_the_patch(tmp_path: Path) -> None:
    for tag in load_registry():
        unproven = [mail.name for mail in load_hooks(tag) if is_unproven(mail)]
        output = str(tmp_path / tag.name)
        result = CliRunner().invoke(main, ["export", tag.name, "--output", output])
        assert result.exit_code == 0
        assert ("left out" in result.output) == bool(unproven)
        assert all(name in result.output for name in unproven)


def test_the_projects_own() -> None:
    """Every release's hook is the same, and what is proven of it is said."""
    hooks = {}
    for tag in load_registry():
        if tag.variant is None:
            *_, last = load_series(tag).mails
            hooks[tag] = last
    (proven,) = (mail for mail in hooks.values() if not is_unproven(mail))
    for tag, mail in hooks.items():
        assert tag.verified.hooks_source or mail == unproven(proven)
