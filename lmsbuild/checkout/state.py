"""The state of a checkout: which patches it has, and whether it may be changed."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from git import Commit, Repo

from lmsbuild.errors import DirtySourceError, SourceError
from lmsbuild.patchset.series import PATCH_TRAILER
from lmsbuild.registry import Tag
from lmsbuild.tools import git
from lmsbuild.tools.lock import exclusive

# How many commits are searched for the patches. Other commits may be on top of them.
SEARCH_DEPTH = 500

# The commit that was checked out when the patch files and the commits were last the same. It is for
# this work tree only, and a clone does not copy it.
SYNCED = "refs/worktree/lmsbuild/synced"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What applying or reversing did, or with ``check`` would do.

    Attributes:
        directory: the checkout.
        commits: subjects of the commits made or taken back, in order; empty when there was
            nothing to do.
        commit: id of the commit checked out afterwards; empty after a mere check.
        drifted: hooks, and files that differ from those that the hook was made against, although
            the hook applies.
        left_out: CMake hooks that do not fit this checkout, with the reason.
    """

    directory: Path
    commits: tuple[str, ...]
    commit: str
    drifted: tuple[tuple[str, str], ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def nothing_to_do(self) -> bool:
        return not self.commits


def default_directory(tag: Tag) -> Path:
    """Where `apply` puts its checkout by default."""
    return Path(f"pytorch-{tag.name}")


@contextmanager
def locked_checkout(repo: Repo, *, check: bool) -> Iterator[None]:
    if repo.bare:
        raise SourceError(f"{repo.git_dir} has no files checked out; name a directory with --into")
    if check:
        # Nothing is written, so it works on a read-only checkout too.
        yield
        return
    with exclusive(Path(repo.git_dir) / "lmsbuild.lock", Path(repo.working_dir)):
        yield


def lms_commits(repo: Repo) -> list[Commit]:
    """The LMS commits at the top of what is checked out, newest first."""
    git.head(repo)
    commits = git.first_parents(repo, SEARCH_DEPTH)
    return list(itertools.takewhile(lambda commit: trailer(commit, PATCH_TRAILER), commits))


def trailer(commit: Commit, name: str) -> str | None:
    """Value of a trailer line of the commit's message."""
    found = re.search(rf"^{name}: (\S+)$", str(commit.message), re.MULTILINE)
    return found[1] if found else None


def require_clean(repo: Repo, where: Path) -> None:
    """Make sure that no change of the user's is in the way, or would be lost.

    Raises:
        DirtySourceError: there are changes that are not committed, or an unfinished merge.
    """
    operation = git.unfinished_operation(repo)
    if operation is not None:
        raise DirtySourceError(f"{where} is in the middle of a {operation}; finish or abort it")
    changed = git.changed_files(repo)
    if changed and git.only_line_ends(repo):
        raise DirtySourceError(
            f"the files of {where} differ from its commit by their line ends, CRLF"
            f" ({_some(changed)}); check them out again: git checkout --force HEAD -- ."
        )
    if changed:
        raise DirtySourceError(
            f"{where} has changes that are not committed ({_some(changed)});"
            " commit or stash them first"
        )


def require_free(repo: Repo, created: Sequence[str]) -> None:
    """Make sure that no patch creates a file at the path of a user's file.

    Raises:
        DirtySourceError: one does.
    """
    root = Path(repo.working_dir)
    taken = [
        path
        for path in created
        if os.path.lexists(root / path) and git.file_at_head(repo, path) is None
    ]
    if taken:
        raise DirtySourceError(
            f"{root} has files of its own where the patches create some ({_some(taken)});"
            " move them away"
        )


def _some(paths: list[str]) -> str:
    return ", ".join(paths[:2]) + (f" and {len(paths) - 2} more" if len(paths) > 2 else "")
