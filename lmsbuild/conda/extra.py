"""Modules of lmsbuild's extra "conda", which only the conda commands need."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from lmsbuild.errors import PackagerError

HOW = f"run: {sys.executable} -m pip install '.[conda]' in a checkout of lmsbuild"


def require(module: str) -> Any:
    """Import a module of the extra. Raises PackagerError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PackagerError(
            f"conda packages need {module}, which is not installed; {HOW}",
            detail=str(error),
        ) from error
