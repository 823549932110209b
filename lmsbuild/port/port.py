"""Make a new tag from an old one: its hooks, its registry entry, and a report of the changes."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmsbuild.checkout.refresh import hook_files
from lmsbuild.errors import (
    ForeignWheelError,
    LmsbuildError,
    TargetExistsError,
)
from lmsbuild.native.toolchain import find_compiler
from lmsbuild.patchset import cmake_hook
from lmsbuild.patchset.mail import Mail
from lmsbuild.patchset.series import load_hooks
from lmsbuild.port.interface_diff import Change, Headers, compare
from lmsbuild.port.merge import hooks_in, is_left_out, merge, work_folder
from lmsbuild.port.registry_entry import with_entry
from lmsbuild.port.request import PortRequest
from lmsbuild.port.wheel_facts import tag_of_wheel
from lmsbuild.registry import Registry, Tag
from lmsbuild.tools import git
from lmsbuild.tools.atomic import write_files
from lmsbuild.tools.cache import sha256_of
from lmsbuild.tools.download import Target
from lmsbuild.tools.fetch import fetch_newest, fetch_wheel, forgotten_if_unfit
from lmsbuild.tools.report import Report, prefixed
from lmsbuild.wheel import integrity, runtime_library
from lmsbuild.wheel.base import BaseWheel, identify
from lmsbuild.wheel.patch_python import PythonPatch, patch_python
from lmsbuild.wheel.plan import plan_for

_HEADER_ROOTS = ("torch/include", "torch/include/torch/csrc/api/include")


@dataclass(frozen=True, kw_only=True)
class Ported:
    """The result of a port.

    Attributes:
        tag: the new entry of the registry.
        hooks: file names of the new hooks, each with whether its changes differ from those of the
            old hook, apart from line numbers and blob ids.
        skipped: files that hooks change, and that were not checked because the wheel does not
            contain them.
        changes: in the interfaces that the runtime uses.
        compiled: the error if the runtime does not compile against the new headers, or None.
    """

    tag: Tag
    hooks: tuple[tuple[str, bool], ...]
    skipped: tuple[str, ...]
    changes: tuple[Change, ...]
    compiled: LmsbuildError | None


def port(registry: Registry, request: PortRequest, report: Report) -> Ported:
    """Write the patches of a new tag and its registry entry. On failure neither is written.

    Raises:
        TargetExistsError: the tag or the work folder already exists.
        PortConflictError: a hook conflicts. The work folder is kept for resolving it.
        HookError: the merged hooks do not apply to the wheel's files.
        RefreshError: the commits in the work folder make no valid patch. It is kept.
    """
    if any(tag.name == request.name for tag in registry):
        raise TargetExistsError(f"{request.name} is already in the registry")
    if (request.patches / request.name).exists():
        raise TargetExistsError(f"{request.patches / request.name} already exists; remove it")
    target = Target(python=request.python, architecture=request.architecture)
    base = _wheel(request.base, request.name, target, request.cache, report)
    old_base = _wheel(request.old_base, request.old.name, target, request.cache, report)
    tag = tag_of_wheel(
        base, registry, lambda wanted: fetch_newest(wanted, target, request.cache).path
    )
    if request.old.variant is not None:
        # A wheel does not say this, so it is as for the old tag.
        tag = dataclasses.replace(
            tag, variant=request.old.variant, strategies=request.old.strategies
        )
    if request.given_source is not None:
        tag = _proven(tag, "hooks_source")
    with git.session(), work_folder(request):
        if not request.resumed:
            merge(request, registry, tag, old_base, base)
        hooks = hooks_in(request, tag)
        names = {mail.name for mail in hooks}
        hooks += tuple(
            cmake_hook.unproven(mail)
            for mail in load_hooks(request.old, request.patches)
            if mail.name not in names and is_left_out(request, mail)
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
    if given is not None:
        return _identified(given, version)
    requirement = f"torch=={version}"
    fetched = fetch_wheel(requirement, target, cache, prefixed("download", report))
    with forgotten_if_unfit(requirement, target, cache):
        base = _identified(fetched.path, version)
        if base.version.local:
            raise ForeignWheelError(f"{fetched.path.name} is not the official build of {version}")
    return base


def _identified(path: Path, version: str) -> BaseWheel:
    base = identify(path)
    if base.version.public != version:
        raise ForeignWheelError(f"{path.name} is torch {base.version}, not {version}")
    return base


def _proven(tag: Tag, proof: str) -> Tag:
    values: dict[str, Any] = {proof: True}
    return dataclasses.replace(tag, verified=dataclasses.replace(tag.verified, **values))


def _check_wheel(
    request: PortRequest, tag: Tag, hooks: tuple[Mail, ...], base: BaseWheel
) -> PythonPatch:
    """Check that the hooks apply to the wheel's files, each hunk at its exact line."""
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
    """Whether two hooks are the same apart from line numbers and blob ids."""

    def essence(hook: Mail) -> list[tuple[str, list[tuple[str, ...]]]]:
        return [(file.path, [hunk.lines for hunk in file.hunks]) for file in hook.files]

    return former is not None and essence(mail) == essence(former)


def headers_of(base: BaseWheel) -> Headers:
    """The headers of a wheel, by their path in an #include."""

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
