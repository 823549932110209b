"""The scripts in ci/ and tests/gpu/, which are no packages, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load(name: str, folder: str = "ci") -> ModuleType:
    path = Path(__file__).parents[3] / folder / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses looks its module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
