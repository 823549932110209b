"""A new tag from an old one: the old hooks on the new release's files, merged three-way."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from git import Repo
from git.exc import GitCommandError

from lmsbuild.checkout import origin
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.commits import find_stack, runtime_paths
from lmsbuild.checkout.hook_from_commit import hooks_of
from lmsbuild.checkout.refresh import hook_files
from lmsbuild.checkout.state import trailer
from lmsbuild.errors import (
    ForeignWheelError,
    LmsbuildError,
    NotAppliedError,
    PortConflictError,
    RefreshError,
    SourceError,
    TargetExistsError,
)
from lmsbuild.native.toolchain import find_compiler
from lmsbuild.patchset import cmake_hook
from lmsbuild.patchset.mail import Mail
from lmsbuild.patchset.runtime import runtime_files, runtime_mail
from lmsbuild.patchset.series import PATCH_TRAILER, Series, load_hooks
from lmsbuild.port.interface_diff import Change, Headers, compare
from lmsbuild.port.registry_entry import with_entry
from lmsbuild.port.wheel_facts import tag_of_wheel
from lmsbuild.port.wheeltree import checkout_of_wheel
from lmsbuild.registry import Registry, Tag
from lmsbuild.tools import git
from lmsbuild.tools.atomic import write_files
from lmsbuild.tools.cache import sha256_of
from lmsbuild.tools.download import Target
from lmsbuild.tools.fetch import fetch_newest, fetch_wheel
from lmsbuild.tools.report import Report
from lmsbuild.wheel import integrity, runtime_library
from lmsbuild.wheel.base import BaseWheel, identify
from lmsbuild.wheel.patch_python import PythonPatch, patch_python
from lmsbuild.wheel.plan import plan_for

_HEADER_ROOTS = ("torch/include", "torch/include/torch/csrc/api/include")


@dataclass(frozen=True, kw_only=True)
class PortRequest:
    """What to port.

    Attributes:
        old: the tag to start from.
        name: the new tag.
        python: CPython version of the wheels ("3.11").
        architecture: of the wheels ("x86_64").
        old_base, base: official wheels of the two; None fetches them.
        old_source, given_source: sources of the two; None takes the wheel's Python files.
        work: folder to make, where the hooks are merged.
        resumed: ``work`` is there, and its conflicts are resolved.
    """

    old: Tag
    name: str
    python: str
    architecture: str
    old_base: Path | None
    base: Path | None
    old_source: str | None
    given_source: str | None
    work: Path
    resumed: bool
    patches: Path
    cache: Path


@dataclass(frozen=True, kw_only=True)
class Ported:
    """What porting made and found.

    Attributes:
        tag: the new entry of the registry.
        hooks: the new hooks' file names, each with whether more than places and ids differ from
            the old hook of that name.
        skipped: files of hooks that the wheel does not carry, hence not checked against it.
        changes: what differs between the two releases in the interfaces that the runtime uses.
        compiled: why the runtime does not compile against the new headers; None when it does.
    """

    tag: Tag
    hooks: tuple[tuple[str, bool], ...]
    skipped: tuple[str, ...]
    changes: tuple[Change, ...]
    compiled: LmsbuildError | None


def port(registry: Registry, request: PortRequest, report: Report) -> Ported:
    """Writes the new tag's patches and its registry entry; on failure neither is there.

    Raises:
        TargetExistsError: the tag is there already, or the work folder is.
        PortConflictError: a hook does not merge; the work folder is left for resolving it.
        HookError: the merged hooks do not fit the wheel's files.
        RefreshError: what was resolved is no patch; the work folder stays.
    """
    if any(tag.name == request.name for tag in registry):
        raise TargetExistsError(f"{request.name} is in the registry already")
    if (request.patches / request.name).exists():
        raise TargetExistsError(f"{request.patches / request.name} exists already; remove it")
    target = Target(python=request.python, architecture=request.architecture)
    base = _wheel(request.base, request.name, target, request.cache, report)
    old_base = _wheel(request.old_base, request.old.name, target, request.cache, report)
    tag = tag_of_wheel(
        base, registry, lambda wanted: fetch_newest(wanted, target, request.cache).path
    )
    if request.old.variant is not None:
        # No wheel says so: what LMS is built into, and how, is the old tag's generation's.
        tag = dataclasses.replace(
            tag, variant=request.old.variant, strategies=request.old.strategies
        )
    if request.given_source is not None:
        tag = _proven(tag, "hooks_source")
    with git.session(), _work(request):
        if not request.resumed:
            _merge(request, registry, tag, old_base, base)
        hooks = _hooks(request, tag)
        names = {mail.name for mail in hooks}
        hooks += tuple(
            cmake_hook.unproven(mail)
            for mail in load_hooks(request.old, request.patches)
            if mail.name not in names and _is_left_out(request, mail)
        )
        tag = _proven(tag, "hooks_wheel")
        patched = _check_wheel(request, tag, hooks, base)
        files = hook_files(request.patches, tag, hooks)
        entry = with_entry(request.patches, tag)
        write_files(request.patches, {**files, "tags.toml": entry})
    if not request.resumed:
        shutil.rmtree(request.work, ignore_errors=True)
    former = {mail.name: mail for mail in load_hooks(request.old, request.patches)}
    return Ported(
        tag=tag,
        hooks=tuple((mail.name, not _alike(mail, former.get(mail.name))) for mail in hooks),
        skipped=patched.skipped,
        changes=compare(headers_of(old_base), headers_of(base)),
        compiled=_compile(request, tag, base, report),
    )


def _wheel(given: Path | None, name: str, target: Target, cache: Path, report: Report) -> BaseWheel:
    version = name.removeprefix("v")
    path = (
        given
        or fetch_wheel(
            f"torch=={version}",
            target,
            cache,
            lambda what, done, total: report(f"download {what}", done, total),
        ).path
    )
    base = identify(path)
    if base.version.public != version:
        raise ForeignWheelError(f"{path.name} is torch {base.version}, not {version}")
    return base


def _proven(tag: Tag, proof: str) -> Tag:
    values: dict[str, Any] = {proof: True}
    return dataclasses.replace(tag, verified=dataclasses.replace(tag.verified, **values))


@contextmanager
def _work(request: PortRequest) -> Iterator[None]:
    """The work folder, which stays when there is something to resolve in it."""
    work = request.work
    if request.resumed:
        if not work.is_dir():
            raise NotAppliedError(f"{work} does not exist; run it without --continue")
        yield
        return
    if work.exists():
        raise TargetExistsError(
            f"{work} exists already; remove it, name another with --work,"
            " or go on with what is in it: --continue"
        )
    try:
        yield
    except (PortConflictError, RefreshError):
        raise
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _merge(
    request: PortRequest, registry: Registry, tag: Tag, old_base: BaseWheel, base: BaseWheel
) -> None:
    """Makes the work folder: the new files, the runtime, and the old hooks' commits on them."""
    old, work = request.old, request.work
    with tempfile.TemporaryDirectory(prefix="lmsbuild-") as folder:
        before = Path(folder) / "old"
        _tree(before, old, request.old_source, old_base)
        _require_files(request, before)
        left_out = {
            mail.sha256 for mail in load_hooks(old, request.patches) if _is_left_out(request, mail)
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
    """What the old hooks change is there.

    Raises:
        SourceError: a hook changes a file that no wheel carries.
    """
    if request.old_source is not None and request.given_source is not None:
        return
    for mail in load_hooks(request.old, request.patches):
        if _is_left_out(request, mail):
            continue
        for file in mail.files:
            if file.old_path is not None and not (tree / file.old_path).exists():
                raise SourceError(
                    f"{mail.name} changes {file.old_path}, which no wheel carries;"
                    " give the sources of both: --from-source and --source"
                )


def _is_left_out(request: PortRequest, mail: Mail) -> bool:
    """Whether a hook is for the build's files, and one of the releases is known by its wheel."""
    sources = request.old_source is not None and request.given_source is not None
    return cmake_hook.is_cmake_hook(mail) and not sources


def _identify(repo: Repo) -> None:
    """Whoever resolves a conflict here needs no identity of his own."""
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


def _hooks(request: PortRequest, tag: Tag) -> tuple[Mail, ...]:
    """The hooks that the work folder's commits describe."""
    with git.opened(request.work) as repo:
        if git.unfinished_operation(repo):
            raise _conflict(repo, request, tag, "")
        stack = find_stack(repo, request.work)
        if stack.tag != tag.name:
            raise NotAppliedError(f"{request.work} is a port to {stack.tag}, not to {tag.name}")
        known = runtime_files(request.patches, request.old.variant)
        own = runtime_paths(repo, stack, set(known))
        return hooks_of(repo, stack, load_hooks(request.old, request.patches), own)


def _check_wheel(
    request: PortRequest, tag: Tag, hooks: tuple[Mail, ...], base: BaseWheel
) -> PythonPatch:
    """The hooks fit the wheel's files, each exactly where it says."""
    with tempfile.TemporaryDirectory(prefix="lmsbuild-") as folder:
        trial = Path(folder)
        for name in {"runtime", tag.variant or "runtime"}:
            (trial / name).symlink_to((request.patches / name).resolve())
        write_files(trial, hook_files(trial, tag, hooks))
        with integrity.open_wheel(base.path) as wheel:
            return patch_python(
                tag,
                trial,
                lambda path: wheel.read(path) if path in wheel.NameToInfo else None,
            )


def _alike(mail: Mail, former: Mail | None) -> bool:
    """Whether two hooks differ in places and ids only."""

    def essence(hook: Mail) -> list[tuple[str, list[tuple[str, ...]]]]:
        return [(file.path, [hunk.lines for hunk in file.hunks]) for file in hook.files]

    return former is not None and essence(mail) == essence(former)


def headers_of(base: BaseWheel) -> Headers:
    """The headers of a wheel, where #include finds them."""

    def read(path: str) -> str | None:
        with integrity.open_wheel(base.path) as wheel:
            for root in _HEADER_ROOTS:
                if f"{root}/{path}" in wheel.NameToInfo:
                    return integrity.read_text(wheel, f"{root}/{path}")
        return None

    return read


def _compile(
    request: PortRequest, tag: Tag, base: BaseWheel, report: Report
) -> LmsbuildError | None:
    try:
        target = Target(python=request.python, architecture=request.architecture)
        plan = plan_for(
            tag,
            find_compiler(request.architecture),
            target,
            patches=request.patches,
            cache=request.cache,
            report=report,
        )
        runtime_library.library_for(plan, base, sha256_of(base.path), request.cache, report)
    except LmsbuildError as error:
        return error
    return None
