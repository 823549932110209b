"""Fixtures: child processes with the simulated device, and a clean device for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from simcuda.process import Session

if TYPE_CHECKING:
    from collections.abc import Iterator


def reset_device(device: Any) -> None:
    """A scenario: forget what the last one did to the device."""
    import ctypes
    import gc

    import torch

    device.clear_faults()
    ctypes.CDLL(None).cudaGetLastError()  # left by a call that a scenario made by itself
    device.set_cap(64 << 20)
    device.set_host_limit(0)
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    device.reset_counts()
    device.clear_races()


@pytest.fixture(scope="session")
def shared_session() -> Iterator[Session]:
    with Session(mib=64, devices=2) as session:
        yield session


@pytest.fixture
def sim(shared_session: Session) -> Session:
    """Two devices of 64 MiB with the race checker; no faults, empty caches."""
    shared_session.run(reset_device)
    return shared_session


@pytest.fixture(scope="session")
def shared_async_session() -> Iterator[Session]:
    with Session(mib=64, async_=1, delay_us=2000) as session:
        yield session


@pytest.fixture
def async_sim(shared_async_session: Session) -> Session:
    """One device of 64 MiB whose streams are threads that dawdle."""
    shared_async_session.run(reset_device)
    return shared_async_session
