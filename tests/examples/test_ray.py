"""torch.cuda.lms.integrations.ray with Ray Train, whose workers are processes of their own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import environment
from torch.cuda.lms.integrations.ray import large_model_support

PROGRAM = Path(__file__).with_name("ray_training.py")
MIB = 1 << 20


def train(folder: Path, how: str) -> dict[str, Any]:
    file = folder / f"{how}.json"
    command = [sys.executable, str(PROGRAM), str(file), how]
    done = subprocess.run(
        command, env=environment(256), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(file.read_text())


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed: pip install 'ray[train]'",
)
def test_a_worker_of_ray_train(tmp_path: Path) -> None:
    plain, found = train(tmp_path, "plain"), train(tmp_path, "lms")
    assert found["limit"] == 16 * MIB
    assert found["lms/page_out_count"] > 0
    assert plain["lms/page_out_count"] == 0
    assert found["gradient"] == plain["gradient"]


def test_the_loop_keeps_its_parameters() -> None:
    """Ray looks at them: a loop may have one or none."""
    import inspect

    def loop(config: dict[str, int], more: int = 3) -> int:
        return config["x"] + more

    wrapped = large_model_support(loop, size="1MiB")
    assert inspect.signature(wrapped) == inspect.signature(loop)
    assert wrapped.__name__ == "loop"


def test_lms_is_on_when_the_loop_begins() -> None:
    import torch

    seen = []
    wrapped = large_model_support(
        lambda: seen.append((torch.cuda.get_enabled_lms(), torch.cuda.get_limit_lms())),
        limit="24MiB",
    )
    assert not torch.cuda.get_enabled_lms()
    try:
        wrapped()
    finally:
        torch.cuda.set_enabled_lms(False)
        torch.cuda.set_limit_lms(0)
    assert seen == [(True, 24 * MIB)]
