"""Real GPUs instead of simulated ones, with the same amount of memory."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import pytest

VARIABLE = "LMS_TEST_DEVICE"
REASON = "only the simulated device can do this"

# The default workspaces of these libraries are larger than the memory that the tests leave free.
SMALL_WORKSPACES = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "64"}


def wanted() -> bool:
    return os.environ.get(VARIABLE) == "gpu"


simulated = pytest.mark.skipif(wanted(), reason=REASON)
"""Marks tests of properties that a fraction of a large device does not have."""


class Hardware:
    """The interface of simcuda.Device, as far as hardware supports it; else skips the test."""

    def __init__(self, capacity: int) -> None:
        os.environ.update(SMALL_WORKSPACES)
        self.capacity = capacity

    def reset(self) -> None:
        """Limits the memory of each device to that of the simulated ones."""
        self.set_cap(self.capacity)

    def set_cap(self, size: int) -> None:
        import torch

        for index in range(torch.cuda.device_count()):
            total = torch.cuda.get_device_properties(index).total_memory
            torch.cuda.set_per_process_memory_fraction(size / total, index)

    def set_host_limit(self, size: int) -> None:
        if size:
            pytest.skip(REASON)

    def races(self) -> list[str]:
        return []

    def clear_races(self) -> None:
        """Does nothing: there is no race checker."""

    def clear_faults(self) -> None:
        """Does nothing: there are no faults."""

    def host_access(self, *_: Any) -> None:
        """Does nothing: accesses are not checked."""

    def __getattr__(self, name: str) -> Any:
        def skip(*_: Any, **__: Any) -> NoReturn:
            pytest.skip(f"{name}: {REASON}")

        return skip
