"""Build the wheel torch-lms: a library for each release of PyTorch, and what adds it at import."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from lmsbuild import console
from lmsbuild.addon import metadata
from lmsbuild.addon.metadata import DIST_INFO, PACKAGE, PACKAGE_FILE, RELEASES, RUNTIME
from lmsbuild.addon.release import Release, check, release_of
from lmsbuild.addon.request import AddonRequest
from lmsbuild.addon.sbom import MEMBER, addon_sbom
from lmsbuild.errors import AddonTagError
from lmsbuild.native.compile import LIBRARY
from lmsbuild.native.manylinux import policy_names
from lmsbuild.native.toolchain import Compiler, find_compiler
from lmsbuild.registry import Tag
from lmsbuild.resources import data_folder
from lmsbuild.tools import lock, zipcopy
from lmsbuild.tools.atomic import draft, remove_drafts
from lmsbuild.tools.report import Report, prefixed
from lmsbuild.wheel import integrity, record
from lmsbuild.wheel.graft import make_parts
from lmsbuild.wheel.request import LOCK_FILE, GraftRequest, require_space

# Of every member, so that the same inputs give the same bytes. No older date fits into a wheel.
_DATE = (1980, 1, 1, 0, 0, 0)


def build_addon(request: AddonRequest, report: Report) -> Path:
    """Make the add-on's wheel in the out folder. If this fails, no file is left there.

    Raises:
        AddonTagError: the add-on cannot be made for a tag, or for these tags together.
        AddonHookError: a hook's change cannot be made at import.
        And as wheel.graft.build_wheel.
    """
    if not request.tags:
        raise AddonTagError(f"no release has an official CUDA wheel for {request.architecture}")
    for tag in request.tags:
        check(tag, request.architecture)
    compiler = find_compiler(request.architecture)
    console.detail(f"cache: {request.cache}")
    console.detail(f"compiler: {shlex.join(compiler.command)} ({compiler.version})")
    request.out.mkdir(parents=True, exist_ok=True)
    with lock.exclusive(request.out / LOCK_FILE, request.out):
        remove_drafts(request.out)
        releases, policies = [], []
        for tag in request.tags:
            release, policy = _release(request, tag, compiler, report)
            releases.append(release)
            policies.append(policy)
        platform = f"{max(policies, key=policy_names().index)}_{request.architecture}"
        path = request.out / metadata.wheel_name(platform)
        members = {**members_for(releases), **metadata.dist_info(request.tags, platform)}
        _write(path, {**members, MEMBER: addon_sbom(releases)})
    return path


def _release(
    request: AddonRequest, tag: Tag, compiler: Compiler, report: Report
) -> tuple[Release, str]:
    """What one release gets, and the manylinux policy that its library meets."""
    # The library is the same for each Python.
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    graft = GraftRequest(
        tag=tag,
        architecture=request.architecture,
        python=running if running in tag.pythons else tag.pythons[-1],
        base=None,
        out=request.out,
        patches=request.patches,
        cache=request.cache,
    )
    base, parts = make_parts(graft, compiler, prefixed(tag.version, report))
    with integrity.open_wheel(base.path) as wheel:
        release = release_of(
            tag, parts, lambda path: wheel.read(path) if path in wheel.NameToInfo else None
        )
    assert parts.plan.policy is not None, "a wheel's library is portable"
    return release, parts.plan.policy.name


def members_for(releases: Sequence[Release]) -> dict[str, bytes]:
    """The files of the package by path."""
    first = releases[0]
    for other in releases[1:]:
        if other.modules != first.modules:
            raise AddonTagError(
                f"{first.tag.name} and {other.tag.name} need different Python files of the runtime;"
                " make one torch-lms for each of them, with --tag"
            )
    folder = data_folder(PACKAGE)
    extends = sorted(frozenset().union(*(release.extends for release in releases)))
    return {
        **{f"{PACKAGE}/{path.name}": path.read_bytes() for path in sorted(folder.glob("*.py"))},
        PACKAGE_FILE: (json.dumps({"extends": extends}) + "\n").encode(),
        **{f"{RUNTIME}/{_inside(name)}": data for name, data in sorted(first.modules.items())},
        **{
            f"{RELEASES}/{release.tag.version}/{name}": data
            for release in releases
            for name, data in sorted(release.files.items())
        },
    }


def _inside(path: str) -> str:
    """A path in the package torch, without its own name."""
    return PurePosixPath(*PurePosixPath(path).parts[1:]).as_posix()


def _write(path: Path, members: Mapping[str, bytes]) -> None:
    require_space(path.parent, sum(map(len, members.values())))
    rows = [record.row_of(name, data) for name, data in members.items()]
    rows.append(record.Row(path=f"{DIST_INFO}/RECORD"))
    with draft(path) as unfinished, unfinished.open("xb") as stream:
        with zipcopy.ArchiveWriter(stream) as archive:
            for name, data in members.items():
                library = PurePosixPath(name).name == LIBRARY
                mode = zipcopy.SHARED_LIBRARY if library else zipcopy.REGULAR_FILE
                archive.add(name, data, when=_DATE, mode=mode)
            text = record.serialize(rows).encode("utf-8")
            archive.add(f"{DIST_INFO}/RECORD", text, when=_DATE)
        stream.flush()
        os.fsync(stream.fileno())
