"""Running rattler's coroutines."""

from __future__ import annotations

import asyncio
import atexit
import time
from collections.abc import Awaitable
from typing import TypeVar

# Its threads outlive their coroutine, and a process that ends before them crashes. They are done
# after milliseconds, unless the process has little of the processors.
_LINGER_SECONDS = 1

_Answer = TypeVar("_Answer")
_last = 0.0  # when the last one ended


def run(work: Awaitable[_Answer]) -> _Answer:
    """What a coroutine of rattler's returns. The process ends a second later at the earliest."""
    global _last

    async def wait() -> _Answer:
        return await work

    try:
        return asyncio.run(wait())
    finally:
        _last = time.monotonic()
        atexit.unregister(_linger)
        atexit.register(_linger)


def _linger() -> None:
    time.sleep(max(0.0, _last + _LINGER_SECONDS - time.monotonic()))
