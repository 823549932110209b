"""Hooks that change only CMake files, which no wheel contains.

A checkout that was made from a wheel has no file for such a hook to change. If only the wheel of a
release is available, the contents of its CMake files are unknown. So a CMake hook may be unproven:
its diff names no blob. An unproven hook is applied if it fits. Otherwise it is left out, and the
user is told.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from pathlib import PurePosixPath

from git import Repo

from lmsbuild.patchset.diff import parse_diff
from lmsbuild.patchset.mail import Mail
from lmsbuild.tools import git

_TOP = "CMakeLists.txt"  # every checkout of PyTorch has it
_INDEX_LINE = re.compile(r"^index .*\n", re.MULTILINE)


def is_cmake_hook(mail: Mail) -> bool:
    """Whether a hook changes only CMake files."""
    return all(is_cmake_file(file.path) for file in mail.files)


def is_cmake_file(path: str) -> bool:
    name = PurePosixPath(path)
    return name.name == _TOP or name.suffix == ".cmake"


def is_unproven(mail: Mail) -> bool:
    """Whether nobody has compared a CMake hook with its release's own files."""
    return is_cmake_hook(mail) and not any(file.old_blob for file in mail.files)


def unproven(mail: Mail) -> Mail:
    """The same hook for a release whose files are not known."""
    diff = _INDEX_LINE.sub("", mail.diff)
    return dataclasses.replace(mail, diff=diff, files=parse_diff(diff))


def absent(repo: Repo, mails: Collection[Mail], commit: str = "HEAD") -> tuple[Mail, ...]:
    """The CMake hooks among ``mails``, in a tree that has no build files; else none."""
    if git.blob_at(repo, commit, _TOP):
        return ()
    return tuple(mail for mail in mails if is_cmake_hook(mail))
