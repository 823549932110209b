"""A tag's patches as one plain file, for people who have only git."""

from __future__ import annotations

from pathlib import Path

from lmsbuild.patchset import cmake_hook
from lmsbuild.patchset.series import load_series
from lmsbuild.registry import Tag
from lmsbuild.tools import atomic


def default_file(tag: Tag) -> Path:
    """The file's customary name; LMS users have always known it under this one."""
    return Path(f"pytorch_{tag.name}_large_model_support.patch")


def export(tag: Tag, output: Path, *, patches: Path | None = None) -> int:
    """Writes the patches of ``tag`` as a mailbox for `git am`; returns its size in bytes.

    `git am` on the tag makes the same files as `lmsbuild apply`, but for CMake hooks that
    are unproven, which are not in it.

    Raises:
        SeriesError: the patches are missing or malformed.
        OSError: ``output`` cannot be written; what was there before still is.
    """
    series = load_series(tag, patches)
    # `git am` would stop at one that does not fit.
    unproven = [mail for mail in series.mails if cmake_hook.is_unproven(mail)]
    content = series.without(unproven).mbox()
    atomic.write_bytes(output, content)
    return len(content)
