"""What only the conda commands need: lmsbuild's extra "conda"."""

from __future__ import annotations

import importlib
from typing import Any

from lmsbuild.errors import PackagerError


def require(module: str) -> Any:
    """A module of the extra, imported. Raises PackagerError."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PackagerError(
            f"{module} is not installed, which conda packages need; "
            "run: python -m pip install 'lmsbuild[conda]'",
            detail=str(error),
        ) from error
