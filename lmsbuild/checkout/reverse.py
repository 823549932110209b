"""Remove a tag's patches from a checkout."""

from __future__ import annotations

from pathlib import Path

from git import Repo

from lmsbuild.checkout.state import (
    SEARCH_DEPTH,
    SYNCED,
    Outcome,
    lms_commits,
    locked_checkout,
    require_clean,
    trailer,
)
from lmsbuild.errors import NotAppliedError
from lmsbuild.patchset.series import PATCH_TRAILER, TAG_TRAILER
from lmsbuild.registry import Tag
from lmsbuild.tools import git


def reverse(tag: Tag, directory: Path, *, check: bool = False) -> Outcome:
    """Removes the patches of ``tag``, so that the checkout is at its base commit again.

    Raises:
        NotAppliedError: they are not there, or have commits on top of them.
        DirtySourceError: there are changes that would be lost.
    """
    with git.session(), git.opened(directory) as repo, locked_checkout(repo, check=check):
        stack = lms_commits(repo)
        where = directory
        if not stack:
            raise _cannot_reverse(repo, where)
        found = {trailer(commit, TAG_TRAILER) for commit in stack}
        if found != {tag.name}:
            raise NotAppliedError(
                f"{where} carries the patches of {', '.join(sorted(map(str, found)))},"
                f" not of {tag.name}; name that tag"
            )
        require_clean(repo, where)
        below = git.first_parents(repo, len(stack) + 1)[len(stack) :]
        if not below:
            raise NotAppliedError(
                f"{where} holds no commit below the patches to go back to;"
                " if it is a shallow clone, run: git fetch --deepen=1"
            )
        commits = tuple(str(commit.summary) for commit in stack)
        if check:
            return Outcome(directory=where, commits=commits, commit="")
        git.reset(repo, below[0].hexsha)
        git.set_reference(repo, SYNCED, None)
        return Outcome(directory=where, commits=commits, commit=below[0].hexsha)


def _cannot_reverse(repo: Repo, where: Path) -> NotAppliedError:
    for above, commit in enumerate(git.first_parents(repo, SEARCH_DEPTH)):
        if trailer(commit, PATCH_TRAILER) is not None:
            return NotAppliedError(
                f"{where} has {above} commit{'s' if above > 1 else ''} on top of the LMS patches;"
                f" move them elsewhere first, then: git reset --hard HEAD~{above}"
            )
    return NotAppliedError(f"{where} carries no LMS patches; there is nothing to take back")
