"""Conda's names of the platforms that PyTorch runs on."""

from __future__ import annotations

from lmsbuild.architecture import architectures
from lmsbuild.errors import WrongPlatformError

# `uname -m` to conda's subdir.
SUBDIRS = {name: known.conda for name, known in architectures().items()}

NOARCH = "noarch"


def subdir_of(architecture: str) -> str:
    """conda's subdir of an architecture, such as "linux-64" for "x86_64".

    Raises WrongPlatformError.
    """
    if architecture not in SUBDIRS:
        raise WrongPlatformError(
            f"there are no conda packages for {architecture or 'this platform'}, only for "
            + ", ".join(SUBDIRS)
        )
    return SUBDIRS[architecture]
