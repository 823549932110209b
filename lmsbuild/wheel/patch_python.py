"""The Python files of LMS for an installed or packed torch: hooks, runtime, version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from lmsbuild.errors import ForeignWheelError, HookError
from lmsbuild.patchset.apply_hunks import HunkError, apply_file_patch
from lmsbuild.patchset.diff import FilePatch
from lmsbuild.patchset.mail import Mail
from lmsbuild.patchset.runtime import runtime_files
from lmsbuild.patchset.series import load_hooks
from lmsbuild.registry import Tag
from lmsbuild.tools.cache import sha256_of_files
from lmsbuild.wheel.version import VERSION_MEMBER, mark_version

Read = Callable[[str], "bytes | None"]

_PYTHON_SUFFIXES = (".py", ".pyi")


@dataclass(frozen=True, kw_only=True)
class PythonPatch:
    """What patching changed.

    Attributes:
        files: new content by path; None for a file that a hook deletes.
        hooks: names of the hooks, in order.
        skipped: files that hooks change and an installation lacks (C++, build files).
        hooks_sha256, runtime_sha256: hashes of the patches, in hexadecimal.
    """

    files: dict[str, bytes | None] = field(default_factory=dict)
    hooks: tuple[str, ...]
    skipped: tuple[str, ...]
    hooks_sha256: str
    runtime_sha256: str


def patch_python(tag: Tag, patches: Path, read: Read) -> PythonPatch:
    """Apply a tag's hooks, add the runtime's Python files, mark the version.

    ``read`` gives the content of torch's file at a path ("torch/version.py"), None when there
    is none.

    Raises:
        HookError: a hook does not fit; the message names hook, file and hunk.
        ForeignWheelError: a file of the runtime is there already, or the version is not plain.
        SeriesError: the patches are missing or malformed.
    """
    hooks = load_hooks(tag, patches)
    files: dict[str, bytes | None] = {}
    skipped: list[str] = []

    def current(path: str) -> bytes | None:
        return files[path] if path in files else read(path)

    for hook in hooks:
        for patch in hook.files:
            source = patch.old_path or patch.path
            if not _is_carried(patch, current):
                skipped.append(patch.path)
                continue
            content = apply_hook(tag, hook, patch, None if patch.created else current(source))
            if source != patch.path:
                files[source] = None
            files[patch.path] = content

    runtime = runtime_files(patches, tag.variant)
    for name, path in runtime.items():
        if name.endswith(_PYTHON_SUFFIXES):
            if current(name) is not None:
                raise ForeignWheelError(f"torch has a file {name} already; give the official one")
            files[name] = path.read_bytes()
    files[VERSION_MEMBER] = mark_version(current(VERSION_MEMBER) or b"")
    return PythonPatch(
        files=files,
        hooks=tuple(hook.name for hook in hooks),
        skipped=tuple(dict.fromkeys(skipped)),
        # Numbered, because their order matters, too.
        hooks_sha256=sha256_of_files(
            {
                f"{number:04d} {hook.name}": patches / tag.hooks / hook.name
                for number, hook in enumerate(hooks)
            }
        ),
        runtime_sha256=sha256_of_files(runtime),
    )


def _is_carried(patch: FilePatch, current: Read) -> bool:
    """Whether the patch concerns a file that an installed torch has, or would have.

    A missing Python file of an installed package is not skipped. In this case the hook is wrong,
    and must fail.
    """
    path = PurePosixPath(patch.path)
    package = current(f"{path.parts[0]}/__init__.py") is not None
    if package and path.suffix in _PYTHON_SUFFIXES:
        return True
    return not patch.created and current(patch.old_path or patch.path) is not None


def apply_hook(tag: Tag, hook: Mail, patch: FilePatch, content: bytes | None) -> bytes | None:
    """A file's content with what one hook changes in it; None for no file.

    Raises HookError, which names hook, file and hunk.
    """
    try:
        return apply_file_patch(patch, content)
    except HunkError as error:
        where = f"hunk {error.number} of {patch.path}" if error.number else patch.path
        raise HookError(
            f"hook {tag.hooks}/{hook.name} does not apply: {where}: {error}; is this "
            f"the official {tag.name}?"
        ) from error
