"""The planner, compiled once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmsbuild.resources import patches_dir
from lmsbuild.simulate.planner import Planner, planner


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def compiled(cache: Path) -> Planner:
    return planner(patches_dir(), cache)
