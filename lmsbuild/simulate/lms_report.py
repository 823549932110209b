"""The runtime's package torch.cuda.lms_report, imported without torch.

It draws for torch.cuda.lms.plot() and for `lmsbuild report`, and is part of the runtime because
lmsbuild need not be there where a model runs.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

from lmsbuild.errors import SeriesError
from lmsbuild.resources import patches_dir

_NAME = "lms_report"


def module(name: str) -> ModuleType:
    """A module of the package.

    Raises SeriesError: the runtime has no such package.
    """
    if _NAME not in sys.modules:
        folder = patches_dir() / "runtime" / "torch" / "cuda" / _NAME
        if not (folder / "__init__.py").is_file():
            raise SeriesError(f"{folder} is missing; reinstall lmsbuild")
        spec = importlib.util.spec_from_file_location(
            _NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[_NAME] = package
        spec.loader.exec_module(package)
    return importlib.import_module(f"{_NAME}.{name}")
