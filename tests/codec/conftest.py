"""Compiles the codec once for all tests. No torch is needed."""

from __future__ import annotations

import pytest

from packing import Codec, Host


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return Host(tmp_path_factory.mktemp("host"))


@pytest.fixture(scope="session")
def codec(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Codec:
    return Codec(host, tmp_path_factory.mktemp("kernels"))
