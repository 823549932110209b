"""Patch files from the commits of a checkout that a maintainer worked on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from git import Repo

from lmsbuild.checkout.commits import Stack, find_stack, runtime_paths
from lmsbuild.checkout.hook_from_commit import hooks_of
from lmsbuild.checkout.origin import tag_commit
from lmsbuild.checkout.rehearsal import Rejection, rehearse
from lmsbuild.checkout.state import SYNCED, locked_checkout, require_clean, trailer
from lmsbuild.errors import RefreshError, SeriesError
from lmsbuild.patchset import cmake_hook
from lmsbuild.patchset.mail import Mail
from lmsbuild.patchset.runtime import runtime_files, runtime_mail_of
from lmsbuild.patchset.series import PATCH_TRAILER, load_hooks, series_text
from lmsbuild.registry import Registry, Tag
from lmsbuild.resources import patches_dir
from lmsbuild.tools import atomic, git


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """What refreshing changed, or with ``check`` would change.

    Attributes:
        tag: whose patches they are.
        changed: files below the patches directory, with "new", "changed" or "gone".
    """

    tag: Tag
    changed: tuple[tuple[str, str], ...]


def refresh(
    registry: Registry,
    checkout: Path,
    *,
    tag_name: str | None = None,
    patches: Path | None = None,
    check: bool = False,
) -> Refreshed:
    """Rewrites a tag's hooks, and the runtime's files, from the commits of ``checkout``.

    Args:
        tag_name: the tag; by default the one that the commits name.
        patches: directory with runtime and hooks; default: the project's own.
        check: change nothing, only find out what would change.

    Raises:
        NotAppliedError: the checkout has no LMS patches.
        RefreshError: its commits cannot become patches, or the patch files have changed since
            the checkout was made.
        DirtySourceError: there are changes that are not committed.
    """
    patches = patches or patches_dir()
    with git.session(), git.opened(checkout) as repo, locked_checkout(repo, check=check):
        require_clean(repo, checkout)
        stack = find_stack(repo, checkout)
        if tag_name is not None and registry.get(tag_name).name != stack.tag:
            raise RefreshError(
                f"{checkout} carries the patches of {stack.tag}, not of {tag_name}; name that tag"
            )
        tag = registry.get(stack.tag)
        former = load_hooks(tag, patches)
        known = runtime_files(patches, tag.variant)
        own = runtime_paths(repo, stack, set(known))
        hooks = hooks_of(repo, stack, former, own)
        kept = _kept(repo, stack, former, hooks)
        _require_base(repo, stack, tag, former, hooks, checkout)
        runtime = {
            path: git.content_at(repo, stack.top, path)
            for path in git.files_at(repo, stack.top, *sorted(own))
        }
        _require_same_tree(repo, stack, hooks, runtime, checkout)
        _require_unchanged(repo, stack, former, (*hooks, *kept), own, patches / tag.hooks, checkout)
        # A new file of an old release is its variant's.
        homes = {path: file.relative_to(patches).as_posix() for path, file in known.items()}
        writes = {
            homes.get(path, f"{tag.variant or 'runtime'}/{path}"): content
            for path, content in _runtime_changes(
                repo, stack, runtime, own, {n: p.read_bytes() for n, p in known.items()}, checkout
            ).items()
        }
        writes |= hook_files(patches, tag, (*hooks, *kept))
        changed = _differences(patches, writes)
        if not check:
            if changed:
                atomic.write_files(patches, {path: writes[path] for path, _ in changed})
            git.set_reference(repo, SYNCED, stack.top)
    return Refreshed(tag=tag, changed=changed)


def hook_files(patches: Path, tag: Tag, hooks: Sequence[Mail]) -> dict[str, bytes | None]:
    """Content of a tag's folder below ``patches``, by path; None for files to remove."""
    folder = patches / tag.hooks
    listing = folder / "series"
    files: dict[str, bytes | None] = {
        path.relative_to(patches).as_posix(): None for path in sorted(folder.glob("*.patch"))
    }
    for mail in hooks:
        files[f"{tag.hooks}/{mail.name}"] = mail.text().encode("utf-8", "surrogateescape")
    former = listing.read_text("utf-8") if listing.is_file() else ""
    text = series_text([mail.name for mail in hooks], former)
    files[f"{tag.hooks}/series"] = text.encode("utf-8")
    return files


def _differences(patches: Path, files: Mapping[str, bytes | None]) -> tuple[tuple[str, str], ...]:
    changed = []
    for path, content in sorted(files.items()):
        present = (patches / path).read_bytes() if (patches / path).is_file() else None
        if present != content:
            how = "new" if present is None else "gone" if content is None else "changed"
            changed.append((path, how))
    return tuple(changed)


def _kept(
    repo: Repo, stack: Stack, former: Sequence[Mail], hooks: Sequence[Mail]
) -> tuple[Mail, ...]:
    """The CMake hooks that were not applied, so that no commit contains them."""
    names = {mail.name for mail in hooks}
    missing = cmake_hook.absent(repo, former, stack.base)
    return tuple(
        mail
        for mail in former
        if mail.name not in names and (mail in missing or cmake_hook.is_unproven(mail))
    )


def _require_base(
    repo: Repo,
    stack: Stack,
    tag: Tag,
    former: Sequence[Mail],
    hooks: Sequence[Mail],
    where: Path,
) -> None:
    """The files below the patches are the tag's own, as far as that is known.

    Raises:
        RefreshError: one is not, so the hooks would be made against a local change.
    """
    expected = _first_blobs(former)
    at_tag = tag_commit(repo, tag)
    for path, blob in _first_blobs(hooks).items():
        known = expected.get(path) or (at_tag and git.blob_at(repo, at_tag, path)) or ""
        if known and not known.startswith(blob) and not blob.startswith(known):
            raise RefreshError(
                f"{path} is not {tag.name}'s in {where}: a commit below the patches changes it;"
                " move your commits to a checkout of the tag itself"
            )


def _first_blobs(mails: Sequence[Mail]) -> dict[str, str]:
    """For each file, the blob that the first mail that touches it was made against."""
    blobs: dict[str, str] = {}
    for mail in mails:
        for file in mail.files:
            blobs.setdefault(file.path, file.old_blob)
    return {path: blob for path, blob in blobs.items() if blob}


def _require_same_tree(
    repo: Repo, stack: Stack, hooks: Sequence[Mail], runtime: Mapping[str, bytes], where: Path
) -> None:
    """The patches make the very files that are checked out.

    Raises:
        RefreshError: they do not.
    """
    try:
        diffs = [runtime_mail_of(runtime, where).diff, *(mail.diff for mail in hooks)]
    except SeriesError as error:
        raise RefreshError(str(error)) from error
    try:
        tree = rehearse(repo, diffs, [{}] * len(diffs), stack.base).tree
    except Rejection as rejection:
        raise RefreshError(
            f"the commits of {where} do not apply one by one as patches; commits that change"
            " runtime files may have to be melted into the runtime's",
            detail=rejection.words,
        ) from rejection
    if tree != repo.commit(stack.top).tree.hexsha:
        raise RefreshError(
            f"the patches would not make the files of {where}; look for file modes,"
            " symbolic links and submodules in its commits"
        )


def _require_unchanged(
    repo: Repo,
    stack: Stack,
    former: Sequence[Mail],
    hooks: Sequence[Mail],
    own: set[str],
    folder: Path,
    where: Path,
) -> None:
    """No patch file has changed since the checkout was made.

    Raises:
        RefreshError: one has changed, and refreshing would undo the change.
    """
    known = stack.ids | {mail.sha256 for mail in hooks}
    then = _synced(repo, stack, where)
    if then is not None:
        known |= then.ids | {mail.sha256 for mail in hooks_of(repo, then, former, own)}
    for mail in former:
        if mail.sha256 not in known:
            raise RefreshError(
                f"{folder / mail.name} has changed since {where} was made;"
                " apply the patches to a new checkout and move your commits there"
            )


def _runtime_changes(
    repo: Repo,
    stack: Stack,
    edited: Mapping[str, bytes],
    own: set[str],
    present: Mapping[str, bytes],
    where: Path,
) -> dict[str, bytes | None]:
    """Runtime files to write, by path; None for those to remove.

    ``present`` is the content of the patches directory. It may have changed since the checkout was
    made. A file that the checkout did not edit is left as it is.
    """
    former = _former_runtime(repo, stack, present, where)
    changes: dict[str, bytes | None] = {}
    for path in sorted(own | set(present)):
        ours, theirs = edited.get(path), present.get(path)
        if ours == theirs or (former is not None and ours == former.get(path)):
            continue
        if former is None or theirs != former.get(path):
            raise RefreshError(
                f"{path} has changed both in {where} and in the patches since the checkout was"
                " made; apply the patches to a new checkout and move your commits there"
            )
        changes[path] = ours
    return changes


def _synced(repo: Repo, stack: Stack, where: Path) -> Stack | None:
    """The stack at the time when it last matched the patch files; None if unknown.

    The note may be about another branch, with another tag's patches or older ones.
    """
    commit = git.reference(repo, SYNCED)
    if commit is None:
        return None
    then = find_stack(repo, where, commit)
    same = [(s.base, s.tag, trailer(s.runtime, PATCH_TRAILER)) for s in (then, stack)]
    return then if same[0] == same[1] else None


def _former_runtime(
    repo: Repo, stack: Stack, present: Mapping[str, bytes], where: Path
) -> Mapping[str, bytes] | None:
    """The runtime as it was last refreshed, or as the checkout got it; None when unknown."""
    brought = sorted(git.changed_paths(repo, stack.base, stack.runtime.hexsha))
    then = _synced(repo, stack, where)
    if then is not None:
        paths = git.files_at(repo, then.top, *sorted(set(present) | set(brought)))
        return {path: git.content_at(repo, then.top, path) for path in paths}
    applied = {path: git.content_at(repo, stack.runtime.hexsha, path) for path in brought}
    made_from = trailer(stack.runtime, PATCH_TRAILER)
    # If the commit was amended, it is not what the checkout got.
    with suppress(SeriesError):
        for runtime in (applied, present):
            if runtime_mail_of(runtime, where).sha256 == made_from:
                return runtime
    return None
