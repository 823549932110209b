"""The examples of docs/examples run on the simulated device.

They need a torch with LMS; `make test` makes its environment, with torchvision, transformers and
what else they import. tests/gpu/examples.py runs them on a GPU.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
SIMCUDA = ROOT / "tests" / "simcuda"

sys.path[:0] = [str(EXAMPLES), str(SIMCUDA)]

import simcuda  # noqa: E402 (after its path)

MIB = 1 << 20
# For what the tests import; programs that they start have devices of their own.
simcuda.start(devices=1, mib=64)

import torch  # noqa: E402 (the simulated device comes first)

torch.cuda.init()


def environment(mib: int, devices: int = 1) -> dict[str, str]:
    """What makes any Python process run on simulated devices of so many MiB."""
    return {
        **os.environ,
        "PYTHONPATH": str(SIMCUDA / "auto"),
        "SIMCUDA_AUTO": f"devices={devices} mib={mib}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",  # nothing may be downloaded
    }


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs an example in the test's folder."""

    def run(
        name: str, *arguments: object, mib: int = 256, devices: int = 1, code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        # Without a fixed port, which another run on this machine may use.
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={devices}"]
        done = subprocess.run(
            [
                sys.executable,
                *(launcher if devices > 1 else []),
                str(EXAMPLES / name),
                *map(str, arguments),
            ],
            cwd=tmp_path,
            env=environment(mib, devices),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Takes back what an example has set in this process."""
    yield
    torch.cuda.set_limit_lms(0)
    torch.cuda.lms.set_planning(True)
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.backends.cudnn.deterministic = False
    if torch.cuda.memory_allocated():
        gc.collect()
    torch.cuda.set_enabled_lms(False)
    torch.cuda.empty_cache()
