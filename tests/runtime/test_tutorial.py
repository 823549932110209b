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

sys.path.append(str(HERE.parent / "commands"))

import listings  # noqa: E402

PAGE = "docs/tutorial.md"
SMALLER = (
    ("MEMORY = 1 << 30", "MEMORY = 24 << 20"),
    ("LAYERS, WIDTH, BATCH = 24, 1024, 16384", "LAYERS, WIDTH, BATCH = 24, 128, 2048"),
)
CAP = re.compile(r"^torch\.cuda\.set_per_process_memory_fraction.*\n", re.MULTILINE)


@pytest.fixture(scope="module")
def fit() -> list[str]:
    """The program without LMS, and with it."""
    return [smaller(program) for program in listings.fit()]


def smaller(program: str) -> str:
    for old, new in SMALLER:
        assert program.count(old) == 1
        program = program.replace(old, new)
    return program


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


def test_it_runs_out_of_memory(tmp_path: Path, fit: list[str]) -> None:
    result = run(tmp_path, fit[0])
    assert result.returncode == 1
    assert "CUDA out of memory. Tried to allocate" in result.stderr
    page = (listings.ROOT / PAGE).read_text("utf-8")
    shown = re.findall(r"^    (Large Model Support .*)\n    (.*)", page, re.MULTILINE)
    assert len(shown) == 1
    assert " ".join(shown[0]) in result.stderr


@simulated  # real libraries and segments need more than the tests' share of the memory
@since((2, 1), "hooks of all optimizers")
def test_it_trains_with_lms_and_is_drawn(tmp_path: Path, fit: list[str]) -> None:
    _, _, explain, plot = listings.blocks_of(PAGE)
    with_lms = run(tmp_path, fit[1] + explain + plot)
    in_memory = run(tmp_path, CAP.sub("", fit[0]))
    assert losses(with_lms) == losses(in_memory)
    assert "LMS pages out:" in with_lms.stdout
    assert "<html" in (tmp_path / "iteration.html").read_text("utf-8")
