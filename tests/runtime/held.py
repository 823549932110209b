"""Calls of CUDA functions that the simulated device holds, to stop a thread there."""

from __future__ import annotations

import time
from typing import Any


def wait_for(device: Any, api: str) -> int:
    """Until a call is held; returns how many are, which is 0 when it takes too long."""
    deadline = time.monotonic() + 30
    while not device.waiting(api) and time.monotonic() < deadline:
        time.sleep(0.001)
    return int(device.waiting(api))
