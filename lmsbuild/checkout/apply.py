"""Apply a tag's patches to PyTorch's sources."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from git import Commit, Repo
from git.exc import GitCommandError

from lmsbuild.checkout import origin
from lmsbuild.checkout.rehearsal import Rehearsal, Rejection, rehearse
from lmsbuild.checkout.state import (
    SYNCED,
    Outcome,
    default_directory,
    lms_commits,
    locked_checkout,
    require_clean,
    require_free,
    trailer,
)
from lmsbuild.errors import (
    HookError,
    OtherPatchesError,
    SourceError,
    TargetExistsError,
)
from lmsbuild.patchset import cmake_hook
from lmsbuild.patchset.diff import FilePatch
from lmsbuild.patchset.mail import Mail
from lmsbuild.patchset.preimages import Preimage, differing, load_preimages
from lmsbuild.patchset.series import PATCH_TRAILER, TAG_TRAILER, Series, load_series
from lmsbuild.registry import Tag
from lmsbuild.tools import git
from lmsbuild.tools.atomic import folder_beside
from lmsbuild.tools.lock import exclusive

# Fixed, because the same patches on the same base must become the same commits.
_COMMITTER = git.Identity(
    name="lmsbuild contributors",
    email="lmsbuild@lmsbuild.invalid",
    date="Thu, 1 Jan 2026 00:00:00 +0000",
)
_FAILED_AT = re.compile(r"^error: patch failed: (?P<path>.+):(?P<line>\d+)$", re.MULTILINE)
_FAILED_FILE = re.compile(
    r"^error: (?P<path>.+): (?P<why>patch does not apply|does not exist in index"
    r"|already exists in index)$",
    re.MULTILINE,
)


def apply(
    tag: Tag,
    *,
    upstream_url: str,
    given_source: str | None = None,
    into: Path | None = None,
    patches: Path | None = None,
    check: bool = False,
) -> Outcome:
    """Applies the patches of ``tag``: in place, or on a new checkout in ``into``.

    Args:
        upstream_url: what to clone when no source is given.
        given_source: URL, local repository, checkout or tarball.
        into: directory to make; without it a checkout is patched in place, and anything else
            goes to :func:`default_directory`.
        patches: directory with runtime and hooks; default: the project's own.
        check: change nothing, only find out what would happen.

    Raises:
        LmsbuildError: one of its subclasses; the checkout is then as it was, and a directory
            that did not exist still does not.
    """
    series = load_series(tag, patches)
    preimages = load_preimages(tag, patches)
    with git.session():
        chosen = origin.classify(given_source) if given_source is not None else None
        target = _in_place(tag, chosen, into)
        if target is not None:
            with git.opened(target) as repo, locked_checkout(repo, check=check):
                return _patch(repo, series, preimages, target, check=check)
        target = into or default_directory(tag)
        if chosen is None:
            chosen = origin.Source(text=upstream_url, kind=origin.Kind.URL)
        return _patch_new(chosen, series, preimages, target, check=check)


def _in_place(tag: Tag, chosen: origin.Source | None, into: Path | None) -> Path | None:
    """The existing checkout to patch; None when a new one is to be made."""
    if into is None and chosen is not None and chosen.kind is origin.Kind.CHECKOUT:
        return chosen.path
    target = into or default_directory(tag)
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return None
    try:
        kind = origin.classify(str(target)).kind
    except SourceError:
        kind = None
    if kind is origin.Kind.CHECKOUT and (chosen is None or _is_patched(target)):
        return target
    raise TargetExistsError(
        f"{target} exists already; remove it, name another with --into,"
        f" or patch a checkout in place with --source alone"
    )


def _is_patched(target: Path) -> bool:
    with git.opened(target) as repo:
        return bool(lms_commits(repo))


def _patch_new(
    chosen: origin.Source,
    series: Series,
    preimages: tuple[Preimage, ...],
    target: Path,
    *,
    check: bool,
) -> Outcome:
    parent = target.absolute().parent
    if not parent.is_dir():
        raise SourceError(f"{parent} does not exist; make it, or name another place with --into")
    name = target.absolute().name
    with (
        exclusive(parent / f".{name}.lmsbuild.lock", target),
        folder_beside(target) as scratch,
    ):
        tree = scratch / "tree"
        origin.fetch(chosen, series.tag, tree)
        with git.opened(tree) as repo:
            outcome = _patch(repo, series, preimages, target, check=check)
        if not check:
            os.rename(tree, target)
        return outcome


def _patch(
    repo: Repo, series: Series, preimages: tuple[Preimage, ...], where: Path, *, check: bool
) -> Outcome:
    head = git.head(repo)
    origin.check_version(repo, series.tag, where)
    absent = cmake_hook.absent(repo, series.mails)
    series = series.without(absent)
    stack = lms_commits(repo)
    if stack:
        return _already(stack, series, where)
    require_clean(repo, where)
    require_free(repo, [file.path for mail in series.mails for file in mail.files if file.created])
    others = differing(repo, preimages)
    series, rehearsal, unfit = _fit(repo, series, others, where)
    left_out = (
        *((mail.name, "this checkout has no files of the build") for mail in absent),
        *_unfit(unfit),
    )
    drifted = [
        (mail.name, path)
        for mail, paths in zip(series.mails, rehearsal.drifted, strict=True)
        for path in paths
    ]
    told = {path for _, path in drifted}
    drifted += [(f"the series of {series.tag.name}", path) for path in others if path not in told]
    commits = tuple(mail.subject for mail in series.mails)
    if check:
        return Outcome(
            directory=where, commits=commits, commit="", drifted=tuple(drifted), left_out=left_out
        )
    try:
        git.apply_mails(repo, series.mbox(), _COMMITTER)
    except GitCommandError as error:
        raise git.failed(error, f"git am failed, and {where} was left as it was") from error
    after = git.head(repo)
    if after.tree.hexsha != rehearsal.tree:
        git.reset(repo, head.hexsha)
        raise HookError(
            f"git am made other files than the patches describe; {where} was left as it was;"
            " look for filters in your git configuration"
        )
    git.set_reference(repo, SYNCED, after.hexsha)
    return Outcome(
        directory=where,
        commits=commits,
        commit=after.hexsha,
        drifted=tuple(drifted),
        left_out=left_out,
    )


def _already(stack: list[Commit], series: Series, where: Path) -> Outcome:
    found = tuple(trailer(commit, PATCH_TRAILER) for commit in reversed(stack))
    unproven = [mail for mail in series.mails if cmake_hook.is_unproven(mail)]
    if found in (series.ids, series.without(unproven).ids):
        return Outcome(
            directory=where,
            commits=(),
            commit=stack[0].hexsha,
            left_out=() if found == series.ids else _unfit(unproven),
        )
    tag = trailer(stack[0], TAG_TRAILER)
    raise OtherPatchesError(
        f"{where} carries other LMS patches ({len(found)} commits for {tag});"
        f" take them back first: lmsbuild apply {tag} --reverse --source {shlex.quote(str(where))}"
    )


def _unfit(mails: Iterable[Mail]) -> tuple[tuple[str, str], ...]:
    return tuple((mail.name, "it does not fit this release's files") for mail in mails)


def _fit(
    repo: Repo, series: Series, others: tuple[str, ...], where: Path
) -> tuple[Series, Rehearsal, tuple[Mail, ...]]:
    """The series without the unproven hooks that do not apply, and these."""
    unproven = tuple(mail for mail in series.mails if cmake_hook.is_unproven(mail))
    try:
        return series, _rehearse(repo, series, others, where), ()
    except HookError:
        proven = series.without(unproven)
        return proven, _rehearse(repo, proven, others, where), unproven


def _rehearse(repo: Repo, series: Series, others: tuple[str, ...], where: Path) -> Rehearsal:
    made_against = [
        {file.old_path: file.old_blob for file in mail.files if file.old_path and file.old_blob}
        for mail in series.mails
    ]
    try:
        return rehearse(repo, [mail.diff for mail in series.mails], made_against)
    except Rejection as rejection:
        mail = series.mails[rejection.number]
        raise HookError(
            f"{mail.name} does not apply to {_place(mail, rejection.words)}"
            f"{_reason(repo, series.tag, rejection.words)};"
            + (f" not the tag's own files: {', '.join(others)};" if others else "")
            + f" {where} was left as it was",
            detail=rejection.words,
        ) from rejection


def _reason(repo: Repo, tag: Tag, words: str) -> str:
    """Why a hook does not apply to the file, as far as the repository shows."""
    failed = _FAILED_AT.search(words) or _FAILED_FILE.search(words)
    if failed is None:
        return ""
    path = failed["path"]
    if git.blob_at(repo, "HEAD", path) and b"\r\n" in git.content_at(repo, "HEAD", path):
        return ", because its lines end in CRLF; take sources with Unix line ends"
    since = origin.tag_commit(repo, tag)
    commit = since and git.last_change(repo, since, path)
    return f", because your commit {commit} changes it" if commit else ""


def _place(mail: Mail, words: str) -> str:
    """Which file and hunk git means."""
    if failed := _FAILED_AT.search(words):
        line = int(failed["line"])
        for file in mail.files:
            if file.path == failed["path"]:
                return f"{file.path}, {_hunk(file, line)}"
        return f"{failed['path']}, line {line}"
    if failed := _FAILED_FILE.search(words):
        return f"{failed['path']} ({failed['why'].removesuffix(' in index')})"
    return words.splitlines()[0] if words else "the source"


def _hunk(file: FilePatch, line: int) -> str:
    for number, hunk in enumerate(file.hunks, start=1):
        if hunk.old_start == line:
            section = f", {hunk.section.strip()!r}" if hunk.section.strip() else ""
            return f"hunk {number} of {len(file.hunks)} (line {line}{section})"
    return f"line {line}"
