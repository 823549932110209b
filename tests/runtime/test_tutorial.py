"""The programs of docs/tutorial.md, with smaller sizes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ON_HARDWARE
from cxx import HERE
from hardware import simulated
from releases import since

pytestmark = pytest.mark.any_tag

PAGE = HERE.parent.parent / "docs/tutorial.md"
SMALLER = (
    ("MEMORY = 1 << 30", "MEMORY = 24 << 20"),
    ("LAYERS, WIDTH, BATCH = 24, 1024, 16384", "LAYERS, WIDTH, BATCH = 24, 128, 2048"),
)
CAP = re.compile(r"^torch\.cuda\.set_per_process_memory_fraction.*\n", re.MULTILINE)
IMPORTS = "from torch import nn\n"


@pytest.fixture(scope="module")
def blocks() -> list[str]:
    """The program, and the lines that the page adds to it, in their order."""
    program, *more = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    for old, new in SMALLER:
        assert program.count(old) == 1
        program = program.replace(old, new)
    assert len(more) == 3
    assert IMPORTS in program
    return [program, *more]


def run(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    (folder / "fit.py").write_text(program)
    environment = dict(os.environ)
    if not ON_HARDWARE:
        environment["SIMCUDA_AUTO"] = "mib=128"
        environment["PYTHONPATH"] = str(HERE.parent / "simcuda" / "auto")
    return subprocess.run(
        [sys.executable, "fit.py"], cwd=folder, env=environment, capture_output=True, text=True
    )


def losses(result: subprocess.CompletedProcess[str]) -> list[str]:
    assert result.returncode == 0, result.stderr
    found = re.findall(r"^step \d: loss (\S+), ", result.stdout, re.MULTILINE)
    assert len(found) == 10
    return found


def test_it_runs_out_of_memory(tmp_path: Path, blocks: list[str]) -> None:
    result = run(tmp_path, blocks[0])
    assert result.returncode == 1
    assert "CUDA out of memory. Tried to allocate" in result.stderr
    shown = re.findall(
        r"^    (Large Model Support .*)\n    (.*)", PAGE.read_text("utf-8"), re.MULTILINE
    )
    assert len(shown) == 1
    assert " ".join(shown[0]) in result.stderr


@simulated  # real libraries and segments need more than the tests' share of the memory
@since((2, 1), "hooks of all optimizers")
def test_it_trains_with_lms_and_is_drawn(tmp_path: Path, blocks: list[str]) -> None:
    program, enable, explain, plot = blocks
    with_lms = run(tmp_path, program.replace(IMPORTS, IMPORTS + enable) + explain + plot)
    in_memory = run(tmp_path, CAP.sub("", program))
    assert losses(with_lms) == losses(in_memory)
    assert "LMS pages out:" in with_lms.stdout
    assert "<html" in (tmp_path / "iteration.html").read_text("utf-8")
