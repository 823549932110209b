"""What make runs."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("target", ["wheel", "conda"])
def test_a_folder_with_a_space_is_one_folder(target: str) -> None:
    command = ["make", "--dry-run", "--no-print-directory", target, "OUT=a b"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = [shlex.split(line) for line in found.splitlines() if "bin/lmsbuild" in line]
    assert lines
    assert all("a b" in line or "a b/channel" in line for line in lines)
    assert not [word for line in lines for word in line if word in ("a", "b")]
