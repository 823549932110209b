"""Real GPUs in the place of the simulated ones, with as little memory."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import pytest

VARIABLE = "LMS_TEST_DEVICE"
REASON = "only the simulated device can do this"

# Libraries that would take more of the little memory for themselves than the tests leave.
SMALL_WORKSPACES = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "64"}


def wanted() -> bool:
    return os.environ.get(VARIABLE) == "gpu"


simulated = pytest.mark.skipif(wanted(), reason=REASON)
"""For what a test sees of a device that a share of a large one does not have."""


class Hardware:
    """What tests ask of a simcuda.Device, where hardware can do it; else the test is skipped."""

    def __init__(self, capacity: int) -> None:
        os.environ.update(SMALL_WORKSPACES)
        self.capacity = capacity

    def reset(self) -> None:
        """The memory of each device is as large as that of the simulated ones."""
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
        """There is no checker."""

    def clear_faults(self) -> None:
        """There are none."""

    def host_access(self, *_: Any) -> None:
        """Nobody looks."""

    def __getattr__(self, name: str) -> Any:
        def skip(*_: Any, **__: Any) -> NoReturn:
            pytest.skip(f"{name}: {REASON}")

        return skip
