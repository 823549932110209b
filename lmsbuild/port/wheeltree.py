"""Make a checkout from the Python files of an official wheel."""

from __future__ import annotations

from pathlib import Path

from lmsbuild.checkout.origin import IMPORTER, VERSION_FILE
from lmsbuild.tools import git, zipcopy
from lmsbuild.wheel import integrity

_SUFFIXES = (".py", ".pyi")


def checkout_of_wheel(wheel: Path, version: str, into: Path) -> None:
    """Commit the wheel's Python files to a new repository in the new folder ``into``.

    They are identical to those of the tag, except for a few that the build generates. Other files
    of the tag are missing.

    Raises:
        DamagedWheelError, UnsafeMemberError: as integrity.open_wheel.
    """
    into.mkdir()
    with integrity.open_wheel(wheel) as packed:
        for info in packed.infolist():
            name = info.filename
            if name.endswith(_SUFFIXES) and ".data/" not in name:
                zipcopy.extract(packed, info, into)
    (into / VERSION_FILE).write_text(f"{version}\n", encoding="utf-8")
    git.create(into)
    with git.opened(into) as repo:
        git.commit_everything(repo, f"Python files of torch {version}\n", IMPORTER)
