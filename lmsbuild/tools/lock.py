"""Keeps two lmsbuilds from working in one directory at the same time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lmsbuild.errors import BusyError


@contextmanager
def exclusive(lock_file: Path, directory: Path) -> Iterator[None]:
    """Holds ``lock_file`` and removes it afterwards; ``directory`` is what it guards.

    The kernel drops the lock with the process, so a killed lmsbuild blocks nobody.

    Raises:
        BusyError: another process holds it.
    """
    try:
        descriptor = _acquire(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BusyError(
            f"another lmsbuild is working in {directory}; wait for it, or name another one"
        ) from error
    try:
        yield
    finally:
        # Removed while still held: whoever opened it meanwhile notices (see _acquire).
        lock_file.unlink(missing_ok=True)
        os.close(descriptor)


@contextmanager
def shared(lock_file: Path) -> Iterator[None]:
    """Holds ``lock_file`` together with others who share it; waits for one who holds it alone."""
    descriptor = _acquire(lock_file, fcntl.LOCK_SH)
    try:
        yield
    finally:
        os.close(descriptor)  # and not removed, because others may hold it


def _acquire(lock_file: Path, operation: int) -> int:
    while True:
        descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, operation)
        except BaseException:
            os.close(descriptor)
            raise
        # The former holder may have removed the file between our open and our lock: then
        # what we hold is a file that nobody else will ever see.
        try:
            if os.path.samestat(os.fstat(descriptor), os.stat(lock_file)):
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)
