"""Runs Python with the torch of these tests, as a user does: with arguments and variables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import ON_HARDWARE
from cxx import HERE

SIMULATED = {"SIMCUDA_AUTO": "mib=64", "PYTHONPATH": str(HERE.parent / "simcuda" / "auto")}


def python(
    *arguments: str, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **({} if ON_HARDWARE else SIMULATED), **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )


def output(*arguments: str, cwd: Path | None = None, **variables: str) -> str:
    """What a program prints that ends well."""
    done = python(*arguments, cwd=cwd, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout
