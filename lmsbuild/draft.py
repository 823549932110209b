"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SUFFIX = ".unfinished"


@contextmanager
def draft(path: Path) -> Iterator[Path]:
    """A name beside ``path`` to write the file under: it takes its place when the block ends.

    When the block raises, nothing is left and ``path`` is as it was. A process that is killed
    leaves the draft; see remove_drafts.
    """
    unfinished = path.with_name(f".{path.name}{SUFFIX}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def remove_drafts(folder: Path) -> None:
    """Remove what a killed process left; whoever calls knows that nobody else writes there."""
    for stale in folder.glob(f".*{SUFFIX}"):
        stale.unlink()
