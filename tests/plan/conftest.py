"""Compiles the planner once for all tests. No torch is needed."""

from __future__ import annotations

import pytest

from planner import Planner, compile_planner


@pytest.fixture(scope="session")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    # The library's own assertions find what is read beside a vector.
    return Planner(compile_planner(tmp_path_factory.mktemp("plan"), "-O1", "-D_GLIBCXX_ASSERTIONS"))
