"""Modules of lmsbuild's extra "conda", which only the conda commands need."""

from __future__ import annotations

import importlib
from typing import Any

from lmsbuild.errors import PackagerError


def require(module: str) -> Any:
    """Import a module of the extra. Raises PackagerError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PackagerError(
            f"conda packages need {module}, which is not installed; "
            "run: python -m pip install 'lmsbuild[conda]'",
            detail=str(error),
        ) from error
