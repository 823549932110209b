"""Running rattler's coroutines."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lmsbuild.conda.coroutine import run


async def answer(number: int) -> int:
    return number


async def fail() -> None:
    raise ValueError("planted")


def test_what_it_returns_and_raises() -> None:
    assert run(answer(7)) == 7
    with pytest.raises(ValueError, match="planted"):
        run(fail())


def test_the_process_outlives_the_threads_of_a_coroutine() -> None:
    code = (
        "import os, threading, time\n"
        "from lmsbuild.conda.coroutine import run\n"
        "def outlive(): time.sleep(0.5); os.write(1, b'ended ')\n"
        "async def work(): threading.Thread(target=outlive, daemon=True).start()\n"
        "run(work())\n"
        "run(work())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ended"] * 2, done.stderr
