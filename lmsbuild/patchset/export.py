"""A tag's patches as one file, which git alone can apply."""

from __future__ import annotations

from pathlib import Path

from lmsbuild.patchset import cmake_hook
from lmsbuild.patchset.series import load_series
from lmsbuild.registry import Tag
from lmsbuild.tools import atomic


def default_file(tag: Tag) -> Path:
    """The default file name, which is the one that earlier LMS releases used."""
    return Path(f"pytorch_{tag.name}_large_model_support.patch")


def export(tag: Tag, output: Path, *, patches: Path | None = None) -> int:
    """Writes the patches of ``tag`` as a mailbox for `git am`; returns its size in bytes.

    `git am` on the tag makes the same files as `lmsbuild apply`, except that unproven CMake
    hooks are not included.

    Raises:
        SeriesError: the patches are missing or malformed.
        OSError: ``output`` cannot be written; an existing file is unchanged.
    """
    series = load_series(tag, patches)
    # `git am` would stop at one that does not fit.
    unproven = [mail for mail in series.mails if cmake_hook.is_unproven(mail)]
    content = series.without(unproven).mbox()
    atomic.write_bytes(output, content)
    return len(content)
