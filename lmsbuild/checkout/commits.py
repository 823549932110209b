"""The commits that a maintainer works on: the runtime's, and the hooks' above it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from git import Commit, Repo

from lmsbuild.checkout.state import SEARCH_DEPTH, trailer
from lmsbuild.errors import NotAppliedError, RefreshError
from lmsbuild.patchset.series import PATCH_TRAILER, TAG_TRAILER
from lmsbuild.tools import git

_TRAILER = re.compile(r"[A-Z]\w*(-\w+)+: ")  # Signed-off-by and the like
_UNFINISHED = ("fixup!", "squash!", "amend!")


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The commits from the tag's own up to ``top``.

    Attributes:
        base: id of the commit below the runtime's.
        runtime: the commit that brings the runtime; the lowest with our trailer.
        hooks: the commits above it, oldest first.
    """

    base: str
    runtime: Commit
    hooks: tuple[Commit, ...]

    @property
    def top(self) -> str:
        return self.hooks[-1].hexsha if self.hooks else self.runtime.hexsha

    @property
    def tag(self) -> str:
        """The tag that the patches were applied for, as the runtime's commit names it."""
        return trailer(self.runtime, TAG_TRAILER) or ""

    @property
    def ids(self) -> set[str]:
        """The mails that the commits were made from."""
        found = (trailer(commit, PATCH_TRAILER) for commit in (self.runtime, *self.hooks))
        return {value for value in found if value}


def find_stack(repo: Repo, where: Path, top: str = "HEAD") -> Stack:
    """The stack below ``top``.

    Raises:
        NotAppliedError: there is none, or the clone is too shallow to contain its base.
        RefreshError: its commits are not one line of finished commits.
    """
    commits = git.first_parents(repo, SEARCH_DEPTH, top)
    marked = [at for at, commit in enumerate(commits) if trailer(commit, PATCH_TRAILER)]
    if not marked:
        raise NotAppliedError(
            f"{where} carries no LMS patches; make a checkout that does: lmsbuild apply TAG"
        )
    lowest = marked[-1]
    if lowest + 1 == len(commits):
        raise NotAppliedError(
            f"{where} holds no commit below the patches;"
            " if it is a shallow clone, run: git fetch --deepen=1"
        )
    for commit in commits[: lowest + 1]:
        _require_finished(commit, where)
    return Stack(
        base=commits[lowest + 1].hexsha,
        runtime=commits[lowest],
        hooks=tuple(reversed(commits[:lowest])),
    )


def named(commit: Commit) -> str:
    """What messages call a commit."""
    return f"commit {commit.hexsha[:12]} ({str(commit.summary)!r})"


def runtime_paths(repo: Repo, stack: Stack, known: set[str]) -> set[str]:
    """Paths in PyTorch's tree that belong to the runtime, and not to a hook.

    They are the paths that the runtime had before (``known``), the paths that its commit adds, and
    everything in a folder that only the runtime has.

    Raises:
        RefreshError: the runtime's commit changes upstream's files, or is not there.
    """
    present = git.files_at(repo, stack.base, *sorted(known)) if known else []
    if present:
        raise RefreshError(
            f"{present[0]} is there below the lowest commit with a {PATCH_TRAILER} line;"
            " give the runtime's commit its line back (git rebase -i, reword)"
        )
    changed = git.changed_paths(repo, stack.base, stack.runtime.hexsha)
    foreign = sorted(path for path, how in changed.items() if how != "A")
    if foreign:
        raise RefreshError(
            f"the runtime's {named(stack.runtime)} changes upstream's {foreign[0]};"
            " move that change to a commit above it"
        )
    brought = set(changed) | known
    folders = {PurePosixPath(path).parent.as_posix() for path in brought}
    own = [folder for folder in folders if git.blob_at(repo, stack.base, folder) is None]
    return brought | set(git.files_at(repo, stack.top, *sorted(own)))


def message_of(commit: Commit) -> tuple[str, str]:
    """Subject and body of a commit, without our own trailers.

    Raises:
        RefreshError: `git am` would not keep the subject, or the body does not say why.
    """
    text = str(commit.message).replace("\r\n", "\n")
    ours = re.compile(rf"^({TAG_TRAILER}|{PATCH_TRAILER}): .*\n?", re.MULTILINE)
    # git takes the lines up to the first empty one as the subject.
    head, _, rest = text.strip("\n").partition("\n\n")
    subject = " ".join(ours.sub("", head).split())
    body = "\n".join(line.rstrip() for line in ours.sub("", rest).split("\n")).strip("\n")
    if subject.startswith("["):
        raise RefreshError(
            f"the subject of {named(commit)} begins with a bracket, which `git am` drops; reword it"
        )
    if not any(line and not _TRAILER.match(line) for line in body.split("\n")):
        raise RefreshError(
            f"{named(commit)} does not say why it is needed;"
            " write it below its subject: git commit --amend, or git rebase -i and reword"
        )
    return subject, body


def _require_finished(commit: Commit, where: Path) -> None:
    if len(commit.parents) > 1:
        raise RefreshError(f"{where}: {named(commit)} is a merge; make one line of it: git rebase")
    if str(commit.summary).startswith(_UNFINISHED):
        raise RefreshError(
            f"{where}: {named(commit)} is to be melted into another;"
            " do it first: git rebase -i --autosquash"
        )
