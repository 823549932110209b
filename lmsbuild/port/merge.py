"""Merge the old hooks with the new release's files (a three-way merge) in a work folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from git import Repo
from git.exc import GitCommandError

from lmsbuild.checkout import origin
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.commits import find_stack, runtime_paths
from lmsbuild.checkout.hook_from_commit import hooks_of
from lmsbuild.checkout.state import trailer
from lmsbuild.errors import (
    LmsbuildError,
    NotAppliedError,
    PortConflictError,
    RefreshError,
    SourceError,
    TargetExistsError,
)
from lmsbuild.patchset import cmake_hook
from lmsbuild.patchset.mail import Mail
from lmsbuild.patchset.runtime import runtime_files, runtime_mail
from lmsbuild.patchset.series import PATCH_TRAILER, Series, load_hooks
from lmsbuild.port.request import PortRequest
from lmsbuild.port.wheeltree import checkout_of_wheel
from lmsbuild.registry import Registry, Tag
from lmsbuild.tools import git
from lmsbuild.wheel.base import BaseWheel


@contextmanager
def work_folder(request: PortRequest) -> Iterator[None]:
    """Make the work folder. If there is a conflict to resolve, it is kept."""
    work = request.work
    if request.resumed:
        if not work.is_dir():
            raise NotAppliedError(f"{work} does not exist; run the command without --continue")
        yield
        return
    if work.exists():
        raise TargetExistsError(
            f"{work} already exists; remove it, name another with --work,"
            " or continue the port in it with --continue"
        )
    try:
        yield
    except (PortConflictError, RefreshError):
        raise
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def merge(
    request: PortRequest, registry: Registry, tag: Tag, old_base: BaseWheel, base: BaseWheel
) -> None:
    """Commit the new release's files, the runtime, and the old hooks to the work folder."""
    old, work = request.old, request.work
    with tempfile.TemporaryDirectory(prefix="lmsbuild-") as folder:
        before = Path(folder) / "old"
        _tree(before, old, request.old_source, old_base)
        _require_files(request, before)
        left_out = {
            mail.sha256 for mail in load_hooks(old, request.patches) if is_left_out(request, mail)
        }
        apply(old, upstream_url="", given_source=str(before), patches=request.patches)
        _tree(work, tag, request.given_source, base)
        with git.opened(work) as repo:
            origin.check_version(repo, tag, work)
            _identify(repo)
            series = Series(tag=tag, mails=(runtime_mail(request.patches, old.variant),))
            git.apply_mails(repo, series.mbox(), origin.IMPORTER)
            with git.opened(before) as merged_from:
                picks = [
                    commit.hexsha
                    for commit in find_stack(merged_from, before).hooks
                    if trailer(commit, PATCH_TRAILER) not in left_out
                ]
            git.run(repo, "fetch", "--quiet", "--no-tags", str(before.resolve()), "HEAD")
            try:
                git.run(repo, "cherry-pick", "--keep-redundant-commits", *picks)
            except GitCommandError as error:
                raise _conflict(repo, request, tag, git.words_of(error)) from error


def _tree(into: Path, tag: Tag, given: str | None, base: BaseWheel) -> None:
    if given is None:
        checkout_of_wheel(base.path, tag.version, into)
    else:
        origin.fetch(origin.classify(given), tag, into)


def _require_files(request: PortRequest, tree: Path) -> None:
    """Check that the files that the old hooks change exist.

    Raises:
        SourceError: a hook changes a file that wheels do not contain.
    """
    if request.old_source is not None and request.given_source is not None:
        return
    for mail in load_hooks(request.old, request.patches):
        if is_left_out(request, mail):
            continue
        for file in mail.files:
            if file.old_path is not None and not (tree / file.old_path).exists():
                raise SourceError(
                    f"{mail.name} changes {file.old_path}, which wheels do not contain;"
                    " give the sources of both releases with --from-source and --source"
                )


def is_left_out(request: PortRequest, mail: Mail) -> bool:
    """Whether a hook changes the build files, and the sources of a release are not given."""
    sources = request.old_source is not None and request.given_source is not None
    return cmake_hook.is_cmake_hook(mail) and not sources


def _identify(repo: Repo) -> None:
    """Set an identity, so that git can commit a resolved conflict."""
    git.run(repo, "config", "user.name", origin.IMPORTER.name)
    git.run(repo, "config", "user.email", origin.IMPORTER.email)


def _conflict(repo: Repo, request: PortRequest, tag: Tag, words: str) -> LmsbuildError:
    listing = git.run(repo, "diff", "--name-only", "-z", "--diff-filter=U").split("\0")
    paths = [path for path in listing if path]
    where = f" in {', '.join(paths)}" if paths else ""
    subject = ""
    if git.reference(repo, "CHERRY_PICK_HEAD"):
        subject = str(repo.commit("CHERRY_PICK_HEAD").summary)
    return PortConflictError(
        f"{subject!r} conflicts with {tag.name}{where}; resolve it in {request.work}"
        " (git add, git cherry-pick --continue), then run the same command with --continue",
        detail=words,
    )


def hooks_in(request: PortRequest, tag: Tag) -> tuple[Mail, ...]:
    """The hooks, made from the commits in the work folder."""
    with git.opened(request.work) as repo:
        if git.unfinished_operation(repo):
            raise _conflict(repo, request, tag, "")
        stack = find_stack(repo, request.work)
        if stack.tag != tag.name:
            raise NotAppliedError(
                f"{request.work} is a port to {stack.tag}, not to {tag.name}; name another --work"
            )
        known = runtime_files(request.patches, request.old.variant)
        own = runtime_paths(repo, stack, set(known))
        return hooks_of(repo, stack, load_hooks(request.old, request.patches), own)
